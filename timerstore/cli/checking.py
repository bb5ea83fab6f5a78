"""verify, repair: what is damaged, and what can be saved."""

import traceback
from dataclasses import replace
from pathlib import Path

import click

from timerstore._engine.maintenance import check_backup, repair_directory, verify_directory
from timerstore.cli.exits import Exit, report_of
from timerstore.cli.opening import require, stores_in
from timerstore.cli.output import emit, emit_error, say
from timerstore.cli.params import FOLDER, json_option, path_argument
from timerstore.cli.progress import progress
from timerstore.cli.text import plural
from timerstore.errors import TimerStoreError
from timerstore.reports import Report
from timerstore.shards.kinds import Kind


@click.command("verify")
@path_argument
@json_option
def verify_command(path: Path, as_json: bool) -> None:
    """Read a whole store, directory of shards, or backup; name every damaged place.

    Changes nothing and takes no lock. Beside a process that writes, what changes meanwhile may be
    told as damage: look again. Exit code 1 where anything is damaged; of shards the highest of
    each one's.
    """
    if require(path, Kind.STORE, Kind.SHARDS, Kind.BACKUP) is Kind.BACKUP:
        code = _tell(str(path), check_backup(path), as_json=as_json)
    else:
        code = max(_verify(one, as_json=as_json) for one in stores_in(path).values())
    if code is not Exit.FINE:
        raise click.exceptions.Exit(code)


def _verify(path: Path, *, as_json: bool) -> Exit:
    """Read one; return its report at once, so that the following shards are read too."""
    try:
        with progress(f"reading {path}") as tell:
            report = verify_directory(path, progress=tell)
    except (TimerStoreError, OSError) as error:
        if click.get_current_context().find_root().params["debug"]:
            traceback.print_exc()
        found = report_of(error)
        emit_error(replace(found, where=found.where or str(path)), as_json=as_json)
        return found.code
    return _tell(str(path), report, as_json=as_json)


def _tell(name: str, report: Report, *, as_json: bool) -> Exit:
    """Tell what was found; the exit code."""
    code = Exit.FINE if report.clean else Exit.NOT_SO
    if as_json:
        names = ("what", "where", "wanted", "got")
        problems = [{field: getattr(one, field) for field in names} for one in report.problems]
        counts = dict(report.counts)
        emit({"path": name, "clean": report.clean, "counts": counts, "problems": problems})
        return code
    found = "clean" if report.clean else plural(len(report.problems), "problem")
    say(f"{name}: {found}")
    looked = [f"{count:,} {what}" for what, count in report.counts.items() if count]
    say(f"  looked at {', '.join(looked) or 'nothing'}")
    for problem in report.problems:
        say(f"  {problem.what}\n    where  {problem.where}")
        say(f"    wanted {problem.wanted}\n    got    {problem.got}")
    return code


@click.command("repair")
@path_argument
@click.argument("target", type=FOLDER)
@json_option
def repair_command(path: Path, target: Path, as_json: bool) -> None:
    """Save what reads of a damaged store into TARGET, a new folder; the store keeps every byte.

    Exit code 1 where something was lost; it is named.
    """
    require(path, Kind.STORE)
    with progress(f"reading {path}") as tell:
        report = repair_directory(path, target, progress=tell)
    code = _tell(str(target), report, as_json=as_json)
    if code is not Exit.FINE:
        raise click.exceptions.Exit(code)
