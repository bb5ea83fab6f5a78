"""A clock with manual wall time and real monotonic time, for a store with services in threads.

Messages become due when the benchmark sets the clock. Syncs and checkpoints run as in production.
"""

from __future__ import annotations

import time

from timerstore.testing import ManualClock


class TurnedClock(ManualClock):
    """A ManualClock whose monotonic time is real, so that waits take real time."""

    __slots__ = ()

    @property
    def monotonic_ns(self) -> int:
        """Return the monotonic time of the machine."""
        return time.monotonic_ns()
