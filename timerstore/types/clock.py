"""The two clocks of a store. Wall time decides deliveries, monotonic time decides waits.

Thread safety: any thread may read a clock.
Invariants: `monotonic_ns` never decreases. `now_ms` may jump in both directions.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable


class Clock(ABC):
    """The only source of time of an engine."""

    __slots__ = ()

    @property
    @abstractmethod
    def now_ms(self) -> int:
        """Wall clock time, milliseconds since 1970 UTC. It may jump."""

    @property
    @abstractmethod
    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary time. It never decreases."""

    def seconds_until(self, time_ms: int) -> float:
        """Return the time until `now_ms` is `time_ms`, seconds; 0 or less if it is already."""
        return (time_ms - self.now_ms) / 1000

    @property
    def by_hand(self) -> bool:
        """Whether the clock moves only when a program sets it, so that no real wait can wait for
        it.
        """
        return False

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change of a clock that is set by hand. Return a function that
        ends the subscription.

        A clock that runs by itself never calls it.
        """
        del listener
        return _nothing


class SystemClock(Clock):
    """The clocks of the machine."""

    __slots__ = ()

    @property
    def now_ms(self) -> int:
        """Wall clock time, milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def seconds_until(self, time_ms: int) -> float:
        """Return the time until `now_ms` is `time_ms`, seconds, to the nanosecond: a wait that is
        counted from a whole millisecond ends half a millisecond late on average.
        """
        return (time_ms - self.now_ms) / 1000 - time.time_ns() % 1_000_000 / 1e9

    @property
    def monotonic_ns(self) -> int:
        """Nanoseconds of the machine's monotonic clock."""
        return time.monotonic_ns()


def _nothing() -> None:
    return None
