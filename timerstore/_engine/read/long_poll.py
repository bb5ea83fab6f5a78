"""Waiting pulls by queue, and which of them an arrival wakes.

Threads:  any enters and leaves; who moved a queue's visible end answers: dispatch, when units came,
          and whoever synced, when they became durable.
Locks:    _lock, also under dispatch's and the log's write lock. Under it the last unit of a queue
          and the tag hashes of new ones are read, no message; nobody is answered under it.
Holds:    (1) a hold enters first and then looks at its queue, in one hold of _lock; a queue moves
          first, and who moved it then asks for `count` and looks, under _lock. So the hold sees the
          move, or the move's look sees the hold: none sleeps past its message; (2) a hold is
          answered once at most, by who takes it out; (3) what happens at a queue touches the holds
          of that queue only.
Fails:    never: where a queue or a message does not read, its holds are answered, and the pull that
          looks again finds the error itself.
See also: docs/decisions/0005-long-poll.md.

A message wakes every hold of its queue whose filter it passes, and no other. Pulls are independent
of each other; the consumers of a group share a queue above this (wait_queue.py).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore.errors import TimerStoreError
from timerstore.messages import Int64Array

_UNITS_MAX = 65_536  # of a queue, whose tag hashes one look reads; with more the pulls look


class Texts(NamedTuple):
    """Property texts of some messages; text k is properties[offsets[k]:offsets[k + 1]]."""

    properties: Any
    offsets: Int64Array


class Doubt(NamedTuple):
    """A hold that messages [begin, end) of its queue may be for: their properties will tell."""

    hold: "LongPoll"
    route: Route
    begin: int
    end: int


class LongPoll:
    """One waiting pull."""

    __slots__ = (
        "answered",
        "asked_to",
        "end_ns",
        "entered_at",
        "filter",
        "index",
        "looked",
        "ring",
        "wakes",
    )

    def __init__(
        self,
        index: int,
        offset: int,
        end_ns: int,
        message_filter: Filter | None,
        ring: Callable[[], None],
        *,
        wakes: bool,
    ) -> None:
        self.index = index
        self.looked = offset  # queue offset below which nothing matches; under the table's lock
        self.asked_to = offset  # where a look that still reads messages ends; as above
        self.entered_at = offset  # the queue's visible end then
        self.end_ns = end_ns
        self.filter = message_filter
        self.ring = ring  # called when it is answered, from any thread, under no lock of holds
        self.wakes = wakes  # when messages come; else when its time is over only
        self.answered = False


class _Queue:
    """The holds of one queue; the table's lock guards it."""

    __slots__ = ("holds", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.holds: dict[LongPoll, None] = {}  # in order of arrival


class _Look:
    """What one look at some queues came to."""

    __slots__ = ("answered", "doubts", "is_behind")

    def __init__(self) -> None:
        self.answered: list[LongPoll] = []
        self.doubts: list[Doubt] = []
        self.is_behind = False  # a queue has units that may not be seen yet


class LongPollTable(Owner):
    """The pulls of one store that wait."""

    def __init__(
        self,
        metrics: Metrics,
        visible_end: Callable[[], int],
        request_sync: Callable[[], None],
        read_texts: Callable[[Route, int, int], Texts | None],
        *,
        wakes: bool,
    ) -> None:
        """`read_texts`: of a range of queue offsets; None where they are too many, or do not read:
        then the pulls look. `wakes`: long polls; else a pull's hold ends by its time only.
        """
        self._metrics = metrics
        self._visible_end = visible_end
        self._request_sync = request_sync
        self._read_texts = read_texts
        self._wakes = wakes
        self._lock = Lock()
        self._queues: dict[int, _Queue] = {}  # by index of route, those with a hold
        self._behind: set[int] = set()  # of these, the ones with units that may not be seen yet
        self.count = 0  # holds that wait; written under the lock, read by any
        self.closed = False

    # --- waiting ---

    def enter(
        self,
        route: Route,
        offset: int,
        end_ns: int,
        message_filter: Filter | None,
        ring: Callable[[], None],
        *,
        for_group: bool = False,
    ) -> LongPoll | None:
        """Wait for what comes at `offset`, which is the queue's visible end, or in an empty queue
        anywhere. None where it is not, or not any more: then the pull looks; and after `close`.

        `for_group`: a consumer's. Messages wake it though polls are short, and it may wait beyond
        the end: below its offset nothing is for it, not in an empty queue either.
        """
        index = int(route.native.index)
        wakes = self._wakes or for_group
        hold = LongPoll(index, offset, end_ns, message_filter, ring, wakes=wakes)
        with self._lock:
            if self.closed:
                return None
            self._queues.setdefault(index, _Queue(route)).holds[hold] = None
            self.count += 1  # before it looks: who moves a queue asks for this under no lock
            try:
                visible = route.queue.visible(self._visible_end())
            except BaseException:
                self._take(hold)
                raise
            if visible > offset or (visible not in (offset, 0) and not for_group):
                self._take(hold)
                return None
            hold.entered_at = hold.asked_to = visible  # in an empty queue whatever comes answers
            if for_group:
                hold.asked_to = offset
            if route.queue.count > visible:
                self._behind.add(index)
        self._metrics.add("pull_waits", 1)
        return hold

    def leave(self, hold: LongPoll) -> bool:
        """Wait no more; whether it was answered."""
        with self._lock:
            if hold.answered:
                return True
            self._take(hold)
            return False

    def _take(self, hold: LongPoll) -> None:
        """Take a hold out; under the lock."""
        hold.answered = True
        one = self._queues[hold.index]
        del one.holds[hold]
        self.count -= 1
        if not one.holds:
            del self._queues[hold.index]
            self._behind.discard(hold.index)

    # --- answering ---

    def arrived(self, touched: set[int]) -> None:
        """Queues have grown: indexes of their routes."""
        if self.count:
            self._look_at(touched)

    def durable(self) -> None:
        """What may be seen has grown."""
        if self.count:
            self._look_at(None)

    def _look_at(self, indexes: Iterable[int] | None) -> None:
        """Look at queues; None: at those with units that could not be seen before."""
        look = _Look()
        try:
            with self._lock:
                for index in list(self._behind if indexes is None else indexes):
                    one = self._queues.get(index)
                    if one is not None:
                        self._look_at_one(index, one, look)
            self._finish(look)
        except BaseException:  # as Ctrl-C amid it: nobody else would ring who is answered
            _ring(look.answered)
            raise

    def _look_at_one(self, index: int, one: _Queue, look: _Look) -> None:
        awake = [hold for hold in one.holds if hold.wakes]
        if not awake:
            return  # short polls
        try:
            visible = one.route.queue.visible(self._visible_end())
            units: dict[int, bytes] = {}
            doubts = [hold for hold in awake if _may_match(one.route, hold, visible, units)]
        except TimerStoreError:
            visible, doubts = 0, awake
        for hold in doubts:
            begin, hold.asked_to = hold.asked_to, max(hold.asked_to, visible)
            if hold.filter is not None and hold.looked <= begin < visible <= begin + _UNITS_MAX:
                look.doubts.append(Doubt(hold, one.route, begin, visible))
            else:
                look.answered.append(hold)
                self._take(hold)
        if index not in self._queues or one.route.queue.count <= visible:
            self._behind.discard(index)
        else:
            self._behind.add(index)
            look.is_behind = True

    def _finish(self, look: _Look) -> None:
        """What is done under no lock: ask for the sync, read messages, answer."""
        if look.is_behind:
            self._request_sync()
        texts: dict[tuple[int, int, int], Texts | None] = {}
        for hold, route, begin, end in look.doubts:
            key = (hold.index, begin, end)
            if key not in texts:
                texts[key] = self._read_texts(route, begin, end)
            found = texts[key]
            assert hold.filter is not None, "without a filter there is no doubt"
            matches = found is None or bool(hold.filter.keep(*found).any())
            with self._lock:
                if hold.answered:
                    continue
                if matches:
                    look.answered.append(hold)
                    self._take(hold)
                elif hold.looked == begin:  # else what lies before is still being read
                    hold.looked = end
        if look.answered:
            self._metrics.add("pull_woken", len(look.answered))
            _ring(look.answered)

    def turned(self, now_ns: int) -> None:
        """The clock was turned by hand: answer those whose time is over."""
        self._answer_where(lambda hold: hold.end_ns <= now_ns)

    def answer_all(self) -> None:
        """Let every waiting pull look again."""
        self._answer_where(lambda _hold: True)

    def close(self) -> None:
        """Answer everybody; nobody enters any more, and no queue is read on return."""
        with self._lock:
            self.closed = True
        self.answer_all()

    def _answer_where(self, is_answered: Callable[[LongPoll], bool]) -> None:
        found: list[LongPoll] = []
        try:
            with self._lock:
                found += [h for one in self._queues.values() for h in one.holds if is_answered(h)]
                for hold in found:
                    self._take(hold)
            _ring(found)
        except BaseException:
            _ring(found)
            raise


def _ring(holds: list[LongPoll]) -> None:
    for hold in holds:
        hold.ring()


def _may_match(route: Route, hold: LongPoll, visible: int, units: dict[int, bytes]) -> bool:
    """Whether something came that may be for this hold; where not, note that it was looked at."""
    begin = hold.asked_to
    if visible <= begin:
        return False
    if hold.filter is None or begin < hold.looked or visible - begin > _UNITS_MAX:
        return True
    if begin not in units:
        units[begin] = route.queue.read(begin, visible - begin)
    if len(hold.filter.candidates(units[begin])):
        return True
    if hold.looked == begin:
        hold.looked = visible
    hold.asked_to = visible
    return False
