"""Service: one thread that runs a loop around a step. Handoff: a bounded queue between services.

Thread safety: `step` runs on the service's thread, or on a thread that steps the service by hand,
    never on both.
Invariants:
    1. `step` never sleeps and does a bounded amount of work.
    2. Services do not poll. The component that produces work wakes the service, unless the service
       continues at a time of its own (`pause_s`, `idle_s`).
    3. After a retryable error the step is repeated, with back-off and a counter, until it succeeds
       or the store stops. Any other error stops the store.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.signal import Signals
from timerstore.errors import ClosedError, FailedError, TimerStoreError, stopped_at_exit
from timerstore.types.clock import Clock

IDLE_S_MAX = 10.0
"""Longest wait for a wall time, seconds: then a clock that was set forward is noticed."""

_BACKOFF_S_MIN = 0.01
_BACKOFF_S_MAX = 1.0

Item = TypeVar("Item")


def idle_until(clock: Clock, time_ms: int) -> float:
    """Return how long a service may wait for a wall time, seconds."""
    return min(max(clock.seconds_until(time_ms), 0.0), IDLE_S_MAX)


class WakeEvent(NotCopyable):
    """An event for one waiter, which `wait` clears.

    Unlike threading.Event, each method is one call of C. So an exception of a signal handler during
    `set` leaves nothing locked.
    """

    __slots__ = ("_unset", "is_unset")

    def __init__(self) -> None:
        self._unset = threading.Lock()  # locked until the event is set
        self._unset.acquire()
        self.is_unset = self._unset.locked

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return not self._unset.locked()

    def set(self) -> None:
        """Set the event, and wake the waiter."""
        try:  # noqa: SIM105 - suppress() would be Python code that a signal can interrupt
            self._unset.release()
        except RuntimeError:  # already set
            pass

    def clear(self) -> None:
        """Clear the event."""
        self._unset.acquire(blocking=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set, and clear it; return False after the timeout."""
        return self._unset.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


class Service(NotCopyable):
    """A named service. Subclasses define `name` and `step`, and `idle_s` to wait for a time."""

    name = "service"

    def __init__(self, metrics: Metrics, signals: Signals) -> None:
        self.metrics = metrics
        self._signals = signals
        self._event = WakeEvent()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._ident: int | None = None  # of the thread that runs the loop

    def step(self) -> bool:
        """Do a bounded amount of work; return whether there was any."""
        raise NotImplementedError

    def idle_s(self) -> float | None:
        """Return how long to wait if there is no work, seconds; None for until woken."""
        return None

    def pause_s(self) -> float:
        """Return how long to wait after a step with work, seconds; a wake ends the wait."""
        return 0.0

    @property
    def is_unset(self) -> Callable[[], bool]:
        """A function of C that returns whether there was no wake since the last step began."""
        return self._event.is_unset

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs in this service's thread."""
        return self._ident == threading.get_ident()

    def wake(self) -> None:
        """Wake the thread: there is work."""
        if self._event.is_unset():
            self._event.set()

    def start(self) -> None:
        """Start the thread. FailedError if the operating system has no more threads."""
        thread = threading.Thread(target=self._loop, name=f"timerstore-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise FailedError(f"the thread of {self.name} could not be started: {error}") from error
        self._thread = thread

    def stop(self) -> None:
        """Stop the thread after the running step, and wait for its end.

        Raises:
            LockedError: the interpreter is ending, and has stopped the thread during a step.
        """
        self.request_stop()
        if sys.is_finalizing() and self._ident is not None:
            raise stopped_at_exit()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def request_stop(self) -> None:
        """Stop the thread after the running step, without waiting."""
        self._stopping = True
        self._event.set()

    def end(self, where: Path) -> None:
        """Make later steps raise ClosedError, because files are closed and memory is freed."""

        def closed() -> bool:
            raise ClosedError("the store is closed", where=where)

        self.step = closed  # type: ignore[method-assign]

    def _loop(self) -> None:
        self._ident = threading.get_ident()
        try:
            self._run()
        finally:
            self._ident = None  # the system may give the same ident to another thread

    def _run(self) -> None:
        backoff_s = _BACKOFF_S_MIN
        while not self._stopping:
            self._event.clear()
            try:
                if self.step():
                    backoff_s = _BACKOFF_S_MIN
                    pause_s = self.pause_s()
                    if pause_s > 0.0 and not self._stopping:
                        self._event.wait(pause_s)
                    continue
            except TimerStoreError as error:
                if not error.retryable:
                    self._fail(error)
                    return
                self.metrics.add("service_retries", 1)
                self._event.wait(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)
                continue
            except Exception as error:  # noqa: BLE001 - an unexpected error must stop the store
                self._fail(error)
                return
            if not self._stopping:
                self._event.wait(self.idle_s())

    def _fail(self, error: BaseException) -> None:
        logging.getLogger("timerstore.service").error("service=%s error=%r", self.name, error)
        self._signals.service_failed(self.name, error)


class Handoff(Generic[Item]):
    """A queue of at most `bound` items between two services."""

    def __init__(self, bound: int) -> None:
        self._items: deque[Item] = deque()
        self._bound = bound

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether the queue has `bound` items."""
        return len(self._items) >= self._bound

    def put(self, item: Item) -> None:
        """Add an item. Only the upstream service calls this, after it has checked `is_full`."""
        assert not self.is_full, "a handoff was overfilled"
        self._items.append(item)

    def take(self) -> Item | None:
        """Remove and return the oldest item; None if the queue is empty."""
        return self._items.popleft() if self._items else None

    def first(self) -> Item | None:
        """Return the oldest item without removing it; None if the queue is empty."""
        return self._items[0] if self._items else None
