"""Command `serve`: serve a store to other processes, and its dashboard over HTTP."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.opening import connected, opened_single, require
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import (
    StorePlace,
    StoreUrl,
    config_of,
    config_option,
    json_option,
    place_argument,
    tls_ca_option,
)
from timerstore.cli.service_manager import notify
from timerstore.cli.serving_rocketmq import RocketmqOptions, rocketmq_options
from timerstore.cli.stopping import stopping
from timerstore.errors import ConfigError, FailedError
from timerstore.net import serve
from timerstore.net.endpoints import parse_host_port
from timerstore.shards.kinds import Kind
from timerstore.store import ConnectedStore, TimerStore
from timerstore.types.config import StoreConfig

_LOOK_S = 0.2
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("serve")
@place_argument
@tls_ca_option
@click.option(
    "--socket", type=_FILE,
    help="Serve programs on a unix socket: mode 0600, or 0660 with --user or --group.",
)  # fmt: skip
@click.option("--tcp", metavar="HOST:PORT", help="Serve programs on TCP; port 0: a free one.")
@click.option("--tls-cert", type=_FILE, help="Certificate chain of --tcp and --grpc, in PEM.")
@click.option("--tls-key", type=_FILE, help="Key of --tls-cert, in PEM.")
@click.option("--token-file", type=_FILE, help="File with the secret that clients of --tcp send.")
@click.option(
    "--insecure", is_flag=True,
    help="Allow --tcp without TLS and without a token, and --grpc without TLS and without keys.",
)  # fmt: skip
@click.option(
    "--user", "users", multiple=True, metavar="NAME|ID",
    help="Another user that may connect to --socket (repeatable). The file of the socket gets the "
    "first group of the users, or --group.",
)  # fmt: skip
@click.option(
    "--group", metavar="NAME|ID",
    help="The group of the file of --socket. Without --user, its members may connect.",
)  # fmt: skip
@rocketmq_options
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve the metrics of --socket, --tcp and --grpc to Prometheus at /metrics, and the "
    "health of the store at /health; port 0: a free one.",
)
@click.option("--ui", is_flag=True, help="Serve the dashboard.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Of the dashboard. An address that is not loopback requires a token.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Of the dashboard; 0: a free port."
)
@click.option(
    "--token",
    envvar="TIMERSTORE_TOKEN",
    help="Secret in the page's address; default: random. Or set TIMERSTORE_TOKEN, which process "
    "lists do not show.",
)
@click.option("--read-only", is_flag=True, help="The dashboard cannot cancel messages.")
@click.option("--snapshot", is_flag=True, help="Do not open the store; only read its files.")
@config_option
@json_option
def serve_command(
    path: StorePlace,
    socket: Path | None,
    tcp: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    insecure: bool,
    users: tuple[str, ...],
    group: str | None,
    clients: RocketmqOptions,
    metrics: str | None,
    tls_ca: Path | None,
    ui: bool,
    host: str,
    port: int,
    token: str | None,
    read_only: bool,
    snapshot: bool,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Serve a store until Ctrl-C or SIGTERM: to programs, and as a dashboard.

    The store is opened and delivers while this command runs. Programs use `timerstore.connect` with
    an address that is printed. With --ui alone, if another process has the store open, its files
    are read instead. With the address of a server in place of PATH, --ui shows the store that is
    served there, and --grpc serves it; --token-file and --tls-ca are then those of its client.

    The dashboard's address contains a token, which gives access to the store and
    permission to cancel pending messages.

    A signal ends the command with exit code 0, after it has closed the store. If the store fails,
    as after an error of the disk, the command ends with code 5: start it again.
    """
    has_socket = socket is not None or tcp is not None
    is_served = has_socket or clients.grpc is not None
    own_token = None if isinstance(path, StoreUrl) else token_file
    _check_options(clients, socket, tcp, own_token, users, group, metrics, tls=(tls_cert, tls_key),
                   insecure=insecure, ui=ui, is_served=is_served, snapshot=snapshot)  # fmt: skip
    opens = has_socket or metrics is not None or snapshot
    path = _place(path, token_file, tls_ca, opens=opens)
    config = config_of(settings)
    start = _dashboard() if ui else None
    start_metrics = None if metrics is None else _metrics(metrics)
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    access: dict[str, Any] = {
        "socket": socket, "tcp": tcp, "tls": None if tcp is None else tls,
        "token_file": own_token, "insecure": insecure and tcp is not None,
        "users": [_name_or_id(one) for one in users],
        "group": None if group is None else _name_or_id(group),
    }  # fmt: skip
    shown: dict[str, Any] = {}
    with (
        stopping() as stop,
        _named_failure(shown),
        ExitStack() as last,  # closed after the store
        ExitStack() as undo,
    ):
        servers: list[Any] = []
        source: Any = path
        if isinstance(path, StoreUrl):
            source = undo.enter_context(connected(path, config))
        elif is_served:
            source = undo.enter_context(opened_single(path, config))
            if has_socket:
                servers.append(serve(source, **access))  # it ends with the store
        if is_served:
            servers += map(undo.enter_context, clients.start(source, tls, insecure=insecure))
            shown["urls"] = [url for one in servers for url in one.urls]
            if start_metrics is not None:
                shown["metrics"] = last.enter_context(start_metrics(source)).url
        if start is not None:
            page = undo.enter_context(
                _page(start, source, host, port, token, read_only, snapshot, config)
            )
            about = page.about()
            shown |= {"url": page.url, "port": page.port, "token": page.token}
            shown |= {"mode": about["mode"], "read_only": about["read_only"]}
            servers.append(page)
        _show(shown, as_json=as_json, snapshot=snapshot)
        undo.callback(notify, "STOPPING=1")
        notify("READY=1")
        while not stop.wait(_LOOK_S) and not any(one.wait(0) for one in servers):
            pass


def _check_options(
    clients: RocketmqOptions,
    socket: Path | None,
    tcp: str | None,
    token_file: Path | None,
    users: tuple[str, ...],
    group: str | None,
    metrics: str | None,
    *,
    tls: tuple[Path | None, Path | None],
    insecure: bool,
    ui: bool,
    is_served: bool,
    snapshot: bool,
) -> None:
    """Raise UsageError for options that have no effect together."""
    if not ui and not is_served:
        raise click.UsageError("wanted --socket, --tcp, --grpc or --ui")
    if is_served and snapshot:
        raise click.UsageError("--snapshot: a store that is not open cannot be served to programs")
    if tls.count(None) == 1:
        raise click.UsageError("wanted --tls-cert and --tls-key together")
    if tcp is None and token_file is not None:
        raise click.UsageError("--token-file: wanted --tcp with it")
    if tcp is None and clients.grpc is None and (tls != (None, None) or insecure):
        raise click.UsageError("--tls-cert, --insecure: wanted --tcp or --grpc with them")
    clients.check()
    if socket is None and (users or group is not None):
        raise click.UsageError("--user, --group: wanted --socket with them")
    if metrics is not None and not is_served:
        raise click.UsageError("--metrics: wanted --socket, --tcp or --grpc with it")


def _place(
    place: StorePlace, token_file: Path | None, tls_ca: Path | None, *, opens: bool
) -> StorePlace:
    """Return the store, with the files of the client if it is a served one.

    opens: whether there are options that need the store in this process.
    """
    scheme = str(place).partition("://")[0].lower() if isinstance(place, StoreUrl) else ""
    if tls_ca is not None and scheme != "tls":
        raise click.UsageError("--tls-ca: wanted tls:// in place of PATH with it")
    if isinstance(place, StoreUrl):
        if opens:
            raise click.UsageError(
                "PATH: an address in its place goes with --ui and --grpc, not with --socket, "
                "--tcp, --metrics or --snapshot"
            )
        if token_file is not None and scheme == "unix":
            raise click.UsageError("--token-file: wanted tcp:// or tls:// in place of PATH with it")
        return place._replace(token_file=token_file, tls_ca=tls_ca)
    return place


def _name_or_id(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdecimal() else text


@contextmanager
def _named_failure(shown: dict[str, Any]) -> Iterator[None]:
    """Give a failure of the store that was served an exit code of its own."""
    try:
        yield
    except FailedError as error:
        if not shown:  # it could not be opened
            raise
        raise CommandError(
            error.what,
            where=error.where,
            do="start it again: opening recovers the store. Look at the disk's own log, and at "
            "`timerstore verify PATH`",
            code=Exit.FAILED,
        ) from error


@contextmanager
def _page(
    start: Callable[..., Any],
    source: Path | TimerStore | ConnectedStore,
    host: str,
    port: int,
    token: str | None,
    read_only: bool,
    snapshot: bool,
    config: StoreConfig | None,
) -> Iterator[Any]:
    """Serve the dashboard of a path, or of a store that is open."""
    more: dict[str, Any] = {}
    if isinstance(source, Path):
        require(source, Kind.STORE, Kind.SHARDS)
        more = {"snapshot": snapshot, "config": config}
    with start(source, host, port, token, read_only=read_only, **more) as served:
        yield served


def _dashboard() -> Callable[..., Any]:
    # Loaded here: it needs starlette and uvicorn, which no other command does.
    try:
        start: Callable[..., Any] = importlib.import_module("timerstore.dashboard").start
    except ConfigError as error:
        raise CommandError(
            "the dashboard needs starlette and uvicorn, which are not installed",
            do="pip install '.[serve]' in a checkout",
        ) from error
    return start


def _metrics(address: str) -> Callable[[TimerStore], Any]:
    host, port = parse_host_port(address, "metrics")
    try:
        prometheus = importlib.import_module("timerstore.telemetry.prometheus")
    except ConfigError as error:
        raise CommandError(
            "--metrics needs prometheus_client, which is not installed",
            do="pip install '.[prometheus]' in a checkout",
        ) from error
    return lambda store: prometheus.serve(store, store.path.name, port=port, host=host)


def _show(shown: dict[str, Any], *, as_json: bool, snapshot: bool) -> None:
    if as_json:
        emit(shown)
    else:
        more = [shown[one] for one in ("metrics", "url") if one in shown]
        for url in (*shown.get("urls", ()), *more):
            say(url)
    if shown.get("mode") == "snapshot" and not snapshot:
        note("another process has the store open: showing a snapshot; search and cancel are off")
    if "url" in shown:
        note("anyone with this address has access while this command runs; Ctrl-C ends it")
    else:
        note("Ctrl-C ends it")
