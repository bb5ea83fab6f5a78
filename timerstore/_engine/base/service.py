"""Service: one thread, one loop around a step. Handoff: a bounded queue between two services.

Threads:  a Service's `step` runs in its own thread, or in whoever steps it by hand, never in both.
Holds:    (1) `step` never sleeps and does a bounded amount; (2) nobody polls: who makes work wakes,
          or knows that who does it comes by itself (pause_s, idle_s);
          (3) an error that may pass is tried again, with back-off and a count, until it passes or
          the store stops; any other stops the store.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.signals import Signals
from timerstore.errors import ClosedError, FailedError, TimerStoreError, stopped_at_exit

IDLE_S_MAX = 10.0
"""Longest wait for a wall time: after so long a clock that was set forward is noticed."""

_BACKOFF_S_MIN = 0.01
_BACKOFF_S_MAX = 1.0

Item = TypeVar("Item")


class WakeEvent(Owner):
    """Rings for one who waits, also if he comes later. As threading.Event, but that each step is
    one of C: an exception of a signal handler amid `set` leaves nothing locked.
    """

    __slots__ = ("_silence", "is_silent")

    def __init__(self) -> None:
        self._silence = threading.Lock()  # held until it rings
        self._silence.acquire()
        self.is_silent = self._silence.locked

    def is_set(self) -> bool:
        """Whether it rings."""
        return not self._silence.locked()

    def set(self) -> None:
        """Ring."""
        try:  # noqa: SIM105 - here a call of Python's is what is not wanted
            self._silence.release()
        except RuntimeError:  # it rings already
            pass

    def clear(self) -> None:
        """Have it ring no more."""
        self._silence.acquire(blocking=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it rings, which ends with that; whether it did in time."""
        return self._silence.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


class Service(Owner):
    """One of the named services. Subclasses give `name`, `step` and, where they wait for a time,
    `idle_s`.
    """

    name = "service"

    def __init__(self, metrics: Metrics, signals: Signals) -> None:
        self.metrics = metrics
        self._signals = signals
        self._event = WakeEvent()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._ident: int | None = None  # of the thread that runs the loop

    def step(self) -> bool:
        """Do a bounded amount of work; whether there was any."""
        raise NotImplementedError

    def idle_s(self) -> float | None:
        """How long to wait when there is nothing to do, seconds; None: until woken."""
        return None

    def pause_s(self) -> float:
        """How long to wait behind a step that had work, seconds; a wake ends that."""
        return 0.0

    @property
    def is_silent(self) -> Callable[[], bool]:
        """Tells whether it was not woken since its last step began; one call of C."""
        return self._event.is_silent

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs in this service's thread."""
        return self._ident == threading.get_ident()

    def wake(self) -> None:
        """There is work."""
        if not self._event.is_set():
            self._event.set()

    def start(self) -> None:
        """Run in a thread of its own; FailedError where there can be no more threads."""
        thread = threading.Thread(target=self._loop, name=f"timerstore-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise FailedError(f"the thread of {self.name} could not be started: {error}") from error
        self._thread = thread

    def stop(self) -> None:
        """Finish the step that runs and end the thread.

        LockedError if the interpreter is ending and has stopped the thread amid a step.
        """
        self.ask_to_stop()
        if sys.is_finalizing() and self._ident is not None:
            raise stopped_at_exit()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def ask_to_stop(self) -> None:
        """Have the thread end after the step that runs; do not wait for it."""
        self._stopping = True
        self._event.set()

    def end(self, where: Path) -> None:
        """The store's files are closed, and its memory is given back: no step may touch them."""

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
            except Exception as error:  # noqa: BLE001 - unforeseen: the store must stop
                self._fail(error)
                return
            if not self._stopping:
                self._event.wait(self.idle_s())

    def _fail(self, error: BaseException) -> None:
        logging.getLogger("timerstore.service").error("service=%s error=%r", self.name, error)
        self._signals.service_failed(self.name, error)


class Handoff(Generic[Item]):
    """At most `bound` items between two services; `put` is refused when it is full."""

    def __init__(self, bound: int) -> None:
        self._items: deque[Item] = deque()
        self._bound = bound

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether another item would be one too many."""
        return len(self._items) >= self._bound

    def put(self, item: Item) -> None:
        """Add an item; only the one upstream service calls this, after it looked at `is_full`."""
        assert not self.is_full, "a handoff was overfilled"
        self._items.append(item)

    def take(self) -> Item | None:
        """Take the oldest item, None where there is none."""
        return self._items.popleft() if self._items else None

    def first(self) -> Item | None:
        """Give the oldest item, which stays until it is taken; None where there is none."""
        return self._items[0] if self._items else None
