"""Keep the long polls of each queue, and wake those that a new message may match.

A message wakes every long poll of its queue whose filter it passes, and no other. Pulls are
independent of each other; groups.py orders the polls of one consumer.

Thread safety: any thread. The dispatch thread wakes polls when it has added queue units; the thread
that synced the log wakes them when messages became durable.
Locking: `_lock` may be taken while dispatch's lock or the log's write lock is held. Under `_lock`
the last unit of a queue and the tags codes of new units are read, but no message. No poll is woken
under it.
Invariants:
    1. No poll misses its message. A poll is added to the table and then checks its queue, in one
       critical section. A queue advances first; the thread that advanced it then reads `count` and
       scans the table. So either the poll sees the new end, or the scan sees the poll.
    2. A poll is woken at most once, by the thread that removed it from the table.
    3. An arrival touches the polls of its own queue only.
Raises: nothing. If a queue or a message cannot be read, its polls are woken, and each pull raises
the error when it reads again.
See also: docs/decisions/0005-long-poll.md.
"""

from collections.abc import Callable, Iterable
from typing import Any

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore.errors import TimerStoreError
from timerstore.types.messages import Int64Array

_UNITS_MAX = 65_536  # units of a queue that one scan reads; with more, the pulls read themselves


FOREVER_NS = 2**62
"""The end of a wait without a limit."""

PropertyColumn = tuple[Any, Int64Array]
"""The encoded properties of some messages and their offsets, as Filter.keep takes them."""


class LongPoll:
    """One waiting pull."""

    __slots__ = (
        "end_ns",
        "entered_at",
        "filter",
        "index",
        "is_removed",
        "no_match_below",
        "route",
        "scanned_to",
        "wake",
        "wakes_on_arrival",
    )

    def __init__(
        self,
        route: Route,
        offset: int,
        end_ns: int,
        message_filter: Filter | None,
        wake: Callable[[], None],
        *,
        wakes_on_arrival: bool,
    ) -> None:
        self.route = route
        self.index = int(route.native.index)
        self.no_match_below = offset  # no message below this queue offset matches; under the lock
        self.scanned_to = offset  # the end of the last scan, which may still read; under the lock
        self.entered_at = offset  # the queue's visible end when the poll was added
        self.end_ns = end_ns
        self.filter = message_filter
        self.wake = wake  # called from any thread, without the table's lock
        self.wakes_on_arrival = wakes_on_arrival  # otherwise only at the end of its time
        self.is_removed = False


class _Scan:
    """The result of one scan of some queues."""

    __slots__ = ("candidates", "has_invisible", "woken")

    def __init__(self) -> None:
        self.woken: list[LongPoll] = []
        # Polls that messages [begin, end) of their queue may match, once their properties are read.
        self.candidates: list[tuple[LongPoll, int, int]] = []
        self.has_invisible = False  # a queue has units that are not visible yet


class LongPollTable(NotCopyable):
    """The long polls of one store."""

    def __init__(
        self,
        metrics: Metrics,
        visible_end: Callable[[], int],
        request_sync: Callable[[], None],
        read_properties: Callable[[Route, int, int], PropertyColumn | None],
        native: Any,
        *,
        wakes_on_arrival: bool,
    ) -> None:
        """Create an empty table.

        read_properties: reads the properties of a range of queue offsets, or returns None if they
            are too many or cannot be read; then the polls are woken and read themselves.
        native: the log's struct in C; it has the number of polls as well.
        wakes_on_arrival: False for short polls, which end at their time only.
        """
        self._metrics = metrics
        self._visible_end = visible_end
        self._request_sync = request_sync
        self._read_properties = read_properties
        self._wakes = wakes_on_arrival
        self._native = native
        self._lock = Lock()
        # By index of route, in order of arrival; only queues with a poll.
        self._queues: dict[int, dict[LongPoll, None]] = {}
        self._invisible: set[int] = set()  # those of them with units that are not visible yet
        self.count = 0  # waiting polls; written under the lock, read without it
        self.closed = False

    # --- waiting ---

    def enter(
        self,
        route: Route,
        offset: int,
        end_ns: int,
        message_filter: Filter | None,
        wake: Callable[[], None],
        *,
        for_group: bool = False,
    ) -> LongPoll | None:
        """Add a poll for messages from `offset` on, or return None if the caller must read instead.

        `offset` must be the queue's visible end, or anything in an empty queue. None is returned if
        it is not, or no longer, and after `close`.

        for_group: the poll is a consumer's. Messages wake it even if polls are short, and it may
            wait at an offset past the end: no message below that offset is for it.
        """
        wakes_on_arrival = self._wakes or for_group
        poll = LongPoll(
            route, offset, end_ns, message_filter, wake, wakes_on_arrival=wakes_on_arrival
        )
        with self._lock:
            if self.closed:
                return None
            self._queues.setdefault(poll.index, {})[poll] = None
            self._count(1)  # before the check below: `arrived` reads it without the lock
            try:
                visible = route.queue.visible(self._visible_end())
            except BaseException:
                self._remove(poll)
                raise
            if visible > offset or (visible not in (offset, 0) and not for_group):
                self._remove(poll)
                return None
            poll.entered_at = poll.scanned_to = visible  # in an empty queue any message wakes it
            if for_group:
                poll.scanned_to = offset
            if route.queue.count > visible:
                self._invisible.add(poll.index)
        self._metrics.add("pull_waits", 1)
        return poll

    def _count(self, change: int) -> None:
        """Count polls; the caller has the lock."""
        self.count += change
        self._native.wait_count = self.count

    def leave(self, poll: LongPoll) -> bool:
        """Remove a poll; return whether it had been woken."""
        with self._lock:
            if poll.is_removed:
                return True
            self._remove(poll)
            return False

    def _remove(self, poll: LongPoll) -> None:
        """Remove a poll; the caller has the lock."""
        poll.is_removed = True
        polls = self._queues[poll.index]
        del polls[poll]
        self._count(-1)
        if not polls:
            del self._queues[poll.index]
            self._invisible.discard(poll.index)

    # --- waking ---

    def arrived(self, touched: set[int]) -> None:
        """Wake polls of queues that have grown, given as indexes of their routes."""
        if self.count:
            self._scan_queues(touched)

    def durable(self) -> None:
        """Wake polls of messages that have become visible."""
        if self.count:
            self._scan_queues(None)

    def _scan_queues(self, indexes: Iterable[int] | None) -> None:
        """Scan some queues; None: those that had units that were not visible."""
        scan = _Scan()
        try:
            with self._lock:
                for index in list(self._invisible if indexes is None else indexes):
                    if index in self._queues:
                        self._scan_queue(index, scan)
            self._finish(scan)
        except BaseException:  # KeyboardInterrupt too: nothing else would wake the removed polls
            _wake_each(scan.woken)
            raise

    def _scan_queue(self, index: int, scan: _Scan) -> None:
        on_arrival = [poll for poll in self._queues[index] if poll.wakes_on_arrival]
        if not on_arrival:
            return  # only short polls
        queue = on_arrival[0].route.queue
        try:
            visible = queue.visible(self._visible_end())
            units: dict[int, bytes] = {}
            candidates = [poll for poll in on_arrival if _may_match(poll, visible, units)]
        except TimerStoreError:
            visible, candidates = 0, on_arrival
        for poll in candidates:
            begin, poll.scanned_to = poll.scanned_to, max(poll.scanned_to, visible)
            if (
                poll.filter is not None
                and poll.no_match_below <= begin < visible <= begin + _UNITS_MAX
            ):
                scan.candidates.append((poll, begin, visible))
            else:
                scan.woken.append(poll)
                self._remove(poll)
        if index not in self._queues or queue.count <= visible:
            self._invisible.discard(index)
        else:
            self._invisible.add(index)
            scan.has_invisible = True

    def _finish(self, scan: _Scan) -> None:
        """Request the sync, read properties and wake polls; without the lock."""
        if scan.has_invisible:
            self._request_sync()
        columns: dict[tuple[int, int, int], PropertyColumn | None] = {}
        for poll, begin, end in scan.candidates:
            key = (poll.index, begin, end)
            if key not in columns:
                columns[key] = self._read_properties(poll.route, begin, end)
            found = columns[key]
            assert poll.filter is not None, "a poll without a filter matches every message"
            matches = found is None or bool(poll.filter.keep(*found).any())
            with self._lock:
                if poll.is_removed:
                    continue
                if matches:
                    scan.woken.append(poll)
                    self._remove(poll)
                elif poll.no_match_below == begin:  # else an earlier range is still being read
                    poll.no_match_below = end
        if scan.woken:
            self._metrics.add("pull_woken", len(scan.woken))
            _wake_each(scan.woken)

    def wake_all(self, until_ns: int = FOREVER_NS) -> None:
        """Wake every poll whose time ends at `until_ns` or earlier."""
        found: list[LongPoll] = []
        try:
            with self._lock:
                found += [
                    poll
                    for polls in self._queues.values()
                    for poll in polls
                    if poll.end_ns <= until_ns
                ]
                for poll in found:
                    self._remove(poll)
            _wake_each(found)
        except BaseException:
            _wake_each(found)
            raise

    def close(self) -> None:
        """Wake every poll and accept no more; on return no queue is being read."""
        with self._lock:
            self.closed = True
        self.wake_all()


def _wake_each(polls: list[LongPoll]) -> None:
    for poll in polls:
        poll.wake()


def _may_match(poll: LongPoll, visible: int, units: dict[int, bytes]) -> bool:
    """Return whether a new message may match a poll; if not, advance the poll's offsets."""
    begin = poll.scanned_to
    if visible <= begin:
        return False
    if poll.filter is None or begin < poll.no_match_below or visible - begin > _UNITS_MAX:
        return True
    if begin not in units:
        units[begin] = poll.route.queue.read(begin, visible - begin)
    if len(poll.filter.candidates(units[begin])):
        return True
    if poll.no_match_below == begin:
        poll.no_match_below = visible
    poll.scanned_to = visible
    return False
