"""A server of one open store, on a thread with an event loop of its own.

Thread safety: any thread may start, ask and close it.
Invariants:
    1. `close` ends waiting calls, lets the others end, and sends their answers. The store stays
       open.
    2. The store is open while the server runs: the close of the store closes its servers first.
    3. A forked child has no server: its copies of the sockets are closed.
Raises: ConfigError for an address that cannot be used, before the thread starts.
See also: docs/operations.md (Operating the server).
"""

import asyncio
import os
import socket
import ssl
import threading
import weakref
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.base.closing import close_at_exit, forked_error
from timerstore._engine.calls.open_store import AttachedServer
from timerstore.aio import AsyncTimerStore
from timerstore.errors import ConfigError, TimerStoreError
from timerstore.net.acceptor import Acceptor
from timerstore.net.access import ServerAccess
from timerstore.net.connections import Connections
from timerstore.net.endpoints import Endpoint
from timerstore.net.fair_pool import FairPool
from timerstore.net.listening import forget_unix
from timerstore.net.server_connection import ServerConnection
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits
from timerstore.store import TimerStore

_GOODBYE_S = 5.0

_started: "weakref.WeakSet[StoreServer]" = weakref.WeakSet()


def _close_in_child() -> None:
    for one in list(_started):
        one._forget_in_child()
    _started.clear()


os.register_at_fork(after_in_child=_close_in_child)


class Listener(NamedTuple):
    """A socket that listens, and the clients that may connect to it."""

    socket: socket.socket
    access: ServerAccess
    tls: ssl.SSLContext | None = None
    path: Path | None = None
    inode: int = 0


class StoreServer(AttachedServer):
    """A running server; `timerstore.net.serve` returns it.

    Close it, or use `with`. The close of its store closes it, too.
    """

    def __init__(
        self,
        store: TimerStore,
        listeners: list[Listener],
        limits: ServerLimits,
        workers: int,
    ) -> None:
        self._store = store
        self._listeners = listeners
        self._limits = limits
        self._workers = workers
        self._pid = os.getpid()
        self._counters = ServerCounters()
        self._connections = Connections(limits, self._counters)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_closed = False
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="timerstore-net", daemon=True)

    def start(self) -> None:
        """Begin to accept connections. Raise ClosedError if the store is closed."""
        try:
            self._store._attach_server(self)
        except TimerStoreError:
            self._close_listeners()
            raise
        close_at_exit(self)
        _started.add(self)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    @property
    def urls(self) -> list[str]:
        """The addresses for `timerstore.connect`."""
        return [str(_endpoint_of(one)) for one in self._listeners]

    def stats(self) -> dict[str, int]:
        """Return the counters of the server by name; docs/metrics.md describes them."""
        return self._counters.values()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` for the end; return whether it ended. Raise the server's error."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop: end waiting calls, let the others end, send their answers. The store stays open."""
        if os.getpid() != self._pid:
            raise forked_error("the server", self._pid)
        if not self._is_closed:
            self._is_closed = True
            loop, stop = self._loop, self._stop
            if loop is not None and stop is not None and self._thread.is_alive():
                loop.call_soon_threadsafe(stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `wait` and `start` raise it
            self._error = error
        finally:
            self._ready.set()
            self._store._detach_server(self)
            self._close_listeners()

    def _close_listeners(self) -> None:
        for one in self._listeners:
            one.socket.close()
            if one.path is not None:
                forget_unix(one.path, one.inode)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        pool = FairPool(self._workers, "timerstore-net", self._loop)
        store = AsyncTimerStore(self._store, pool, may_block=True)
        acceptors = [self._acceptor(store, pool, one) for one in self._listeners]
        try:
            self._ready.set()
            await self._stop.wait()
        finally:
            for acceptor in acceptors:
                await acceptor.close()
            await self._end_connections()
            store.detach()  # blocks the loop, which nothing needs any more

    def _acceptor(self, store: AsyncTimerStore, pool: FairPool, listener: Listener) -> Acceptor:
        limits, counters, connections = self._limits, self._counters, self._connections

        def connection(one: socket.socket, rejected: TimerStoreError | None) -> ServerConnection:
            return ServerConnection(
                store, limits, counters, listener.access, pool, connections, one, rejected
            )

        return Acceptor(listener.socket, listener.tls, limits, counters, connections, connection)

    async def _end_connections(self) -> None:
        open_ones = list(self._connections)
        if open_ones:
            await asyncio.wait([asyncio.ensure_future(one.finish(_GOODBYE_S)) for one in open_ones])
            await asyncio.wait(
                [asyncio.ensure_future(one.ended()) for one in open_ones], timeout=_GOODBYE_S
            )

    def _forget_in_child(self) -> None:
        """Close the copies of all sockets. The numbers stay taken: the loop's objects, of which the
        child has copies as well, close them later.
        """
        self._is_closed = True
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        numbers = [one.socket.fileno() for one in self._listeners]
        for number in (*numbers, *(one.fileno() for one in self._connections)):
            if number >= 0:
                os.dup2(nothing, number, inheritable=False)
        os.close(nothing)

    def __repr__(self) -> str:
        return f"<StoreServer {' '.join(self.urls)}>"


def _endpoint_of(one: Listener) -> Endpoint:
    if one.path is not None:
        return Endpoint(one.path)
    host, port = one.socket.getsockname()[:2]
    return Endpoint(None, host, port, one.tls is not None)


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert, tls_key: cannot be used ({error}); at {cert}") from error
    return context
