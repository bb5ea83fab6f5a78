"""verify, repair: what is damaged, and what can be saved."""

from pathlib import Path

import click

from timerstore.backup import check_backup
from timerstore.cli.exits import Exit
from timerstore.cli.given import FOLDER, json_option, path_argument
from timerstore.cli.opening import require, stores_in
from timerstore.cli.output import emit, say
from timerstore.cli.progress import progress
from timerstore.cli.words import plural
from timerstore.inspect import repair_directory, verify_directory
from timerstore.message import Report
from timerstore.shards.kinds import Kind


@click.command("verify")
@path_argument
@json_option
def verify_command(path: Path, as_json: bool) -> None:
    """Read a whole store, directory of shards, or backup; name every damaged place.

    Changes nothing and takes no lock. Beside a process that writes, what changes meanwhile may be
    told as damage: look again. Exit code 1 where anything is damaged.
    """
    if require(path, Kind.STORE, Kind.SHARDS, Kind.BACKUP) is Kind.BACKUP:
        reports = {str(path): check_backup(path)}
    else:
        reports = {}
        for one in stores_in(path).values():
            with progress(f"reading {one}") as tell:
                reports[str(one)] = verify_directory(one, progress=tell)
    for name, report in reports.items():
        _tell(name, report, as_json=as_json)
    if not all(report.clean for report in reports.values()):
        raise click.exceptions.Exit(Exit.NOT_SO)


def _tell(name: str, report: Report, *, as_json: bool) -> None:
    if as_json:
        names = ("what", "where", "wanted", "got")
        problems = [{field: getattr(one, field) for field in names} for one in report.problems]
        counts = dict(report.counts)
        emit({"path": name, "clean": report.clean, "counts": counts, "problems": problems})
        return
    found = "clean" if report.clean else plural(len(report.problems), "problem")
    say(f"{name}: {found}")
    looked = [f"{count:,} {what}" for what, count in report.counts.items() if count]
    say(f"  looked at {', '.join(looked) or 'nothing'}")
    for problem in report.problems:
        say(f"  {problem.what}\n    where  {problem.where}")
        say(f"    wanted {problem.wanted}\n    got    {problem.got}")


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
    _tell(str(target), report, as_json=as_json)
    if not report.clean:
        raise click.exceptions.Exit(Exit.NOT_SO)
