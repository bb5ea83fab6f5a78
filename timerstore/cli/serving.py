"""Command `serve`: serve the dashboard of a store over HTTP."""

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
@click.option("--ui", is_flag=True, help="Serve the dashboard; currently required.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="An address that is not loopback requires a token.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Default: a free port.")
@click.option(
    "--token",
    envvar="TIMERSTORE_TOKEN",
    help="Secret in the page's address; default: random. Or set TIMERSTORE_TOKEN, which process "
    "lists do not show.",
)
@click.option("--read-only", is_flag=True, help="Do not allow cancelling messages.")
@click.option("--snapshot", is_flag=True, help="Do not open the store; only read its files.")
@config_option
@json_option
def serve_command(
    path: Path,
    ui: bool,
    host: str,
    port: int,
    token: str | None,
    read_only: bool,
    snapshot: bool,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Serve the dashboard of a store until Ctrl-C: due messages, lateness, search, cancel.

    The store is opened and delivers while this command runs. If another process has it open, its
    files are read instead. The printed address contains a token, which gives access to the store
    and permission to cancel pending messages.
    """
    if not ui:
        raise click.UsageError("wanted --ui: the dashboard is the only thing to serve")
    require(path, Kind.STORE, Kind.SHARDS)
    # Loaded here: it needs starlette and uvicorn, which no other command does.
    try:
        start = importlib.import_module("timerstore.dashboard").start
    except ConfigError as error:
        raise CommandError(
            "the dashboard needs starlette and uvicorn, which are not installed",
            do="pip install 'timerstore[serve]'",
        ) from error
    config = config_of(settings)
    with (
        stopping() as stop,
        start(
            path, host, port, token, read_only=read_only, snapshot=snapshot, config=config
        ) as served,
    ):
        about = served.about()
        if as_json:
            address = {"url": served.url, "port": served.port, "token": served.token}
            emit({**address, "mode": about["mode"], "read_only": about["read_only"]})
        else:
            say(served.url)
        if about["mode"] == "snapshot" and not snapshot:
            note(
                "another process has the store open: showing a snapshot; search and cancel are off"
            )
        note("anyone with this address has access while this command runs; Ctrl-C ends it")
        while not stop.wait(_LOOK_S) and not served.wait(0):
            pass
