"""The open connections of a server, and the limits on their number.

    accepted --> greeting (no first message accepted yet) --> greeted --> ended

A client needs no token to open a connection and to say nothing. So at most `greeting_max`
connections greet: another one closes the oldest of them. A client that knows the server's rules
greets at once, and is gone from the line long before.

Descriptors are numbered from the lowest free one. So the number of a new connection tells how many
the process has in use, whatever for. A quarter is kept back for the store; rejected connections
may take half of that quarter until they have the error.

Thread safety: runs on the server's loop.
"""

import resource
from collections.abc import Iterator
from typing import Protocol

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import FailedError, UnavailableError
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits

REJECTING_MAX = 64
"""Connections above a limit that get the error. Others are closed at once."""


def descriptors_end(kept_part: int = 4) -> int:
    """Return the descriptor at which the last n-th part begins of those that there may be."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - soft // kept_part if soft != resource.RLIM_INFINITY else 1 << 62


class Connection(Protocol):
    """A connection, as far as this file uses it."""

    def fileno(self) -> int:
        """Return the number of the socket; -1 if it is closed."""

    def drop(self) -> None:
        """End the connection: another client greets."""

    def fail(self, error: FailedError) -> None:
        """Have the client look for another server: the store has failed."""

    def abort(self) -> None:
        """End the connection at once. Answers that were not sent yet are lost."""

    async def finish(self, seconds: float) -> None:
        """End waits, let other calls end for a limited time, send the answers, and close."""

    async def ended(self) -> None:
        """Return when everything that belongs to the connection has ended."""


class Connections(NotCopyable):
    """The connections of all sockets of a server."""

    def __init__(self, limits: ServerLimits, counters: ServerCounters) -> None:
        self._limits = limits
        self._counters = counters
        self._all: set[Connection] = set()
        self._counted: set[Connection] = set()
        self._greeting: dict[Connection, None] = {}  # the oldest first

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._all))

    def rejection(self, descriptor: int) -> UnavailableError | None:
        """Return why a new connection cannot be taken, or None."""
        limit, below = self._limits.connections_max, descriptors_end()
        if len(self._counted) < limit and descriptor < below:
            return None
        wanted = f"at most {limit}" if descriptor < below else f"descriptors below {below}"
        return UnavailableError("the server accepts no more connections", wanted=wanted)

    def has_room_for_rejected(self, descriptor: int) -> bool:
        """Return whether a rejected connection may stay until it has the error."""
        rejected_count = len(self._all) - len(self._counted)
        return rejected_count < REJECTING_MAX and descriptor < descriptors_end(8)

    def add(self, one: Connection, *, is_counted: bool) -> None:
        """Add a connection that was accepted. `is_counted`: it is not rejected."""
        self._all.add(one)
        if not is_counted:
            return
        self._counted.add(one)
        self._greeting[one] = None
        self._counters.net_connections += 1
        self._counters.net_accepted_connections += 1
        if len(self._greeting) > self._limits.greeting_max:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.drop()

    def greeted(self, one: Connection) -> None:
        """Note that the first message of a connection was accepted."""
        self._greeting.pop(one, None)

    def end(self, one: Connection) -> None:
        """Count no more a connection whose socket is closed."""
        self._greeting.pop(one, None)
        if one in self._counted:
            self._counted.discard(one)
            self._counters.net_connections -= 1

    def remove(self, one: Connection) -> None:
        """Forget a connection whose calls have ended, too."""
        self._all.discard(one)
