"""`SnapshotPolling`: wait until a store's owner makes more messages visible.

The owner does not notify other processes when it completes a checkpoint. So a waiting call of a
read-only store looks every 50 ms. A look reads 1 KiB and two small files.

Thread safety: any thread.
Invariants: a wait ends within POLL_S after its time is over or `end` was called.
"""

import threading
from collections.abc import Callable

from timerstore._engine.base.owner import Owner
from timerstore.clock import Clock

POLL_S = 0.05
"""Seconds between two looks: a tenth of the default time between two checkpoints."""


class SnapshotPolling(Owner):
    """The pauses of the waiting calls of one store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned = threading.Condition()
        self._has_ended = False
        self._unsubscribe: Callable[[], None] = clock.subscribe(self._wake)

    def end_ns(self, wait_s: float | None) -> int | None:
        """Return when a wait that begins now ends; None: never."""
        return None if wait_s is None else self._clock.monotonic_ns + int(wait_s * 1e9)

    def pause(self, end_ns: int | None) -> bool:
        """Sleep until the next look. Return False if the time is over."""
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
        """Wake all waiters and let none sleep again."""
        self._unsubscribe()
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        with self._turned:
            self._turned.notify_all()
