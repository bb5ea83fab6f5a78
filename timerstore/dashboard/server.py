"""Start and stop the dashboard's server.

Closing ends the event streams, then the server, then the store if the server opened it.

Thread safety: uvicorn's event loop runs on a thread of its own. Calls into the store run in its
    thread pool.
Raises: ConfigError for invalid arguments or a port in use, and the errors of opening a store.
"""

import asyncio
import os
import secrets
import signal
import socket
import string
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from timerstore import store as single
from timerstore._engine.base.owner import Closing, close_at_exit, forked_error
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.snapshot.live_stats import look
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.storage.disk import Disk
from timerstore.api import SingleStoreApi
from timerstore.dashboard.app import App
from timerstore.dashboard.open_source import OpenSource, Store
from timerstore.dashboard.request_guard import host_check, is_loopback
from timerstore.dashboard.snapshot_source import SnapshotSource
from timerstore.dashboard.source import DashboardSource, Json
from timerstore.errors import ConfigError, LockedError, cannot_listen
from timerstore.shards import ShardedStore, cluster, open_shards
from timerstore.shards.kinds import Kind, kind_of
from timerstore.shards.shard_paths import ShardsTree
from timerstore.types.config import StoreConfig

TOKEN_CHARACTERS_MIN = 16
_TOKEN_CHARACTERS_MAX = 256
_TOKEN_BYTES = 32
_TOKEN_LETTERS = frozenset(string.ascii_letters + string.digits + "-._~")
_GOODBYE_S = 2
_LOOK_S = 0.2
_EVERY_S = (0.02, 60.0)
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to

Given = Store | str | os.PathLike[str]


class Served(Closing):
    """A running dashboard; `close` stops it."""

    def __init__(
        self, app: App, source: DashboardSource, host: str, at: socket.socket, token: str
    ) -> None:
        self._app = app
        self._source = source
        self._host = host
        self._pid = os.getpid()
        self._socket = at
        self.port: int = at.getsockname()[1]
        self.token = token
        config = uvicorn.Config(
            app.asgi,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GOODBYE_S,
        )
        self._server = uvicorn.Server(config)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="timerstore-serve", daemon=True)
        self.closing = ExitStack()
        """Resources to close after the last response."""

    @property
    def url(self) -> str:
        """The address of the page. It contains the token: keep it secret."""
        host = socket.gethostname() if self._host in _ANY else self._host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/?token={self.token}"

    def about(self) -> Json:
        """Return path, mode ("open" or "snapshot"), read_only and other constant facts."""
        return self._source.about()

    def start(self) -> None:
        """Start to serve requests."""
        close_at_exit(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` for the end; return whether it ended.

        Raises:
            FailedError: the store has failed. Close it, and open it again.
            OSError: the error of the server.
        """
        end_s = None if seconds is None else time.monotonic() + seconds
        while True:
            left_s = _LOOK_S if end_s is None else min(end_s - time.monotonic(), _LOOK_S)
            self._thread.join(max(left_s, 0))
            if self._error is not None:
                raise self._error
            if not self._thread.is_alive():
                return True
            self._source.check_alive()
            if end_s is not None and time.monotonic() >= end_s:
                return False

    def close(self) -> None:
        """Stop serving. A second call does nothing. Raises ForkedError in a forked child."""
        if os.getpid() != self._pid:
            raise forked_error(f"http://{self._host}:{self.port}/", self._pid)
        self._app.updates.end()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
        self.closing.close()


def start(
    store: Given,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    *,
    read_only: bool = False,
    snapshot: bool = False,
    config: StoreConfig | None = None,
    every_s: float = 1.0,
) -> Served:
    """Serve the dashboard of a store on a thread until it is closed.

    store: an open or connected store, or shards, which stay open; or a path, which is opened with
        `config` and delivers while it is served. If another process has it open, if a broker wrote
        it, or with `snapshot=True`, only its files are read: search and cancel are not available.
    port: 0 chooses a free port.
    token: 16 to 256 of the characters A-Z a-z 0-9 - . _ ~; None generates a random one. A client
        that knows it may cancel pending messages, unless `read_only`.
    host: an address that is not loopback requires a token. The connection is not encrypted.
    every_s: seconds between two updates of the page, 0.02 to 60.

    Raises:
        ConfigError: an argument is invalid, the port is in use, or no store is at the path.
    """
    token = _check(host, port, token, every_s)
    with ExitStack() as undo:
        at = undo.enter_context(_bound(host, port))
        source = _source(store, undo, read_only=read_only, snapshot=snapshot, config=config,
                         every_s=every_s)  # fmt: skip
        names = [socket.gethostname()] if host in _ANY else []
        app = App(source, token=token, is_host=host_check(host, names), every_s=every_s)
        served = Served(app, source, host, at, token)
        undo.callback(source.clock.subscribe(app.updates.notify))
        served.start()
        served.closing.push(undo.pop_all())
    return served


def run(
    store: Given,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    *,
    announce: Callable[[str], None] | None = None,
    **more: Any,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM. The arguments are those of `start`.

    announce: called with the URL; None writes it to standard output.
    """
    with _stopped_by_signals() as stopped, start(store, host, port, token, **more) as served:
        (announce or _write)(served.url)
        while not stopped.wait(0.2) and not served.wait(0):
            pass


def _write(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


@contextmanager
def _stopped_by_signals() -> Iterator[WakeEvent]:
    stopped = WakeEvent()  # a handler may set it inside its `wait`
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _check(host: Any, port: Any, token: Any, every_s: Any) -> str:
    """Return the token; raise ConfigError that names every invalid argument."""
    problems = []
    if not isinstance(host, str) or not host:
        problems.append(f"host: wanted a name or an address, got {host!r}")
    elif token is None and not is_loopback(host):
        problems.append(
            f"host: {host} is not loopback, so others can connect; give a token (the connection is "
            "not encrypted), or keep the default host and forward the port (ssh -L)"
        )
    if type(port) is not int or not 0 <= port <= 65_535:
        problems.append(f"port: wanted 0 (a free one) to 65535, got {port!r}")
    if token is not None and not _is_token(token):
        problems.append(
            f"token: wanted {TOKEN_CHARACTERS_MIN} to {_TOKEN_CHARACTERS_MAX} of A-Za-z0-9-._~"
        )
    low, high = _EVERY_S
    if type(every_s) not in (int, float) or not low <= every_s <= high:
        problems.append(f"every_s: wanted {low} to {high:g} s, got {every_s!r}")
    if problems:
        raise ConfigError(problems)
    return token or secrets.token_urlsafe(_TOKEN_BYTES)


def _is_token(token: object) -> bool:
    return (
        isinstance(token, str)
        and TOKEN_CHARACTERS_MIN <= len(token) <= _TOKEN_CHARACTERS_MAX
        and _TOKEN_LETTERS.issuperset(token)
    )


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, ValueError) as error:
        raise cannot_listen(host, port, error) from error


def _source(
    store: Given,
    undo: ExitStack,
    *,
    read_only: bool,
    snapshot: bool,
    config: StoreConfig | None,
    every_s: float,
) -> DashboardSource:
    if isinstance(store, SingleStoreApi | ShardedStore):
        if snapshot:
            raise ConfigError("snapshot: wanted a path, got an open store")
        return OpenSource(store, read_only=read_only, every_s=every_s)
    if not isinstance(store, str | os.PathLike):
        raise ConfigError(f"store: wanted a store or a path, got {type(store).__name__}")
    path = absolute_path("store", store)
    kind = kind_of(path)
    if kind not in (Kind.STORE, Kind.SHARDS):
        raise ConfigError(f"no store there; at {path}; wanted a store, or shards; got {kind}")
    stores = _stores_in(path, kind)
    # Opening a broker's store converts it, which a reader does not expect.
    is_brokers = any(look(one).is_brokers for one in stores.values())
    if not snapshot and not is_brokers:
        try:
            opened: Store = (
                open_shards(path, None, config)
                if kind is Kind.SHARDS
                else single.open(path, config)
            )
            undo.enter_context(opened)
            return OpenSource(opened, read_only=read_only, every_s=every_s)
        except LockedError:
            pass
    return SnapshotSource(path, stores, every_s=every_s, is_brokers=is_brokers)


def _stores_in(path: Path, kind: Kind) -> dict[int | None, Path]:
    if kind is Kind.STORE:
        return {None: path}
    count = cluster.require(Disk(), path).shard_count
    return {shard: ShardsTree(path).shard(shard) for shard in range(count)}
