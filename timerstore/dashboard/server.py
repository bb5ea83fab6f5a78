"""Socket, thread, start and stop.

Threads:  one of its own, in which uvicorn's loop runs; its pool asks the store.
Holds:    closing ends the streams, then the server, then the store where it was opened here.
Fails:    ConfigError on what was given wrongly, a port in use among it; as opening does.
"""

import asyncio
import os
import secrets
import signal
import socket
import string
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from timerstore import store as single
from timerstore._engine.base.closing import Closing, close_at_exit, forked_error
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.paths import absolute_path
from timerstore._engine.tables.store_summary import look
from timerstore.config import StoreConfig
from timerstore.dashboard.app import App
from timerstore.dashboard.open_source import OpenSource, Store
from timerstore.dashboard.request_guard import host_check, is_loopback
from timerstore.dashboard.snapshot_source import SnapshotSource
from timerstore.dashboard.source import Json, Source
from timerstore.errors import ConfigError, LockedError, cannot_listen
from timerstore.shards import ShardedStore, cluster, open_shards
from timerstore.shards.kinds import Kind, kind_of
from timerstore.shards.shard_paths import ShardsTree
from timerstore.store import TimerStore

TOKEN_CHARACTERS_MIN = 16
_TOKEN_CHARACTERS_MAX = 256
_TOKEN_BYTES = 32
_TOKEN_LETTERS = frozenset(string.ascii_letters + string.digits + "-._~")
_GOODBYE_S = 2
_EVERY_S = (0.02, 60.0)
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - told apart, not bound to

Given = Store | str | os.PathLike[str]


class Served(Closing):
    """A page that is served; ends with `close`."""

    def __init__(self, app: App, source: Source, host: str, at: socket.socket, token: str) -> None:
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
        """What is closed with it, once nobody is answered any more."""

    @property
    def url(self) -> str:
        """Where the page is, with its token: a secret."""
        host = socket.gethostname() if self._host in _ANY else self._host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/?token={self.token}"

    def about(self) -> Json:
        """What does not change: path, mode ("open", or "beside" its owner), read_only."""
        return self._source.about()

    def start(self) -> None:
        """Begin to answer."""
        close_at_exit(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            self._error = error

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end, at most so long; whether it is over. Raises what it ended with."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def close(self) -> None:
        """Serve no more; a second call does nothing. ForkedError in a forked child."""
        if os.getpid() != self._pid:
            raise forked_error(f"http://{self._host}:{self.port}/", self._pid)
        self._app.bell.end()
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
    beside: bool = False,
    config: StoreConfig | None = None,
    every_s: float = 1.0,
) -> Served:
    """Serve the page of a store, in a thread, until it is closed.

    `store`: one that is open here, shards too, which stays open; or a path, which is opened with
    `config` and delivers while it is served. Where another process has it open, or with `beside`,
    its files are looked at beside that one, as are a broker's: nothing can be searched or
    cancelled then. `port` 0: a
    free one. `token`: 16 characters and more of those that a URL may have; none: a random one. Who
    knows it may cancel what waits, unless `read_only`. A `host` that is not loopback wants a token;
    nothing is encrypted. `every_s`: how often the page gets numbers, 0.02 to 60 s.
    Raises ConfigError, also where the port is taken and where there is no store.
    """
    token = _check(host, port, token, every_s)
    with ExitStack() as undo:
        at = undo.enter_context(_bound(host, port))
        source = _source(store, undo, read_only=read_only, beside=beside, config=config,
                         every_s=every_s)  # fmt: skip
        names = [socket.gethostname()] if host in _ANY else []
        app = App(source, token=token, is_host=host_check(host, names), every_s=every_s)
        served = Served(app, source, host, at, token)
        undo.callback(source.clock.subscribe(app.bell.ring))
        served.start()
        served.closing.push(undo.pop_all())
    return served


def run(
    store: Given,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    *,
    told: Callable[[str], None] | None = None,
    **more: Any,
) -> None:
    """Serve the page of a store until Ctrl-C or SIGTERM, which close it; all else as `start`.

    `told` is given the URL; None: it is written to standard output.
    """
    with _stopped_by_signals() as stopped, start(store, host, port, token, **more) as served:
        (told or _write)(served.url)
        while not stopped.wait(0.2) and not served.wait(0):
            pass


def _write(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    stopped = threading.Event()
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
    """Raise ConfigError with all that is wrong; the token."""
    problems = []
    if not isinstance(host, str) or not host:
        problems.append(f"host: wanted a name or an address, got {host!r}")
    elif token is None and not is_loopback(host):
        problems.append(
            f"host: {host} is not loopback: others get there; give a token, too (nothing is "
            "encrypted), or leave host as it is and forward the port (ssh -L)"
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
    beside: bool,
    config: StoreConfig | None,
    every_s: float,
) -> Source:
    if isinstance(store, TimerStore | ShardedStore):
        if beside:
            raise ConfigError("beside: wanted a path, got a store that is open here")
        return OpenSource(store, read_only=read_only, every_s=every_s)
    if not isinstance(store, str | os.PathLike):
        raise ConfigError(f"store: wanted a store or a path, got {type(store).__name__}")
    path = absolute_path("store", store)
    kind = kind_of(path)
    if kind not in (Kind.STORE, Kind.SHARDS):
        raise ConfigError(f"no store there; at {path}; wanted a store, or shards; got {kind}")
    stores = _stores_in(path, kind)
    # Opening a broker's store takes it over: that is not what who looks at it wants.
    is_brokers = any(look(one).is_brokers for one in stores.values())
    if not beside and not is_brokers:
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
