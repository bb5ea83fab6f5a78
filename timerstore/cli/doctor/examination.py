"""The command: run the examinations and write the findings."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from timerstore.cli.doctor.examined_path import examine_path
from timerstore.cli.doctor.finding import Finding, Severity
from timerstore.cli.doctor.machine import examine_machine
from timerstore.cli.exits import Exit
from timerstore.cli.output import emit, paragraph
from timerstore.cli.params import NonEmptyPath, config_of, config_option, json_option
from timerstore.cli.text import plural, safe
from timerstore.types.config import StoreConfig

_PATH = NonEmptyPath("`timerstore ping` asks a server", readable=False)
_STYLES = {Severity.OK: "green", Severity.NOTE: "yellow", Severity.CHANGE: "bold red"}


@click.command("doctor")
@click.argument("path", type=_PATH, required=False)
@config_option
@json_option
def doctor_command(path: Path | None, settings: tuple[tuple[str, Any], ...], as_json: bool) -> None:
    """Examine this machine, and the store at PATH; say what must change, why, and what to type.

    The command changes nothing, and works while another process has the store open. Give the
    settings of the program with -c to compare them with the machine. The exit code is 1 if
    something must change.
    """
    counts = dict.fromkeys(Severity, 0)
    for one in _findings(path, settings):
        counts[one.level] += 1
        if as_json:
            emit({name: text for name, text in asdict(one).items() if text})
        else:
            _show(one)
    if not as_json:
        paragraph(f"\n{_result(counts)}")
    if counts[Severity.CHANGE]:
        raise click.exceptions.Exit(Exit.NOT_SO)


def _findings(path: Path | None, settings: tuple[tuple[str, Any], ...]) -> Iterator[Finding]:
    config = config_of(settings) or StoreConfig()
    yield from examine_machine(config)
    if path is not None:
        yield from examine_path(path, dict(settings), config)


def _show(one: Finding) -> None:
    paragraph(f"{one.about}: {safe(one.what)}", head=Text(f"{one.level:<8}", _STYLES[one.level]))
    for name, text in (("why", one.why), ("do", one.do)):
        if text:
            paragraph(safe(text), head=f"  {name:<6}")


def _result(counts: dict[Severity, int]) -> str:
    notes = plural(counts[Severity.NOTE], "note")
    if counts[Severity.CHANGE]:
        return f"{plural(counts[Severity.CHANGE], 'thing')} must change; {notes}"
    return f"nothing must change; {notes}"
