"""A clock whose wall time is turned by hand, and whose monotonic time runs.

For a store whose services have threads: what is due comes when it is wanted, syncs and checkpoints
come as often as in production.
"""

from __future__ import annotations

import time

from timerstore.testing import ManualClock


class TurnedClock(ManualClock):
    """Turned like a ManualClock; waits as long as it says."""

    __slots__ = ()

    @property
    def monotonic_ns(self) -> int:
        """The machine's."""
        return time.monotonic_ns()
