"""Find the server of a client for threads, at the beginning and whenever the connection was lost.

Thread safety: any thread. One of them connects; the others wait for it.
Locking: `_lock` while a connection is made.
Invariants: a forked child never uses its parent's connection.
Raises: UnavailableError if no server was found in time, AccessError, ProtocolError, ClosedError.
"""

import os
import ssl
import time
import weakref

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import ClosedError, UnavailableError
from timerstore.net.attempt_limits import (
    LONGEST_PAUSE_S,
    ClientTimes,
    ConnectLimit,
    check_without_tls,
)
from timerstore.net.channel import Channel
from timerstore.net.endpoints import Endpoint
from timerstore.net.surviving_lock import SurvivingLock
from timerstore.net.wire_messages import Hello

_all: "weakref.WeakSet[Connector]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for one in list(_all):
        one.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)


class Connector(NotCopyable):
    """The present connection to one server."""

    longest_pause_s = LONGEST_PAUSE_S

    def __init__(
        self, endpoint: Endpoint, hello: Hello, tls: ssl.SSLContext | None, times: ClientTimes
    ) -> None:
        self.endpoint = endpoint
        self.times = times
        self._hello = hello
        self._tls = tls
        self._lock = SurvivingLock()
        self._channel: Channel | None = None
        self._is_closed = False
        _all.add(self)

    def connect(self) -> None:
        """Make the first connection, in the time for it."""
        self.channel(time.monotonic() + self.times.connect_timeout_s)

    def channel(self, deadline_s: float | None = None) -> Channel:
        """Return the connection, after making one if it is lost or was not made yet.

        `deadline_s`: the end of the attempts on the monotonic clock; None: `retry_for_s` from now.
        """
        if (found := self._usable()) is not None:
            return found
        if deadline_s is None:
            deadline_s = time.monotonic() + self.times.retry_for_s
        limit = ConnectLimit(
            deadline_s, self.longest_pause_s, self.times.call_timeout_s, self.endpoint
        )

        def replace() -> None:
            if self._usable() is None:
                self._channel = self._connected(limit)
                if self._is_closed:  # since then
                    self._channel.close()

        while (found := self._usable()) is None:
            if not self._lock.run(replace, max(limit.left_s, 0.001)):
                raise limit.unavailable("another thread connects")
        return found

    def _usable(self) -> Channel | None:
        found = self._channel
        return None if found is None or found.is_lost or self._is_closed else found

    def _connected(self, limit: ConnectLimit) -> Channel:
        while True:
            if self._is_closed:
                raise ClosedError("the store is closed", where=self.endpoint)
            try:
                return self._attempt(limit.attempt_s)
            except (OSError, UnavailableError) as error:
                if limit.may_need_tls(error):
                    check_without_tls(self.endpoint, limit.attempt_s)
                pause_s = limit.pause_s(error)
            time.sleep(pause_s)

    def _attempt(self, timeout_s: float) -> Channel:
        """Try once. OSError or UnavailableError if a later attempt may succeed."""
        return Channel(self.endpoint, self._hello, self._tls, timeout_s, self.times.call_timeout_s)

    def close(self) -> None:
        """End the connection. Running and later calls raise ClosedError."""
        self._is_closed = True
        if (found := self._channel) is not None:
            found.close()

    def forget_in_child(self) -> None:
        """Drop the parent's connection in a forked child."""
        self._lock = SurvivingLock()
        if (found := self._channel) is not None:
            found.forget_in_child()
            self._channel = None
