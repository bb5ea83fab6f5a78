"""A server of one open store, on a thread with an event loop of its own.

Thread safety: any thread may start, ask and close it.
Invariants, with those of server_thread.py:
    1. `close` ends waiting calls, lets the others end, and sends their answers. The store stays
       open.
    2. A server whose store has failed answers no call with that failure: the clients look for the
       next server.
    3. The listening sockets are closed before connections end: no client waits for an answer of a
       server that ends.
    4. A server whose socket's file is gone or replaced ends within a few seconds.
Raises: ConfigError for an address that cannot be used, before the thread starts.
See also: docs/operations.md (Operating the server).
"""

import asyncio
import socket
import ssl
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from timerstore.aio import AsyncTimerStore
from timerstore.errors import (
    FailedError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net.acceptor import Acceptor
from timerstore.net.access import ServerAccess
from timerstore.net.connections import Connections
from timerstore.net.endpoints import Endpoint, close_copies
from timerstore.net.fair_pool import FairPool
from timerstore.net.listening import forget_unix, identity_of
from timerstore.net.server_connection import ServerConnection
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits
from timerstore.net.server_thread import ServerThread
from timerstore.store import TimerStore

_GOODBYE_S = 5.0
_FAILED_GOODBYE_S = 1.0
_LOOK_S = 1.0
"""Time between two looks at the files of the sockets."""


class Listener(NamedTuple):
    """A socket that listens, and the clients that may connect to it."""

    socket: socket.socket
    access: ServerAccess
    tls: ssl.SSLContext | None = None
    path: Path | None = None
    identity: tuple[int, int] = (0, 0)
    """Device and inode of the file of a unix socket. No other file has them while the socket is
    open, even if this one was removed."""


class StoreServer(ServerThread):
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
        super().__init__(store, "timerstore-net")
        self._listeners = listeners
        self._names = [str(_endpoint_of(one)) for one in listeners]
        self._limits = limits
        self._workers = workers
        self._counters = ServerCounters()
        self._connections = Connections(limits, self._counters)

    @property
    def urls(self) -> list[str]:
        """The addresses for `timerstore.connect`."""
        return list(self._names)

    def stats(self) -> dict[str, int]:
        """Return the counters of the server by name; docs/metrics.md describes them."""
        return self._counters.values()

    def _release(self) -> None:
        """Remove the files of the sockets and close these. A second call does nothing."""
        for one in self._listeners:
            if one.socket.fileno() < 0:
                continue
            if one.path is not None:  # first: the file of a closed socket may have a new owner
                forget_unix(one.path, one.identity)
            one.socket.close()

    async def _serve(self, stop: asyncio.Event) -> None:
        pool = FairPool(self._workers, "timerstore-net", asyncio.get_running_loop())
        assert self._store is not None, "a server of frames has the store open"
        store = AsyncTimerStore(self._store, pool, may_block=True)
        acceptors = [self._acceptor(store, pool, one) for one in self._listeners]
        try:
            self._ready.set()
            while not stop.is_set():
                self._check_files()
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _LOOK_S)
        finally:
            for acceptor in acceptors:
                acceptor.stop()
            self._release()
            for acceptor in acceptors:
                await acceptor.close()
            await self._end_connections()
            store.detach()  # blocks the loop, which nothing needs any more

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
        """Close the copies of all sockets."""
        self._is_closed = True
        numbers = [one.socket.fileno() for one in self._listeners]
        close_copies([*numbers, *(one.fileno() for one in self._connections)])


async def _all_of(
    work: Iterable[Coroutine[Any, Any, None]], timeout_s: float | None = None
) -> None:
    """Return when all have ended, or after a time."""
    if tasks := [asyncio.ensure_future(one) for one in work]:
        await asyncio.wait(tasks, timeout=timeout_s)


def _endpoint_of(one: Listener) -> Endpoint:
    if one.path is not None:
        return Endpoint(one.path)
    host, port = one.socket.getsockname()[:2]
    return Endpoint(None, host, port, one.tls is not None)
