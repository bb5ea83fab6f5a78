"""Keep keys with due times in memory, and return them when they are due; usable without a store.

A dict finds a pending entry by its key. Intervals of time ("buckets") hold the entries by due time.
A bucket is sorted only when it is the nearest one and is read. This is the life of one bucket with
bucket_ms=1000: three adds, a read, another add, a read:

    bucket [1700 1200 1200]                           as added: one append each
    run    [1700 1200 1200]                           sorted once; the next entry is at its end
    run    [1700 1200 1200]  bucket [1500]            added while the bucket is open
    run    [1700 1200 1200]  late [1500]              a small heap; the run is not sorted again

A nearly empty bucket costs more than it saves. If buckets turn out to be nearly empty, all are
rebuilt wider. If they turn out to be full, they are rebuilt finer, down to bucket_ms. Entries are
plain tuples, and buckets plain lists until they are opened, because the garbage collector does not
track tuples of numbers and strings.

Thread safety: none. There is no thread, no clock and no lock; the caller passes the current time,
    and makes one call at a time.
Invariants:
    1. An entry is pending if `_waiting` has this very object under its key. Any other entry of a
       bucket is a tombstone, left by a cancel.
    2. A list in `_buckets` is in the order of adding. Its number is in `_numbers` or
       `_new_numbers`, which may also have numbers of removed buckets.
    3. A bucket has at least one pending entry, and at most 64 more tombstones than pending entries.
       The size of all tables is at most a constant times the number of pending entries, plus a
       constant.
    4. All buckets are `_width_ms` wide. The width changes only when all are rebuilt, so rarely that
       the cost is constant for each added or expired key.
Raises: MessageError for invalid arguments; nothing was changed.
"""

import heapq
import operator
import sys
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import MessageError, quoted, typed

DUE_MS_MAX = 2**63 - 1
"""Latest due time: the largest signed integer of eight bytes, as in the store's formats."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Entry = tuple[int, Key, Value]  # due time in ms, key, value

_SPARE_TOMBSTONES = 64  # too few to be worth a sweep
_SPARE_REMOVED = 1024  # removed entries, too few to be worth new tables
_SPARE_BUCKETS = 256  # too few to be worth checking how full they are
# Entries a bucket: buckets with fewer than _FEW or more than _MANY are rebuilt to hold _GOOD.
_FEW = 8
_GOOD = 64
_MANY = 1024
_due_ms = operator.itemgetter(0)


class _Open(Generic[Key, Value]):
    """The sorted entries of a bucket that has been read."""

    __slots__ = ("late", "late_count", "run")

    def __init__(self) -> None:
        self.run: list[Entry[Key, Value]] = []  # descending; of equal times the first added is last
        self.late: list[tuple[int, int, Entry[Key, Value]]] = []  # a heap by due time, then number
        self.late_count = 0

    def __len__(self) -> int:
        return len(self.run) + len(self.late)

    def settle(self, fresh: list[Entry[Key, Value]]) -> None:
        """Add new entries. For a few of them, the sorted run is not sorted again."""
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
        """Remove tombstones."""
        self.run = [entry for entry in self.run if waiting.get(entry[1]) is entry]
        self.late = [one for one in self.late if waiting.get(one[2][1]) is one[2]]
        heapq.heapify(self.late)

    def in_order(self, end_ms: int) -> Iterator[Entry[Key, Value]]:
        """Remove and yield the entries due at end_ms or before, with tombstones, in order."""
        run, late = self.run, self.late
        while True:
            while run and not (late and late[0][0] < run[-1][0]):
                if run[-1][0] > end_ms:
                    return
                yield run.pop()
            if not late or late[0][0] > end_ms:
                return
            yield heapq.heappop(late)[2]


class DelayQueue(NotCopyable, Generic[Key, Value]):
    """Keys with due times, in memory and without a thread.

    queue = DelayQueue[str, Order]()
    queue.add("order-4711", 1_700_000_030_000, order)
    queue.cancel("order-4711")
    for due_ms, key, value in queue.expire(now_ms): ...

    `expire` returns due keys with a resolution of one millisecond, in order of (due time, order of
    adding), even if the clock was set. `add`, `cancel` and `find` take constant time on average;
    `expire` and `next_due_ms` sort one bucket at a time. Memory is proportional to the number of
    pending keys. `bucket_ms` is the least width of a bucket. Any width gives the same results, and
    buckets become wider by themselves if few keys are pending. Several threads need a lock.
    """

    def __init__(self, *, bucket_ms: int = 1000) -> None:
        self._bucket_ms = self._width_ms = _whole("bucket_ms", bucket_ms, low=1)
        self._buckets_max = _SPARE_BUCKETS  # until the next check of how full they are
        self._waiting: dict[Key, Entry[Key, Value]] = {}
        self._buckets: dict[int, list[Entry[Key, Value]]] = {}
        self._opened: dict[int, _Open[Key, Value]] = {}
        self._tombstones: dict[int, int] = {}  # how many, for buckets that have any
        self._numbers: list[int] = []  # a heap; it may have a number twice
        self._new_numbers: list[int] = []
        self._removed = 0  # entries expired or cancelled since the tables were built

    def add(self, key: Key, due_ms: int, value: Value = None) -> None:  # type: ignore[assignment]
        """Add a key that is due at due_ms (ms since 1970). A time in the past is due at once.

        Raises:
            MessageError: the key is already pending or cannot be hashed, or due_ms is not a whole
                number from 0 to 2**63 - 1.
        """
        if type(due_ms) is not int or not 0 <= due_ms <= DUE_MS_MAX:
            due_ms = _whole("due_ms", due_ms, low=0)
        if (there := self.find(key)) is not None:
            raise MessageError(f"key: {quoted(key)} is already pending, due at {there[0]}")
        self._waiting[key] = entry = (due_ms, key, value)
        number = due_ms // self._width_ms
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.append(entry)
        else:
            self._buckets[number] = [entry]
            self._new_numbers.append(number)
            if len(self._buckets) > self._buckets_max:
                self._fit()

    def cancel(self, key: Key) -> Entry[Key, Value] | None:
        """Remove a key before it is due.

        Return (due_ms, key, value), or None if the key is not pending.

        Raises:
            MessageError: the key cannot be hashed.
        """
        entry = self.find(key)
        if entry is not None:
            del self._waiting[key]
            number = entry[0] // self._width_ms
            self._tombstones[number] = tombstone_count = self._tombstones.get(number, 0) + 1
            if 2 * tombstone_count > len(self._buckets[number]):  # otherwise nothing can be removed
                self._tidy(number)
            self._shrink(1)
        return entry

    def find(self, key: Key) -> Entry[Key, Value] | None:
        """Return (due_ms, key, value) of a pending key, or None if it is not pending.

        Raises:
            MessageError: the key cannot be hashed.
        """
        try:
            return self._waiting.get(key)
        except TypeError as error:
            raise MessageError(
                f"key: wanted a hashable value, got {type(key).__name__} ({error})"
            ) from error

    def expire(self, now_ms: int, *, max_count: int | None = None) -> list[Entry[Key, Value]]:
        """Remove and return the keys that are due at now_ms or before, in order.

        Return (due_ms, key, value) of each; of at most max_count keys if given.

        Raises:
            MessageError: an argument is not a whole number from 0 to 2**63 - 1.
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
            if number in self._buckets:  # the rest is not due, or is over the limit
                break
        self._shrink(len(found))
        return found

    def next_due_ms(self) -> int | None:
        """Return the earliest due time, or None if no key is pending."""
        number = self._first_number()
        if number is None:
            return None
        opened = self._open(number)
        for entry in opened.in_order(DUE_MS_MAX):
            if self._waiting.get(entry[1]) is entry:
                opened.run.append(entry)  # put it back: it precedes all others
                return entry[0]
            self._tombstones[number] -= 1
        raise AssertionError("a bucket has no pending entry")

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: Key) -> bool:
        return self.find(key) is not None

    def __repr__(self) -> str:
        return f"<DelayQueue, {len(self)} pending>"

    # --- buckets ---

    def _first_number(self) -> int | None:
        """Return the number of the earliest bucket, and drop numbers of removed buckets."""
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

    def _open(self, number: int) -> _Open[Key, Value]:
        """Return a bucket with all of its entries in order."""
        opened = self._opened.get(number)
        if opened is None:
            opened = self._opened[number] = _Open()
        if fresh := self._buckets[number]:
            self._buckets[number] = []
            opened.settle(fresh)
        return opened

    def _take(self, number: int, now_ms: int, max_count: int) -> list[Entry[Key, Value]]:
        """Remove and return due entries of a bucket, in order."""
        waiting = self._waiting
        taken: list[Entry[Key, Value]] = []
        if max_count == 0:
            return taken
        tombstone_count = 0
        for entry in self._open(number).in_order(now_ms):
            if waiting.get(entry[1]) is not entry:
                tombstone_count += 1
                continue
            del waiting[entry[1]]
            taken.append(entry)
            if len(taken) == max_count:
                break
        if tombstone_count:
            self._tombstones[number] -= tombstone_count
        self._tidy(number)
        return taken

    def _take_all(self, number: int) -> list[Entry[Key, Value]]:
        """Remove a bucket and return all of its entries, in order."""
        waiting = self._waiting
        if number in self._opened:
            taken = list(self._open(number).in_order(DUE_MS_MAX))
            del self._opened[number], self._buckets[number]
        else:
            taken = self._buckets.pop(number)
            taken.sort(key=_due_ms)
        if self._tombstones.pop(number, 0):
            taken = [entry for entry in taken if waiting.get(entry[1]) is entry]
        for entry in taken:
            del waiting[entry[1]]
        return taken

    def _count(self, number: int) -> int:
        """Return how many entries of a bucket are pending."""
        held = len(self._buckets[number]) - self._tombstones.get(number, 0)
        return held + len(self._opened[number]) if number in self._opened else held

    def _tidy(self, number: int) -> None:
        """Remove tombstones if there are too many, and a bucket that has nothing else."""
        count, tombstone_count = self._count(number), self._tombstones.get(number, 0)
        if count == 0:
            del self._buckets[number]
            self._opened.pop(number, None)
            self._tombstones.pop(number, None)
        elif tombstone_count > count + _SPARE_TOMBSTONES:
            waiting = self._waiting
            self._buckets[number] = [
                entry for entry in self._buckets[number] if waiting.get(entry[1]) is entry
            ]
            if number in self._opened:
                self._opened[number].sweep(waiting)
            del self._tombstones[number]

    def _shrink(self, count: int) -> None:
        """Release memory: a dict keeps its capacity until it is rebuilt."""
        self._removed += count
        if self._removed > 4 * len(self._waiting) + _SPARE_REMOVED:
            self._waiting = dict(self._waiting)
            if len(self._waiting) > _MANY * len(self._buckets) and self._width_ms > self._bucket_ms:
                self._fit()
            else:
                self._buckets = dict(self._buckets)
                self._tombstones = dict(self._tombstones)
                self._opened = dict(self._opened)
                self._numbers = list(self._buckets)
                heapq.heapify(self._numbers)
                self._new_numbers = []
                self._buckets_max = 2 * len(self._buckets) + _SPARE_BUCKETS
            self._removed = 0

    def _fit(self) -> None:
        """Rebuild the buckets if they have too few or too many entries each."""
        count, bucket_count = len(self._waiting), len(self._buckets)
        if count < _FEW * bucket_count:
            self._width_ms *= -(-_GOOD * bucket_count // count)
            self._make_buckets()
        elif count > _MANY * bucket_count:
            narrower = self._width_ms * _GOOD * bucket_count // count
            self._width_ms = max(self._bucket_ms, narrower)
            self._make_buckets()
        self._buckets_max = len(self._buckets) + count // 2 + _SPARE_BUCKETS

    def _make_buckets(self) -> None:
        """Rebuild all buckets from `_waiting`, which is in the order of adding."""
        width = self._width_ms
        buckets: dict[int, list[Entry[Key, Value]]] = {}
        for entry in self._waiting.values():
            number = entry[0] // width
            if (bucket := buckets.get(number)) is not None:
                bucket.append(entry)
            else:
                buckets[number] = [entry]
        self._buckets, self._tombstones, self._opened = buckets, {}, {}
        self._numbers = list(buckets)
        heapq.heapify(self._numbers)
        self._new_numbers = []


def _whole(name: str, value: object, *, low: int) -> int:
    """Return a whole number within its limits, or raise MessageError; numpy integers are valid."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # anything else raises TypeError
    except TypeError as error:
        raise MessageError(f"{name}: wanted a whole number, got {typed(value)}") from error
    if not low <= number <= DUE_MS_MAX:
        raise MessageError(f"{name}: wanted {low} to {DUE_MS_MAX}, got {quoted(value)}")
    return number
