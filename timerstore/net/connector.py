"""Find the server of a client for threads, at the beginning and whenever the connection was lost.

Thread safety: any thread. One of them connects; the others wait for it.
Locking: `_lock` while a connection is made.
Invariants: a forked child never uses its parent's connection.
Raises: UnavailableError if no server was found in time, AccessError, ProtocolError, ClosedError.
"""

import os
import ssl
import threading
import time
import weakref

from timerstore._engine.base.owner import Owner
from timerstore.errors import ClosedError, UnavailableError
from timerstore.net.attempt_limits import LONGEST_PAUSE_S, ConnectLimit
from timerstore.net.channel import Channel
from timerstore.net.endpoints import Endpoint
from timerstore.net.wire_messages import Hello

CONNECT_S = 10.0
"""Seconds for one attempt to connect."""

_all: "weakref.WeakSet[Connector]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for one in list(_all):
        one.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)


class Connector(Owner):
    """The present connection to one server."""

    longest_pause_s = LONGEST_PAUSE_S

    def __init__(
        self, endpoint: Endpoint, hello: Hello, tls: ssl.SSLContext | None, retry_for_s: float
    ) -> None:
        self.endpoint = endpoint
        self._hello = hello
        self._tls = tls
        self.retry_for_s = retry_for_s
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._is_closed = False
        _all.add(self)

    def channel(self, deadline_s: float | None = None) -> Channel:
        """Return the connection, after making one if it is lost or was not made yet.

        `deadline_s`: the end of the attempts on the monotonic clock; None: `retry_for_s` from now.
        """
        found = self._channel
        if found is not None and not found.is_lost and not self._is_closed:
            return found
        limit = ConnectLimit(self.retry_for_s, self.longest_pause_s, self.endpoint, deadline_s)
        if not self._lock.acquire(timeout=max(limit.left_s, 0.001)):
            raise limit.unavailable("another thread connects")
        try:
            found = self._channel
            if found is None or found.is_lost or self._is_closed:
                if found is not None:
                    found.close()
                    self._channel = None
                found = self._channel = self._connected(limit)
            return found
        finally:
            self._lock.release()

    def _connected(self, limit: ConnectLimit) -> Channel:
        while True:
            if self._is_closed:
                raise ClosedError("the store is closed", where=self.endpoint)
            try:
                return self._attempt()
            except (OSError, UnavailableError) as error:
                pause_s = limit.pause_s(error)
            time.sleep(pause_s)

    def _attempt(self) -> Channel:
        """Try once. OSError or UnavailableError if a later attempt may succeed."""
        return Channel(self.endpoint, self._hello, self._tls, CONNECT_S)

    def close(self) -> None:
        """End the connection. Running and later calls raise ClosedError."""
        self._is_closed = True
        if (found := self._channel) is not None:
            found.close()

    def forget_in_child(self) -> None:
        """Drop the parent's connection in a forked child."""
        self._lock = threading.Lock()
        if (found := self._channel) is not None:
            found.forget_in_child()
            self._channel = None
