"""Counts and times of calls, by method and code.

Thread safety: only the server's loop adds; any thread may read.
"""

from typing import NamedTuple

from timerstore._engine.base.owner import NotCopyable

UNAVAILABLE = "UNAVAILABLE"
CANCELLED = "CANCELLED"


class CallCount(NamedTuple):
    """Calls of one method that ended with one code."""

    method: str
    code: str
    """A name of the protocol, such as OK. UNAVAILABLE: the server was closing, or the store out of
    reach. CANCELLED: the client ended the call."""
    calls: int
    seconds: float
    """Their time together. It includes the waiting of polls, and the life of Telemetry streams."""


class CallCounts(NotCopyable):
    """The counts of one server."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], CallCount] = {}

    def add(self, method: str, code: str, seconds: float) -> None:
        """Count a call."""
        before = self._found.get((method, code))
        calls, total = (before.calls, before.seconds) if before is not None else (0, 0.0)
        self._found[method, code] = CallCount(method, code, calls + 1, total + seconds)

    def values(self) -> list[CallCount]:
        """Return all, by method and code."""
        return sorted(self._found.copy().values())
