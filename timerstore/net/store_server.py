"""A server of one open store, on a thread with an event loop of its own.

Thread safety: any thread may start, ask and close it.
Invariants:
    1. `close` ends waiting calls, lets the others end, and sends their answers. The store stays
       open.
    2. The store is open while the server runs: the close of the store closes its servers first.
    3. A server whose store has failed ends by itself, and answers no call with that failure: the
       clients look for the next server.
    4. The listening sockets are closed before connections end: no client waits for an answer of a
       server that ends.
    5. A server whose socket's file is gone or replaced ends within a few seconds.
    6. A forked child has no server: its copies of the sockets are closed.
Raises: ConfigError for an address that cannot be used, before the thread starts.
See also: docs/operations.md (Operating the server).
"""

import asyncio
import logging
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.base.owner import close_at_exit, forked_error
from timerstore._engine.calls.open_store import AttachedServer
from timerstore.aio import AsyncTimerStore
from timerstore.errors import (
    BusyError,
    ConfigError,
    FailedError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net.acceptor import Acceptor
from timerstore.net.access import ServerAccess
from timerstore.net.connections import Connections
from timerstore.net.endpoints import Endpoint
from timerstore.net.fair_pool import FairPool
from timerstore.net.listening import forget_unix, identity_of
from timerstore.net.server_connection import ServerConnection
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits
from timerstore.store import TimerStore

_log = logging.getLogger(__name__)
_GOODBYE_S = 5.0
_FAILED_GOODBYE_S = 1.0
_LOOK_S = 1.0
"""Time between two looks at the files of the sockets."""

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
    identity: tuple[int, int] = (0, 0)
    """Device and inode of the file of a unix socket. No other file has them while the socket is
    open, even if this one was removed."""


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
        self._names = [str(_endpoint_of(one)) for one in listeners]
        self._limits = limits
        self._workers = workers
        self._pid = os.getpid()
        self._counters = ServerCounters()
        self._connections = Connections(limits, self._counters)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_closed = False
        self._reason: TimerStoreError | None = None  # why the server ends by itself
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="timerstore-net", daemon=True)

    def start(self) -> None:
        """Begin to accept connections.

        Raises:
            ClosedError: the store is closed.
            BusyError: the operating system has no more threads.
        """
        try:
            self._store._attach_server(self)
            _start_thread(self._thread, self._store.path)
        except BaseException:
            self._store._detach_server(self)
            self._close_listeners()
            raise
        close_at_exit(self)
        _started.add(self)
        self._ready.wait()
        if self._error is not None and self._reason is None:
            raise self._error

    @property
    def urls(self) -> list[str]:
        """The addresses for `timerstore.connect`."""
        return list(self._names)

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended, by itself or by `close`."""
        return not self._thread.is_alive()

    def stats(self) -> dict[str, int]:
        """Return the counters of the server by name; docs/metrics.md describes them."""
        return self._counters.values()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` for the end of the server; return whether it ended.

        Raises:
            FailedError: the server has ended because its store failed. Close the store, and open it
                again: opening recovers it.
            UnavailableError: the server has ended because the file of its socket was removed or
                replaced, so that no client finds it. The store is open.
        """
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
            self._request_end()
        if self._thread.ident is not None:
            self._thread.join()

    def store_failed(self, error: FailedError) -> None:
        """End: the store has failed. From any thread; `wait` raises the error."""
        if self._reason is None:
            self._reason = error
        self._request_end()

    def _request_end(self) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(stop.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `wait` and `start` raise it
            self._error = error
            _log.error("the server %s has ended: %s", " ".join(self._names), error)
        finally:
            self._ready.set()
            self._store._detach_server(self)
            self._close_listeners()

    def _close_listeners(self) -> None:
        """Remove the files of the sockets and close these. A second call does nothing."""
        for one in self._listeners:
            if one.socket.fileno() < 0:
                continue
            if one.path is not None:  # first: the file of a closed socket may have a new owner
                forget_unix(one.path, one.identity)
            one.socket.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        pool = FairPool(self._workers, "timerstore-net", self._loop)
        store = AsyncTimerStore(self._store, pool, may_block=True)
        acceptors = [self._acceptor(store, pool, one) for one in self._listeners]
        if self._is_closed or self._reason is not None:  # before there was a loop to tell
            self._stop.set()
        try:
            self._ready.set()
            while not self._stop.is_set():
                self._check_files()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _LOOK_S)
        finally:
            for acceptor in acceptors:
                acceptor.stop()
            self._close_listeners()
            for acceptor in acceptors:
                await acceptor.close()
            await self._end_connections()
            store.detach()  # blocks the loop, which nothing needs any more
        if self._reason is not None:
            raise self._reason

    def _check_files(self) -> None:
        """End if clients cannot find the server any more: the file of a socket is another one."""
        for one in self._listeners:
            if one.path is not None and identity_of(one.path) != one.identity:
                self._reason = UnavailableError(
                    "the server has ended, as the file of its socket was removed or replaced",
                    where=one.path,
                )
                self._request_end()

    def _acceptor(self, store: AsyncTimerStore, pool: FairPool, listener: Listener) -> Acceptor:
        limits, counters, connections = self._limits, self._counters, self._connections

        def connection(one: socket.socket, rejected: TimerStoreError | None) -> ServerConnection:
            return ServerConnection(
                store, limits, counters, listener.access, pool, connections, one, rejected
            )

        return Acceptor(listener.socket, listener.tls, limits, counters, connections, connection)

    async def _end_connections(self) -> None:
        goodbye_s = _GOODBYE_S
        if isinstance(self._reason, FailedError):
            goodbye_s = _FAILED_GOODBYE_S
            for one in self._connections:
                one.fail(self._reason)
        else:
            await _all_of(one.finish(goodbye_s) for one in self._connections)
        await _all_of((one.ended() for one in self._connections), goodbye_s)
        for one in self._connections:  # its client does not read, or does not end TLS
            one.abort()
        await _all_of((one.ended() for one in self._connections), goodbye_s)

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


async def _all_of(
    work: Iterable[Coroutine[Any, Any, None]], timeout_s: float | None = None
) -> None:
    """Return when all have ended, or after a time."""
    if tasks := [asyncio.ensure_future(one) for one in work]:
        await asyncio.wait(tasks, timeout=timeout_s)


def _start_thread(thread: threading.Thread, where: Path) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        raise BusyError(
            f"the thread of a server could not be started: {error}", where=where
        ) from error


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
