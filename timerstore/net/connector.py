"""Find the server of a client for threads, at the beginning and whenever the connection was lost.

Thread safety: any thread. One of them connects; the others wait for it.
Locking: `_lock` while a connection is made.
Invariants: a forked child never uses its parent's connection.
Raises: UnavailableError if no server was found in time, AccessError, ProtocolError, ClosedError.
"""

import os
import random
import ssl
import threading
import time
import weakref

from timerstore._engine.base.owner import Owner
from timerstore.errors import ClosedError, TimerStoreError, UnavailableError
from timerstore.net.channel import Channel
from timerstore.net.endpoints import Endpoint
from timerstore.net.wire_messages import Hello

_PAUSE_S = 0.01
_CONNECT_S = 10.0  # one attempt

_all: "weakref.WeakSet[Connector]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for one in list(_all):
        one.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)


class Connector(Owner):
    """The present connection to one server."""

    longest_pause_s = 0.5
    """Seconds between two attempts, at most."""

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
        now = time.monotonic()
        deadline = now + self.retry_for_s if deadline_s is None else deadline_s
        if not self._lock.acquire(timeout=max(deadline - now, 0.001)):
            raise self._unavailable("another thread connects")
        try:
            found = self._channel
            if found is None or found.is_lost or self._is_closed:
                if found is not None:
                    found.close()
                    self._channel = None
                found = self._channel = self._connected(deadline)
            return found
        finally:
            self._lock.release()

    def _connected(self, deadline: float) -> Channel:
        pause = _PAUSE_S
        while True:
            if self._is_closed:
                raise ClosedError("the store is closed", where=self.endpoint)
            try:
                return self._attempt()
            except (OSError, UnavailableError) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise self._unavailable(error) from error
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._unavailable(error) from error
            time.sleep(min(pause * random.uniform(0.5, 1.0), left))  # noqa: S311 - no secret
            pause = min(pause * 2, self.longest_pause_s)

    def _attempt(self) -> Channel:
        """Try once. OSError or UnavailableError if a later attempt may succeed."""
        return Channel(self.endpoint, self._hello, self._tls, _CONNECT_S)

    def _unavailable(self, why: object) -> TimerStoreError:
        return UnavailableError(
            f"no server was found in {self.retry_for_s:g} s ({why})", where=self.endpoint
        )

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
