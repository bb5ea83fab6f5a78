"""Commands `verify` and `repair`: find damage, and copy the readable part of a store."""

import traceback
from dataclasses import replace
from pathlib import Path

import click

from timerstore._engine.maintenance import check_backup, repair_directory, verify_directory
from timerstore.cli.exits import Exit, report_of
from timerstore.cli.opening import connected, require, stores_in
from timerstore.cli.output import emit, emit_error, say
from timerstore.cli.params import (
    FOLDER,
    StorePlace,
    StoreUrl,
    files_argument,
    json_option,
    store_argument,
)
from timerstore.cli.progress import progress
from timerstore.cli.text import plural
from timerstore.errors import TimerStoreError
from timerstore.shards.kinds import Kind
from timerstore.types.reports import Report


@click.command("verify")
@store_argument
@json_option
def verify_command(path: StorePlace, as_json: bool) -> None:
    """Check all of a store, a directory of shards or a backup, and report each damaged place.

    The command changes nothing and takes no lock. If another process writes to the store, a
    concurrent change can be reported as damage; run the command again, or give the address of the
    store's server, whose process then checks the store. The exit code is 1 if anything is damaged.
    For shards it is the highest code of a shard.
    """
    if isinstance(path, StoreUrl):
        with connected(path) as store:
            code = _write_report(str(path), store.verify(), as_json=as_json)
    elif require(path, Kind.STORE, Kind.SHARDS, Kind.BACKUP) is Kind.BACKUP:
        code = _write_report(str(path), check_backup(path), as_json=as_json)
    else:
        code = max(_verify(one, as_json=as_json) for one in stores_in(path).values())
    if code is not Exit.FINE:
        raise click.exceptions.Exit(code)


def _verify(path: Path, *, as_json: bool) -> Exit:
    """Check one store. Write an error instead of raising it, so that later shards are checked."""
    try:
        with progress(f"reading {path}") as on_progress:
            report = verify_directory(path, progress=on_progress)
    except (TimerStoreError, OSError) as error:
        if click.get_current_context().find_root().params["debug"]:
            traceback.print_exc()
        found = report_of(error)
        emit_error(replace(found, where=found.where or str(path)), as_json=as_json)
        return found.code
    return _write_report(str(path), report, as_json=as_json)


def _write_report(name: str, report: Report, *, as_json: bool) -> Exit:
    """Write a report and return its exit code."""
    code = Exit.FINE if report.clean else Exit.NOT_SO
    if as_json:
        names = ("what", "where", "wanted", "got")
        problems = [{field: getattr(one, field) for field in names} for one in report.problems]
        counts = dict(report.counts)
        emit({"path": name, "clean": report.clean, "counts": counts, "problems": problems})
        return code
    found = "clean" if report.clean else plural(len(report.problems), "problem")
    say(f"{name}: {found}")
    checked = [f"{count:,} {what}" for what, count in report.counts.items() if count]
    say(f"  checked {', '.join(checked) or 'nothing'}")
    for problem in report.problems:
        say(f"  {problem.what}\n    where  {problem.where}")
        say(f"    wanted {problem.wanted}\n    got    {problem.got}")
    return code


@click.command("repair")
@files_argument("it reads the files of a damaged store, which cannot be served")
@click.argument("target", type=FOLDER)
@json_option
def repair_command(path: Path, target: Path, as_json: bool) -> None:
    """Copy the readable part of a damaged store into TARGET, a new directory.

    The damaged store is not changed. The exit code is 1 if something was lost; each loss is
    reported.
    """
    require(path, Kind.STORE)
    with progress(f"reading {path}") as on_progress:
        report = repair_directory(path, target, progress=on_progress)
    code = _write_report(str(target), report, as_json=as_json)
    if code is not Exit.FINE:
        raise click.exceptions.Exit(code)
