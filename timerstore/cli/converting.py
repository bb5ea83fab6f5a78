"""convert: a closed directory for RocketMQ's broker, or for us alone."""

from pathlib import Path
from typing import Any, Literal

import click

from timerstore._engine.convert import convert
from timerstore.cli.opening import require
from timerstore.cli.output import emit, say
from timerstore.cli.params import config_of, config_option, json_option, path_argument
from timerstore.cli.stopping import stopping
from timerstore.cli.text import plural
from timerstore.shards.kinds import Kind


@click.command("convert")
@path_argument
@click.option(
    "--to",
    type=click.Choice(["rocketmq", "timerstore"]),
    required=True,
    help="rocketmq: what is far gets slots on the wheel; timerstore: back again.",
)
@config_option
@json_option
def convert_command(
    path: Path,
    to: Literal["rocketmq", "timerstore"],
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Make a closed store one that a RocketMQ broker opens, or one that is ours again.

    Nothing is delivered meanwhile, no body is written. Cut off, it is as after a kill: the same
    command goes on.
    """
    config = config_of(settings)
    require(path, Kind.STORE)
    with stopping():
        report = convert(path, to, config)
    if as_json:
        emit({"path": str(path), "to": to, **report._asdict()})
        return
    say(f"a broker may open {path}" if to == "rocketmq" else f"{path} is ours")
    say(f"  {plural(report.waiting, 'message')} waiting, {report.moved:,} moved to the wheel")
    if report.far:
        say(f"  {plural(report.far, 'unit')} on the far wheel")
