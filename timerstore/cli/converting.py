"""Command `convert`: prepare a closed store for a RocketMQ broker, or undo that."""

from pathlib import Path
from typing import Any, Literal

import click

from timerstore._engine.convert import convert
from timerstore.cli.opening import require
from timerstore.cli.output import emit, say
from timerstore.cli.params import config_of, config_option, files_argument, json_option
from timerstore.cli.stopping import stopping
from timerstore.cli.text import plural
from timerstore.shards.kinds import Kind


@click.command("convert")
@files_argument("the store must be closed")
@click.option(
    "--to",
    type=click.Choice(["rocketmq", "timerstore"]),
    required=True,
    help="rocketmq: move messages of the far wheel to the wheel; timerstore: use the far wheel.",
)
@config_option
@json_option
def convert_command(
    path: Path,
    to: Literal["rocketmq", "timerstore"],
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Convert a closed store so that a RocketMQ broker can open it, or convert it back.

    The command delivers no message and copies no body. After an interruption, run the same command
    again: it continues.
    """
    config = config_of(settings)
    require(path, Kind.STORE)
    with stopping():
        report = convert(path, to, config)
    if as_json:
        emit({"path": str(path), "to": to, **report._asdict()})
        return
    say(f"converted {path} for {'a RocketMQ broker' if to == 'rocketmq' else 'timerstore'}")
    say(f"  {plural(report.pending, 'message')} pending, {report.moved:,} moved to the wheel")
    if report.far:
        say(f"  {plural(report.far, 'unit')} on the far wheel")
