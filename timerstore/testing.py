"""A clock that is turned by hand, for tests of this engine and of what is built on it.

Threads:  any thread may turn or read a ManualClock; listeners run in the thread that turned it.
"""

import threading
from collections.abc import Callable

from timerstore._engine.base.owner import Owner
from timerstore.clock import Clock
from timerstore.store import TimerStore


class ManualClock(Clock):
    """A clock that stands still until it is told to move."""

    __slots__ = ("_listeners", "_lock", "_monotonic_ns", "_now_ms")

    def __init__(self, now_ms: int) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic_ns = 0
        self._listeners: list[Callable[[], None]] = []

    @property
    def now_ms(self) -> int:
        """The wall time it was set to, milliseconds since 1970 UTC."""
        return self._now_ms

    @property
    def monotonic_ns(self) -> int:
        """Nanoseconds by which it was ever turned forward."""
        return self._monotonic_ns

    @property
    def by_hand(self) -> bool:
        """Always true."""
        return True

    def advance(self, ms: int) -> None:
        """Turn it forward; `set` turns it back."""
        if ms < 0:
            raise ValueError(f"advance: wanted at least 0 ms, got {ms}; use set to go back")
        self._turn(ms, relative=True)

    def set(self, now_ms: int) -> None:
        """Set the wall time, back too; the monotonic time only follows forward."""
        self._turn(now_ms, relative=False)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after every turn; the answer, called, ends that."""
        with self._lock:
            self._listeners.append(listener)

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return unsubscribe

    def _turn(self, ms: int, *, relative: bool) -> None:
        with self._lock:
            now_ms = self._now_ms + ms if relative else ms
            self._monotonic_ns += max(0, now_ms - self._now_ms) * 1_000_000
            self._now_ms = now_ms
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()


class Stepper(Owner):
    """Steps the services of a store that was opened with `threads=False`.

    Names: dispatch, enqueue_get, enqueue_put, dequeue_get, dequeue_get_message, dequeue_put,
    schedule_deliver, recurring, retention, flush.
    """

    def __init__(self, store: TimerStore) -> None:
        self._services = store.services()

    @property
    def names(self) -> tuple[str, ...]:
        """The services, in the order in which a message meets them."""
        return tuple(self._services)

    def step(self, name: str) -> bool:
        """One step of one service; whether it did anything."""
        return self._services[name].step()

    def settle(self, *, rounds_max: int = 1_000_000) -> int:
        """Step every service until none has work; how many steps did something."""
        worked = 0
        for _ in range(rounds_max):
            before = worked
            for service in self._services.values():
                while service.step():
                    worked += 1
            if worked == before:
                return worked
        raise AssertionError(f"still at work after {rounds_max} rounds")
