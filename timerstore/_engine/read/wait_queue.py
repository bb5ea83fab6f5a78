"""The waiting polls of one consumer; the first is in the long-poll table for all of them.

    three threads poll one consumer     a (held at queues 0, 2)   b   c      b and c just sleep
    a message comes to queue 2          a is rung, and looks      b   c      nobody else wakes
    a has it, and is done               b (held at queues 0, 2)   c          b did not wake for that

Threads:  any, each under the lock of the group; only `Place.wake` comes from outside of it.
Locks:    the group's, then the hold table's.
Holds:    (1) who is first and sleeps is held at each queue of the consumer, where nothing was left
          to look at when he was put there; else he was rung; (2) who goes, however he goes, leaves
          the next one so: no message waits beside a sleeper.
Fails:    never: where a queue does not read, its poll is rung, and finds the error itself.
Source:   docs/decisions/0005-long-poll.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

from timerstore._engine.read.long_poll import LongPoll
from timerstore.errors import TimerStoreError

Watch = Callable[[int, int, int, Callable[[], None]], LongPoll | None]
"""Puts a hold at a queue: its number, from which offset, until when, what rings. None: look."""

FOR_EVER_NS = 2**62
"""When the time ends of who waits for ever."""

Unwatch = Callable[[LongPoll], object]


class Queue(Protocol):
    """A queue as its consumer has it: another one each time that it comes to him."""

    @property
    def queue_id(self) -> int:
        """Its number."""


class Waiter:
    """One poll in line."""

    __slots__ = ("end_ns", "holds", "is_asleep", "is_woken", "ring")

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self.ring: Callable[[], None] = _nobody
        self.is_woken = False  # since it fell asleep
        self.is_asleep = False
        self.holds: list[tuple[Queue, int, LongPoll]] = []  # queue, offset

    def wake(self) -> None:
        """Let it look; from any thread, as often as one likes."""
        if not self.is_woken:
            self.is_woken = True
            try:
                self.ring()
            except BaseException:  # as Ctrl-C before it rang: it is not rung a second time
                self.ring()
                raise


class WaitQueue:
    """Who waits at one consumer, first come first."""

    def __init__(self, watch: Watch, unwatch: Unwatch) -> None:
        self._watch = watch
        self._unwatch = unwatch
        self._places: OrderedDict[Waiter, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def sleep(
        self, place: Waiter, ring: Callable[[], None], wanted: Mapping[Queue, int] | None
    ) -> bool:
        """Fall asleep, at the end of the line or where one stands in it; False: look instead.

        `wanted`: the offset to wait for in each queue; None where there is something to look at.
        """
        self._places.setdefault(place)
        place.ring, place.is_woken, place.is_asleep = ring, False, True
        if self._first() is not place:
            return True  # whoever is in front of it looks, or is held
        if self._hold(place, wanted):
            return True
        place.is_asleep = False
        return False

    def wake(self, place: Waiter) -> list[tuple[Queue, int, int]]:
        """Wake up, to look or to go. Answers (queue, offset, looked): what lies between the two of
        a queue is known to be nothing for this consumer.
        """
        place.is_asleep = False
        holds, place.holds = place.holds, []
        for _, _, hold in holds:
            self._unwatch(hold)
        return [(queue, offset, hold.looked) for queue, offset, hold in holds]

    def leave(self, place: Waiter, wanted: Mapping[Queue, int] | None) -> None:
        """Go, and have the next one in the table in one's stead; again, where a signal came amid
        it.
        """
        if place in self._places:
            self.wake(place)
            del self._places[place]
        first = self._first()
        if first is None or not first.is_asleep or first.is_woken or first.holds:
            return  # it looks, or is to look, or is held
        if not self._hold(first, wanted):
            first.wake()

    def ring(self) -> None:
        """There is a reason to look: the first does, and the next ones after it."""
        first = self._first()
        if first is not None and first.is_asleep:
            first.wake()

    def wake_all(self, until_ns: int = FOR_EVER_NS) -> None:
        """All of them, or all whose time ends by then, have a reason to look."""
        for place in self._places:
            if place.is_asleep and place.end_ns <= until_ns:
                place.wake()

    def _first(self) -> Waiter | None:
        return next(iter(self._places), None)

    def _hold(self, place: Waiter, wanted: Mapping[Queue, int] | None) -> bool:
        if wanted is None:
            return False
        is_held = False
        try:
            for queue, offset in wanted.items():
                hold = self._watch(queue.queue_id, offset, place.end_ns, place.wake)
                if hold is None:
                    break
                place.holds.append((queue, offset, hold))
            else:
                is_held = True
        except TimerStoreError:
            pass
        finally:
            if not is_held:  # whatever came amid it: at each queue, or at none
                holds, place.holds = place.holds, []
                for _, _, hold in holds:
                    self._unwatch(hold)
        return is_held


def _nobody() -> None:
    """Nobody sleeps there yet."""
