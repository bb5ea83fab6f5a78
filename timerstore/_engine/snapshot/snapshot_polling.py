"""Polling: who waits for what a store's owner makes visible looks again and again.

Nothing tells a process that reads beside the owner that a checkpoint was completed; a look is a
read of 1 KiB, and of two small files.

Threads:  any.
Holds:    an end of waiting, by the clock or by `end`, is noticed within POLL_S.
"""

import threading
from collections.abc import Callable

from timerstore._engine.base.owner import Owner
from timerstore.clock import Clock

POLL_S = 0.05
"""How often who waits looks, seconds: a tenth of what lies between two checkpoints."""


class SnapshotPolling(Owner):
    """What those who wait at one store wait by."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned = threading.Condition()
        self._has_ended = False
        self._unsubscribe: Callable[[], None] = clock.subscribe(self._wake)

    def end_ns(self, wait_s: float | None) -> int | None:
        """When who begins to wait now ends; None: never."""
        return None if wait_s is None else self._clock.monotonic_ns + int(wait_s * 1e9)

    def pause(self, end_ns: int | None) -> bool:
        """Sleep until the next look; False where there is none, as the time is over."""
        left_s = POLL_S
        if end_ns is not None:
            left_s = (end_ns - self._clock.monotonic_ns) / 1e9
            if left_s <= 0:
                return False
        with self._turned:
            if not self._has_ended:
                self._turned.wait(min(POLL_S, left_s))
        return True

    def end(self) -> None:
        """Wake all for good."""
        self._unsubscribe()
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        with self._turned:
            self._turned.notify_all()
