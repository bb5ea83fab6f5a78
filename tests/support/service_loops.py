"""The services of a store, run step by step in any order, each only as its thread would run it.

A service runs if it was woken, or if a time has come until which it wanted to wait. So work that
is not announced is never done. The same holds for a caller that waits.

Invariants: the clock stands still as long as a loop may run. It wakes no loop when it moves.
"""

import math
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.support.inside import flush_at_once, service_event
from timerstore import TimerStore
from timerstore.types.clock import Clock

_STEPS_MAX = 200_000


class QuietClock(Clock):
    """A clock that a test moves, in microseconds, and that looks to a store like the machine's."""

    __slots__ = ("_begin_us", "now_us")

    def __init__(self, now_us: int) -> None:
        self.now_us = self._begin_us = now_us

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def monotonic_ns(self) -> int:
        return (self.now_us - self._begin_us) * 1000

    def seconds_until(self, time_ms: int) -> float:
        return (time_ms * 1000 - self.now_us) / 1e6


class Loop(Protocol):
    """Something that runs if it was woken or if its time has come."""

    until_us: int | None
    """When its wait ends, on the clock; None: if it is woken."""

    def is_ready(self) -> bool:
        """Return whether it was woken, or does not wait any more."""

    def run(self) -> None:
        """Do one thing."""


class ServiceLoop:
    """The loop of a service's thread, as Service._run."""

    def __init__(self, service: Any, clock: QuietClock) -> None:
        self._service = service
        self._event = service_event(service)
        self._clock = clock
        self._next: Callable[[], None] | None = self._begin  # None: it waits
        self.until_us: int | None = None

    def is_ready(self) -> bool:
        is_over = self.until_us is not None and self.until_us <= self._clock.now_us
        return self._next is not None or self._event.is_set() or is_over

    def run(self) -> None:
        (self._next or self._begin)()

    def _begin(self) -> None:
        self._event.clear()
        self.until_us = None
        self._next = self._step

    def _step(self) -> None:
        if not self._service.step():
            self._next = self._idle
        elif (pause_s := self._service.pause_s()) > 0.0:
            self._wait(pause_s)
        else:
            self._next = self._begin

    def _idle(self) -> None:
        self._wait(self._service.idle_s())

    def _wait(self, seconds: float | None) -> None:
        self._next = None
        if seconds is not None:
            self.until_us = self._clock.now_us + math.ceil(max(seconds, 0.0) * 1e6)


class CallerLoop:
    """A caller that waits for messages again and again, and takes all that come."""

    until_us: int | None = None

    def __init__(self, begin: Callable[[], Any], take: Callable[[Any], object]) -> None:
        """`begin`: begins a call that waits. `take`: gets its answer."""
        self._begin = begin
        self._take = take
        self._call: Any = None
        self._is_woken = True
        self._is_in = False

    def is_ready(self) -> bool:
        return self._is_woken

    def run(self) -> None:
        if self._call is None:
            self._call = self._begin()
        if self._is_in:
            self._is_in = False
            self._call.leave()
        self._is_woken = False
        answer = self._call.answer(self._call.look())
        if answer is not None:
            self._call.end()
            self._call, self._is_woken = None, True
            self._take(answer)
            return
        self._is_in = bool(self._call.enter(self._wake))
        self._is_woken |= not self._is_in

    def _wake(self) -> None:
        self._is_woken = True

    def end(self) -> None:
        """End the call that waits."""
        if self._call is not None:
            self._call.end()


class Loops:
    """The services of a store that was opened with `threads=False`, and its waiting callers."""

    def __init__(self, store: TimerStore, clock: QuietClock, draw: Random) -> None:
        services = store.services()
        setattr(*flush_at_once(services["flush"]), False)  # as with threads
        self._clock = clock
        self._draw = draw
        self._all: list[Loop] = [ServiceLoop(one, clock) for one in services.values()]
        for one in services.values():
            one.wake()  # as the opening does

    def add(self, *callers: CallerLoop) -> None:
        """Run these, too."""
        self._all += callers

    def run(self, steps_max: int | None = None) -> None:
        """Run the loops that are ready, one step at a time in any order, until all of them wait."""
        for _ in range(_STEPS_MAX if steps_max is None else steps_max):
            ready = [one for one in self._all if one.is_ready()]
            if not ready:
                return
            self._draw.choice(ready).run()
        assert steps_max is not None, "something runs without an end"

    def pass_time(self, ms: int) -> None:
        """Run everything until some milliseconds have passed."""
        end_us = self._clock.now_us + 1000 * ms
        while True:
            self.run()
            if self._clock.now_us >= end_us:
                return
            times = [one.until_us for one in self._all if one.until_us is not None]
            self._clock.now_us = min([end_us, *times])
