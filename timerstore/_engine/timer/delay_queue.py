"""DelayQueue: what is due later, in memory; a planner usable without a store.

Data:     nothing on disk. A dict finds what waits by its key; coarse spans of time ("buckets") hold
          it by due time. A bucket is sorted when it is the nearest and somebody looks, not before.
Threads:  none, no clock and no lock: the caller says what time it is, one call at a time.
Holds:    (1) an entry waits while `_waiting` has this very entry under its key; any other in a
          bucket is the mark of a cancel; (2) a list in `_buckets` stands in the order of adding,
          and its number is in `_numbers` or `_new_numbers`, which may hold numbers of buckets that
          are gone; (3) a bucket holds something that waits, and at most 64 marks more than that;
          all tables together hold at most a constant times what waits, plus a constant; (4) all
          buckets are `_width_ms` wide, which changes when all are made anew, and not more often
          than its cost is a constant for each add or expired key.
Fails:    MessageError on bad arguments; nothing has changed then.

How a bucket lives, with bucket_ms=1000: three adds, a look, one more add, a look:

    bucket [1700 1200 1200]                           as added: one append each
    run    [1700 1200 1200]                           sorted once; what comes next is at its end
    run    [1700 1200 1200]  bucket [1500]            added while it is open
    run    [1700 1200 1200]  late [1500]              a heap of few; the run is not sorted again

A bucket that holds next to nothing costs more than it saves. So where buckets turn out to be nearly
empty all are made anew, wider; and finer again, down to bucket_ms, when they turn out to be full.

Entries are plain tuples, and buckets plain lists until they open: the collector of garbage does not
look into tuples of numbers and strings, and a sparse schedule has a bucket an entry.
"""

import heapq
import operator
import sys
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore.errors import MessageError, quoted, typed

DUE_MS_MAX = 2**63 - 1
"""Latest due time: what the store's formats hold, eight bytes with a sign."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Entry = tuple[int, Key, Value]  # due time in ms, key, value

_SPARE_MARKS = 64  # marks of cancels that are not worth a sweep
_SPARE_GONE = 1024  # entries gone that are not worth new tables
_SPARE_BUCKETS = 256  # buckets that are not worth looking how full they are
_FEW = 8  # entries a bucket: fewer than this, and buckets become wider,
_GOOD = 64  # so that they hold so many,
_MANY = 1024  # or finer where they hold more than this
_due_ms = operator.itemgetter(0)


class _Open(Generic[Key, Value]):
    """A bucket that somebody has looked into: what is in order of it."""

    __slots__ = ("late", "late_count", "run")

    def __init__(self) -> None:
        self.run: list[Entry[Key, Value]] = []  # descending; of equal times the first added is last
        self.late: list[tuple[int, int, Entry[Key, Value]]] = []  # a heap by due time, then number
        self.late_count = 0

    def __len__(self) -> int:
        return len(self.run) + len(self.late)

    def settle(self, fresh: list[Entry[Key, Value]]) -> None:
        """Take over what is fresh; what is in order already is not sorted again for a few."""
        if len(fresh) > len(self):
            self.late.sort()
            fresh = [*reversed(self.run), *(one[2] for one in self.late), *fresh]
            self.late = []
            fresh.reverse()
            fresh.sort(key=_due_ms, reverse=True)
            self.run = fresh
            return
        for entry in fresh:
            heapq.heappush(self.late, (entry[0], self.late_count, entry))
            self.late_count += 1

    def sweep(self, waiting: dict[Key, Entry[Key, Value]]) -> None:
        """Let go of marks."""
        self.run = [entry for entry in self.run if waiting.get(entry[1]) is entry]
        self.late = [one for one in self.late if waiting.get(one[2][1]) is one[2]]
        heapq.heapify(self.late)

    def in_order(self, end_ms: int) -> Iterator[Entry[Key, Value]]:
        """Take out one after the other what is due by end_ms, marks too."""
        run, late = self.run, self.late
        while True:
            while run and not (late and late[0][0] < run[-1][0]):
                if run[-1][0] > end_ms:
                    return
                yield run.pop()
            if not late or late[0][0] > end_ms:
                return
            yield heapq.heappop(late)[2]


class DelayQueue(Owner, Generic[Key, Value]):
    """Keys that wait for their time; in memory, without a thread.

    queue = DelayQueue[str, Order]()
    queue.add("order-4711", 1_700_000_030_000, order)
    queue.cancel("order-4711")
    for due_ms, key, value in queue.expire(now_ms): ...

    What is due comes out to the millisecond, in order of (due time, order of adding), whatever the
    clock did. `add`, `cancel` and `find` cost the same however many wait (the mean over many calls:
    tables grow and shrink); `expire` and `next_due_ms` pay for order, one bucket at a time.
    Memory follows what waits. `bucket_ms` is how coarse a bucket is at least: any is right; where
    few wait, buckets become wider by themselves. Not for several threads at once without a lock of
    the caller's.
    """

    def __init__(self, *, bucket_ms: int = 1000) -> None:
        self._bucket_ms = self._width_ms = _whole("bucket_ms", bucket_ms, low=1)
        self._bucket_room = _SPARE_BUCKETS  # buckets, before it is looked how full they are
        self._waiting: dict[Key, Entry[Key, Value]] = {}
        self._buckets: dict[int, list[Entry[Key, Value]]] = {}
        self._opened: dict[int, _Open[Key, Value]] = {}
        self._marks: dict[int, int] = {}  # how many, where there are any
        self._numbers: list[int] = []  # a heap; a number may stand there twice
        self._new_numbers: list[int] = []
        self._gone = 0  # entries that came out or were cancelled since the tables were made

    def add(self, key: Key, due_ms: int, value: Value = None) -> None:  # type: ignore[assignment]
        """Let a key wait until due_ms (ms since 1970); a time in the past is due at once.

        Raises MessageError where the key waits already or cannot be hashed, and where due_ms is
        not a whole number from 0 to 2**63 - 1.
        """
        if type(due_ms) is not int or not 0 <= due_ms <= DUE_MS_MAX:
            due_ms = _whole("due_ms", due_ms, low=0)
        if (there := self.find(key)) is not None:
            raise MessageError(f"key: {quoted(key)} waits already, due at {there[0]}")
        self._waiting[key] = entry = (due_ms, key, value)
        number = due_ms // self._width_ms
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.append(entry)
        else:
            self._buckets[number] = [entry]
            self._new_numbers.append(number)
            if len(self._buckets) > self._bucket_room:
                self._fit()

    def cancel(self, key: Key) -> Entry[Key, Value] | None:
        """Forget a key, which will not come out; gives (due_ms, key, value), None where it does not
        wait.
        """
        entry = self.find(key)
        if entry is not None:
            del self._waiting[key]
            number = entry[0] // self._width_ms
            self._marks[number] = mark_count = self._marks.get(number, 0) + 1
            if 2 * mark_count > len(self._buckets[number]):  # else there is nothing to tidy
                self._tidy(number)
            self._let_go(1)
        return entry

    def find(self, key: Key) -> Entry[Key, Value] | None:
        """Give (due_ms, key, value) of a key that waits; None where it does not."""
        try:
            return self._waiting.get(key)
        except TypeError as error:
            raise MessageError(
                f"key: wanted one that can be hashed, got {type(key).__name__} ({error})"
            ) from error

    def expire(self, now_ms: int, *, max_count: int | None = None) -> list[Entry[Key, Value]]:
        """Take out what is due at now_ms or before, in order; at most max_count where given.

        Gives (due_ms, key, value) of each. Raises MessageError where an argument is not a whole
        number from 0 to 2**63 - 1.
        """
        now_ms = _whole("now_ms", now_ms, low=0)
        left = sys.maxsize if max_count is None else _whole("max_count", max_count, low=0)
        found: list[Entry[Key, Value]] = []
        width = self._width_ms
        while (number := self._first_number()) is not None and number * width <= now_ms:
            if self._count(number) <= left and (number + 1) * width - 1 <= now_ms:
                taken = self._take_all(number)
            else:
                taken = self._take(number, now_ms, left)
            found += taken
            left -= len(taken)
            if number in self._buckets:  # the rest is not due, or would be too many
                break
        self._let_go(len(found))
        return found

    def next_due_ms(self) -> int | None:
        """Give the earliest due time of all that wait; None where nothing does."""
        number = self._first_number()
        if number is None:
            return None
        opened = self._look(number)
        for entry in opened.in_order(DUE_MS_MAX):
            if self._waiting.get(entry[1]) is entry:
                opened.run.append(entry)  # back: it is before all others
                return entry[0]
            self._marks[number] -= 1
        raise AssertionError("a bucket holds something that waits")

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: Key) -> bool:
        return self.find(key) is not None

    def __repr__(self) -> str:
        return f"<DelayQueue, {len(self)} waiting>"

    # --- buckets ---

    def _first_number(self) -> int | None:
        """Give the number of the earliest bucket; numbers of buckets that are gone go."""
        numbers = self._numbers
        if self._new_numbers:
            if len(self._new_numbers) > len(numbers):
                numbers += self._new_numbers
                heapq.heapify(numbers)
            else:
                for number in self._new_numbers:
                    heapq.heappush(numbers, number)
            self._new_numbers.clear()
        while numbers and numbers[0] not in self._buckets:
            heapq.heappop(numbers)
        return numbers[0] if numbers else None

    def _look(self, number: int) -> _Open[Key, Value]:
        """Give a bucket with all of it in order."""
        opened = self._opened.get(number)
        if opened is None:
            opened = self._opened[number] = _Open()
        if fresh := self._buckets[number]:
            self._buckets[number] = []
            opened.settle(fresh)
        return opened

    def _take(self, number: int, now_ms: int, max_count: int) -> list[Entry[Key, Value]]:
        """Take out of a bucket what is due, in order."""
        waiting = self._waiting
        taken: list[Entry[Key, Value]] = []
        if max_count == 0:
            return taken
        mark_count = 0
        for entry in self._look(number).in_order(now_ms):
            if waiting.get(entry[1]) is not entry:
                mark_count += 1
                continue
            del waiting[entry[1]]
            taken.append(entry)
            if len(taken) == max_count:
                break
        if mark_count:
            self._marks[number] -= mark_count
        self._tidy(number)
        return taken

    def _take_all(self, number: int) -> list[Entry[Key, Value]]:
        """Take out a whole bucket, in order."""
        waiting = self._waiting
        if number in self._opened:
            taken = list(self._look(number).in_order(DUE_MS_MAX))
            del self._opened[number], self._buckets[number]
        else:
            taken = self._buckets.pop(number)
            taken.sort(key=_due_ms)
        if self._marks.pop(number, 0):
            taken = [entry for entry in taken if waiting.get(entry[1]) is entry]
        for entry in taken:
            del waiting[entry[1]]
        return taken

    def _count(self, number: int) -> int:
        """How many wait in a bucket."""
        held = len(self._buckets[number]) - self._marks.get(number, 0)
        return held + len(self._opened[number]) if number in self._opened else held

    def _tidy(self, number: int) -> None:
        """Let go of marks that are too many, and of a bucket that has nothing else."""
        count, mark_count = self._count(number), self._marks.get(number, 0)
        if count == 0:
            del self._buckets[number]
            self._opened.pop(number, None)
            self._marks.pop(number, None)
        elif mark_count > count + _SPARE_MARKS:
            waiting = self._waiting
            self._buckets[number] = [
                entry for entry in self._buckets[number] if waiting.get(entry[1]) is entry
            ]
            if number in self._opened:
                self._opened[number].sweep(waiting)
            del self._marks[number]

    def _let_go(self, count: int) -> None:
        """Give memory back: a dict keeps the room that it once needed until it is made anew."""
        self._gone += count
        if self._gone > 4 * len(self._waiting) + _SPARE_GONE:
            self._waiting = dict(self._waiting)
            if len(self._waiting) > _MANY * len(self._buckets) and self._width_ms > self._bucket_ms:
                self._fit()
            else:
                self._buckets = dict(self._buckets)
                self._marks = dict(self._marks)
                self._opened = dict(self._opened)
                self._numbers = list(self._buckets)
                heapq.heapify(self._numbers)
                self._new_numbers = []
                self._bucket_room = 2 * len(self._buckets) + _SPARE_BUCKETS
            self._gone = 0

    def _fit(self) -> None:
        """Have buckets that hold neither next to nothing nor very many, where they do."""
        count, bucket_count = len(self._waiting), len(self._buckets)
        if count < _FEW * bucket_count:
            self._width_ms *= -(-_GOOD * bucket_count // count)
            self._make_buckets()
        elif count > _MANY * bucket_count:
            narrower = self._width_ms * _GOOD * bucket_count // count
            self._width_ms = max(self._bucket_ms, narrower)
            self._make_buckets()
        self._bucket_room = len(self._buckets) + count // 2 + _SPARE_BUCKETS

    def _make_buckets(self) -> None:
        """Make every bucket anew, of what waits: that stands in the order of adding."""
        width = self._width_ms
        buckets: dict[int, list[Entry[Key, Value]]] = {}
        for entry in self._waiting.values():
            number = entry[0] // width
            if (bucket := buckets.get(number)) is not None:
                bucket.append(entry)
            else:
                buckets[number] = [entry]
        self._buckets, self._marks, self._opened = buckets, {}, {}
        self._numbers = list(buckets)
        heapq.heapify(self._numbers)
        self._new_numbers = []


def _whole(name: str, value: object, *, low: int) -> int:
    """Give a whole number within its limits, or raise MessageError; numpy's are taken too."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # what is none raises TypeError
    except TypeError as error:
        raise MessageError(f"{name}: wanted a whole number, got {typed(value)}") from error
    if not low <= number <= DUE_MS_MAX:
        raise MessageError(f"{name}: wanted {low} to {DUE_MS_MAX}, got {quoted(value)}")
    return number
