"""Accept the connections of one listening socket, and count each of them from then on.

Thread safety: runs on the server's loop.
Invariants:
    1. A connection counts before its TLS handshake, so a silent client takes one of
       `connections_max` until the handshake ends or its time is over.
    2. Above a limit, a few connections are open to get the error. Others are closed at once.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import TimerStoreError
from timerstore.net.connections import Connections
from timerstore.net.server_connection import ServerConnection
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits

_log = logging.getLogger(__name__)
_PAUSE_S = 1.0  # without descriptors or memory for another connection


class Acceptor(NotCopyable):
    """Accepts connections until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        limits: ServerLimits,
        counters: ServerCounters,
        connections: Connections,
        make: Callable[[socket.socket, TimerStoreError | None], ServerConnection],
    ) -> None:
        """`make`: returns the connection of a socket, and gets the reason to reject it, if any."""
        self._listening = listening
        self._tls = tls
        self._limits = limits
        self._counters = counters
        self._connections = connections
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            one, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            _log.exception("the server cannot accept a connection; it tries again")
            self._loop.remove_reader(self._listening)
            self._pause = self._loop.call_later(_PAUSE_S, self._listen)
            return
        rejected = self._connections.rejection(one.fileno())
        if rejected and not self._connections.has_room_for_rejected(one.fileno()):
            self._counters.net_rejected_connections += 1
            one.close()
            return
        one.setblocking(False)
        task = self._loop.create_task(self._start(one, self._make(one, rejected)))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, one: socket.socket, connection: ServerConnection) -> None:
        timeout_s = None if self._tls is None else float(self._limits.hello_s)
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, one, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:
            _log.debug("a handshake failed: %s", error)
            self._counters.net_broken_connections += 1
            connection.forget()
        except BaseException:
            connection.forget()
            raise

    def stop(self) -> None:
        """Accept no more. The socket may be closed then."""
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()

    async def close(self) -> None:
        """End the handshakes."""
        await asyncio.sleep(0)  # a task that is cancelled before its first step forgets nothing
        for task in self._starting:
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
