"""The two clocks. Wall time decides deliveries, monotonic time decides waits.

Threads:  any thread may read; whoever turns a clock by hand tells its listeners.
Holds:    monotonic_ns never goes back; now_ms may jump either way, and whoever reads it copes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable


class Clock(ABC):
    """Where the engine gets its time from, and the only place."""

    __slots__ = ()

    @property
    @abstractmethod
    def now_ms(self) -> int:
        """Wall clock: milliseconds since 1970 UTC. May jump."""

    @property
    @abstractmethod
    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; never goes back."""

    @property
    def by_hand(self) -> bool:
        """True when it only moves when it is told to, so that no real wait can wait for it."""
        return False

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after every turn by hand; the answer, called, ends that.

        A clock that runs by itself never calls it.
        """
        del listener
        return _nothing


class SystemClock(Clock):
    """The machine's clocks."""

    __slots__ = ()

    @property
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    @property
    def monotonic_ns(self) -> int:
        """Nanoseconds of the machine's monotonic clock."""
        return time.monotonic_ns()


def _nothing() -> None:
    return None
