"""Where records begin in a commit log, found by its consume queues and the starts of its segments.

Invariants: an offset that `RecordStarts` returns begins a record, which was read and checked.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import queue_unit
from timerstore._engine.format.store_paths import (
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
    segment_name,
)
from timerstore._engine.snapshot.log_windows import Windows, is_record, segments_of, skip_records
from timerstore._engine.snapshot.position import Snapshot
from timerstore._engine.snapshot.snapshot_log import FILLER_SIZE, queue_folders, read_topics
from timerstore._engine.storage.disk import Disk
from timerstore.errors import TimerStoreError

# --- record starts ---


_QUEUES_READ = 8


class QueueUnits(NotCopyable):
    """The units of one consume queue, by number. Each is read when it is asked for."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._disk = Disk()
        self._begins = segments_of(directory, segment_bytes)
        self.begin = self._begins[0] // queue_unit.UNIT_BYTES if self._begins else 0
        stop = self._begins[-1] + segment_bytes if self._begins else 0
        # Units have no gaps, and zeros follow the last one.
        self.end = _first(self.begin, stop // queue_unit.UNIT_BYTES, lambda n: self.at(n)[1] <= 0)

    def at(self, number: int) -> tuple[int, int]:
        """Return a unit's log offset and size; (0, 0) if there is no such unit."""
        found = self._in_file(number, 1)
        if not len(found):
            return 0, 0
        return int(found["log_offset"][0]), int(found["size"][0])

    def read(self, begin: int, end: int) -> queue_unit.Units:
        """Return units [begin, end), up to the first one that is not in a file."""
        end = min(end, self.end)
        parts = [np.empty(0, queue_unit.QUEUE_UNIT)]
        while self.begin <= begin < end:
            found = self._in_file(begin, end - begin)
            if not len(found):
                break
            parts.append(found)
            begin += len(found)
        return np.concatenate(parts)

    def _in_file(self, number: int, most: int) -> queue_unit.Units:
        """Return units from a number on, at most `most`, that are in the same file."""
        begin = number * queue_unit.UNIT_BYTES
        in_file = begin % self._segment_bytes
        path = self._directory / segment_name(begin - in_file)
        if not self._disk.exists(path):
            return np.empty(0, queue_unit.QUEUE_UNIT)
        buffer = bytearray(min(most * queue_unit.UNIT_BYTES, self._segment_bytes - in_file))
        got = self._disk.open(path, read_only=True).read_into(memoryview(buffer), in_file)
        return queue_unit.read(bytes(buffer[: got - got % queue_unit.UNIT_BYTES]))

    def first_from(self, log_offset: int) -> int | None:
        """Return the log offset of the first unit that does not lie below this one."""
        number = self.number_from(log_offset)
        return self.at(number)[0] if number < self.end else None

    def number_from(self, log_offset: int) -> int:
        """Return the number of the first unit that points to this log offset or past it."""

        def is_from_there(number: int) -> bool:
            at, size = self.at(number)
            return size != FILLER_SIZE and at >= log_offset

        return _first(self.begin, self.end, is_from_there)

    def range_within(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of the log that the units of [begin, end) span; empty without any."""
        low = self.number_from(begin)
        high = self.number_from(end)
        if low >= high:
            return end, end
        last, size = self.at(high - 1)
        return self.at(low)[0], min(end, last + size)


def _first(begin: int, end: int, is_after: Callable[[int], bool]) -> int:
    """Return the first number in [begin, end) for which `is_after` is true, else `end`."""
    return begin + bisect_left(range(begin, end), True, key=is_after)


class RecordStarts:
    """Known starts of records in one commit log."""

    def __init__(self, tree: Tree, queue_segment_bytes: int, windows: Windows) -> None:
        self._windows = windows
        folders = queue_folders(Disk(), tree)
        queues = (QueueUnits(folder, queue_segment_bytes) for _, _, folder in folders)
        longest = sorted(queues, key=lambda one: one.end - one.begin, reverse=True)
        self._queues = longest[:_QUEUES_READ]

    def first_from(self, offset: int, segment_bytes: int) -> int:
        """Return the first known start that does not lie below an offset, or the log's end."""
        end = self._windows.end
        following = offset + -offset % segment_bytes
        found = [following] if following < end else []
        for queue in self._queues:
            at = queue.first_from(offset)
            if at is not None and offset <= at < end and is_record(self._windows, at):
                found.append(at)
        return min(found, default=end)


# --- queue cover ---
# Decide whether consume queues can be used to find a topic's records. They are derived files, and
# may be missing or incomplete.
#
# Invariants: `is_covered` is true only if the topics' queues exist and reach the end of the log
# that is read. It is false if anything cannot be read.


_UNLISTED = {WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC}
"""Topics that topics.json may leave out though they have records."""


def is_covered(store: Snapshot, topics: Iterable[str]) -> bool:
    """Return whether every record of these topics below the limit has its queue unit.

    Queues are written in the order of the log. If one of them has the last record, all of them
    reached it.
    """
    try:
        asked = set(topics)
        return _are_there(store, asked) and _is_reached(store, asked)
    except TimerStoreError:
        return False


def _are_there(store: Snapshot, topics: set[str]) -> bool:
    disk, tree = Disk(), store.tree
    folders = {name for name in disk.list(tree.queues) if disk.is_directory(tree.queues / name)}
    missing = topics - folders
    if not missing:
        return True
    if not disk.exists(tree.topics_json) or missing & _UNLISTED:
        return False
    known = read_topics(disk, tree).topics
    return not missing & known.keys()  # a topic that was never created has no record


def _is_reached(store: Snapshot, topics: set[str]) -> bool:
    begin, end = store.log_begin, store.log_end
    reached = begin
    for units in _queues(store, topics):
        low, high = units.range_within(begin, end)
        reached = max(reached, high) if low < high else reached
        if reached == end:
            return True
    # A blank at the end of a segment has no unit.
    return begin == end or skip_records(store.log(verify=False), reached, 1)[0] == 0


def _queues(store: Snapshot, first: set[str]) -> Iterator[QueueUnits]:
    found = sorted(queue_folders(Disk(), store.tree), key=lambda one: one[0] not in first)
    return (QueueUnits(folder, store.queue_segment_bytes) for _, _, folder in found)
