"""A clock that a test sets, and a stepper for services that run in no thread.

Thread safety: any thread may set or read a ManualClock. Listeners run in the thread that sets it.
"""

import threading
from collections.abc import Callable

from timerstore._engine.base.owner import NotCopyable
from timerstore.store import TimerStore
from timerstore.types.clock import Clock


class ManualClock(Clock):
    """A clock that stands still until the test sets it."""

    __slots__ = ("_listeners", "_lock", "_monotonic_ns", "_now_ms")

    def __init__(self, now_ms: int) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic_ns = 0
        self._listeners: list[Callable[[], None]] = []

    @property
    def now_ms(self) -> int:
        """The wall time that was set, milliseconds since 1970 UTC."""
        return self._now_ms

    @property
    def monotonic_ns(self) -> int:
        """Nanoseconds by which the clock was ever set forward."""
        return self._monotonic_ns

    @property
    def by_hand(self) -> bool:
        """Always true."""
        return True

    def advance(self, ms: int) -> None:
        """Set the clock forward by `ms` milliseconds, 0 or more. Use `set` to set it back."""
        if ms < 0:
            raise ValueError(f"advance: wanted at least 0 ms, got {ms}; use set to go back")
        self._turn(ms, relative=True)

    def set(self, now_ms: int) -> None:
        """Set the wall time, milliseconds since 1970. It may go back; the monotonic time then
        stays.
        """
        self._turn(now_ms, relative=False)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change. Return a function that ends the subscription."""
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


class Stepper(NotCopyable):
    """Steps the services of a store that was opened with `threads=False`.

    Names: dispatch, enqueue_get, enqueue_put, dequeue_get, dequeue_get_message, dequeue_put,
    schedule_deliver, recurring, retention, flush.
    """

    def __init__(self, store: TimerStore) -> None:
        self._services = store.services()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the services, in the order in which a message passes through them."""
        return tuple(self._services)

    def step(self, name: str) -> bool:
        """Run one step of one service. Return whether it did anything."""
        return self._services[name].step()

    def settle(self, *, rounds_max: int = 1_000_000) -> int:
        """Step every service until none has work. Return how many steps did something.

        Raises:
            AssertionError: a service still has work after `rounds_max` rounds.
        """
        worked = 0
        for _ in range(rounds_max):
            before = worked
            for service in self._services.values():
                while service.step():
                    worked += 1
            if worked == before:
                return worked
        raise AssertionError(f"still at work after {rounds_max} rounds")
