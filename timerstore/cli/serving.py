"""serve: a store's page in a browser."""

import importlib
from pathlib import Path
from typing import Any

import click

from timerstore.cli.exits import CommandError
from timerstore.cli.opening import require
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import config_of, config_option, json_option, path_argument
from timerstore.cli.stopping import stopping
from timerstore.errors import ConfigError
from timerstore.shards.kinds import Kind

_LOOK_S = 0.2


@click.command("serve")
@path_argument
@click.option("--ui", is_flag=True, help="A page for a browser; there is nothing else to serve.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Another wants a token.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Default: one that is free."
)
@click.option(
    "--token",
    envvar="TIMERSTORE_TOKEN",
    help="What the page's address must have; default: a random one. Or TIMERSTORE_TOKEN, which no "
    "list of processes shows.",
)
@click.option("--read-only", is_flag=True, help="The page cannot cancel.")
@click.option("--beside", is_flag=True, help="Do not open the store: look at its files, as top.")
@config_option
@json_option
def serve_command(
    path: Path,
    ui: bool,
    host: str,
    port: int,
    token: str | None,
    read_only: bool,
    beside: bool,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Show a store in a browser, until Ctrl-C: the wheel turning, lateness, one message explained.

    The store is opened, and delivers while this runs; where another process has it, its files are
    looked at beside that one. The address that is told has a token: who knows it may see the store,
    and cancel what waits.
    """
    if not ui:
        raise click.UsageError("wanted --ui: a page for a browser is what there is to serve")
    require(path, Kind.STORE, Kind.SHARDS)
    # Loaded here: it needs starlette and uvicorn, which no other command does.
    try:
        start = importlib.import_module("timerstore.dashboard").start
    except ConfigError as error:
        raise CommandError(
            "the page needs starlette and uvicorn, which are not installed",
            do="pip install 'timerstore[serve]'",
        ) from error
    config = config_of(settings)
    with (
        stopping() as stop,
        start(path, host, port, token, read_only=read_only, beside=beside, config=config) as served,
    ):
        about = served.about()
        if as_json:
            told = {"url": served.url, "port": served.port, "token": served.token}
            emit({**told, "mode": about["mode"], "read_only": about["read_only"]})
        else:
            say(served.url)
        if about["mode"] == "beside" and not beside:
            note("another process has it open: looking beside that one; search and cancel are off")
        note("who has this address may look in, as long as this runs; Ctrl-C ends it")
        while not stop.wait(_LOOK_S) and not served.wait(0):
            pass
