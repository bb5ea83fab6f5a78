"""`SnapshotLog`: the commit log of a read-only store, as components that read expect it.

Thread safety: one thread at a time.
Invariants: `durable`, `written` and `end` are the same: how far the log is read.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import topics_json
from timerstore._engine.format.store_paths import (
    WHEEL_TIMER_TOPIC,
    Tree,
    backup_of,
    can_have_queue,
    is_topic,
    queue_number,
)
from timerstore._engine.format.topics_json import Topics
from timerstore._engine.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from timerstore._engine.queues.dispatch import KeyFinder
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.snapshot.log_windows import is_segment_name
from timerstore._engine.storage.disk import Disk, File, ReadOnlyDisk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError, FailedError, GoneError

# --- snapshot segments ---
# `SnapshotSegments`: mapped segment files that another process writes, read up to a limit.
#
# C functions that walk records for a point read need a `ts_view` of whole mapped segments. Columnar
# scans use log_windows.py instead.
#
# Thread safety: one thread at a time.
# Invariants:
#     1. Nothing outside [begin, end) is read.
#     2. A map stays as long as its segment lies within that range. So a file that the owner unlinks
#        can be read to its end.
# Raises: GoneError if a file was removed. CorruptError if a file has another size.


class SnapshotSegments(Segments):
    """The files of one space, up to a limit."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes, segment_bytes)
        self._begin = 0

    @property
    def begin(self) -> int:
        """The first offset that is read."""
        return self._begin

    def show(self, begin: int, end: int) -> None:
        """Read [begin, end) from now on, and close all other files. No view may be held."""
        size = self.segment_bytes
        self._begin = begin
        self.numbers = list(range(begin // size, -(-end // size))) if begin < end else []
        kept = set(self.numbers)
        with self._lock:
            for number in [one for one in self._maps if one not in kept]:
                self._unmap(number)
            for number in [one for one in self._open if one not in kept]:
                del self._open[number]

    def _file(self, number: int) -> File:
        is_new = number not in self._open
        try:
            file = super()._file(number)
        except FailedError as error:
            if self._disk.exists(self.path(number)):
                raise
            raise GoneError(
                "a file was removed while it was read", where=self.path(number)
            ) from error
        if is_new and (size := file.size()) != self.segment_bytes:
            with self._lock:
                self._open.pop(number, None)
            raise CorruptError(
                "a segment of another size",
                where=self.path(number),
                wanted=f"{self.segment_bytes} bytes",
                got=size,
            )
        return file

    def sync_range(self, begin: int, end: int) -> None:
        """Make these bytes durable, with one sync for each file. A file that was removed needs
        none.
        """
        size = self.segment_bytes
        for number in range(begin // size, -(-end // size)):
            with suppress(GoneError):
                self._file(number).sync()


class SnapshotUnits(SnapshotSegments):
    """The files of a queue, followed by units in memory that its owner has not written."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes)
        self._tail = bytearray()
        self.tail_begin: int | None = None
        """The offset in bytes from which on units are in memory; None: all are in files."""

    def load(self, **_how: Any) -> None:
        """Find the files. A last file that is just being made is left out."""
        size, found = self.segment_bytes, []
        self.has_incompatible_files, self.tail_begin = False, None
        self._tail = bytearray()
        names = [name for name in self._disk.list(self.directory) if is_segment_name(name)]
        for name in names:
            bytes_there = self._disk.file_bytes(self.directory / name)
            if int(name) % size == 0 and bytes_there == size:
                found.append(int(name) // size)
            elif name != names[-1]:
                self.has_incompatible_files = True
        self.show(0, 0)
        self.numbers = found
        self._begin = found[0] * size if found else 0

    def go_on(self, offset: int, units: bytes | memoryview) -> None:
        """Put units into memory from an offset on, in place of those there."""
        if self.tail_begin is None:
            self.tail_begin = offset
        assert self.tail_begin <= offset <= self.tail_begin + len(self._tail), "a gap in a queue"
        self._tail[offset - self.tail_begin :] = units

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes from files and memory."""
        if self.tail_begin is None or offset + size <= self.tail_begin:
            return super().read(offset, size)
        head = b""
        if offset < self.tail_begin:
            head = super().read(offset, self.tail_begin - offset)
        at = max(0, offset - self.tail_begin)
        return head + bytes(self._tail[at : at + size - len(head)])


# --- snapshot log ---


class SnapshotLog(NotCopyable):
    """One store's log."""

    def __init__(self, segments: SnapshotSegments) -> None:
        self.segments = segments
        self.lock = threading.RLock()
        self.last_store_ms = 0
        self.end = 0

    def show(self, begin: int, end: int) -> None:
        """Read [begin, end) from now on."""
        self.segments.show(begin, end)
        self.end = end

    @property
    def durable(self) -> int:
        """The offset after the last record that is read."""
        return self.end

    @property
    def written(self) -> int:
        """The offset after the last record that is read."""
        return self.end

    def write_out(self) -> int:
        """Return the end, because a read-only store has nothing to write."""
        return self.end

    def written_through(self, offset: int) -> int:  # noqa: ARG002
        """The offset after the last record that is read."""
        return self.end


# --- snapshot queue ---
# `SnapshotQueue`: a consume queue that its owner goes on writing, read up to the position.
#
#     units in files, of the log below `covered` | units in memory, made from the log after it
#
# Thread safety: one thread at a time.
# Invariants: `count` is the offset after the last unit of the position. No unit past it is
# returned.
# Raises: CorruptError if the files end before the known end of the queue.


class SnapshotQueue(ConsumeQueue):
    """One queue of one topic."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes)
        self._segments: SnapshotUnits = SnapshotUnits(disk, directory, segment_bytes)
        self.is_settled = False

    def load(self) -> None:
        """Return: files are read when they are needed."""

    def unsettle(self) -> None:
        """Look at the files again before the next read."""
        self.is_settled = False

    def trust(self) -> None:
        """Use all units without comparing them with the log."""
        self.old_count = 0

    def settle(self, covered: int, log_begin: int, wanted: int | None) -> None:
        """Count the units that point below `covered` of the log. Retention removed the messages
        below `log_begin`.

        Raises:
            CorruptError: the queue does not end at offset `wanted`.
        """
        self._segments.load()
        if covered <= log_begin:  # all units come from the log
            self._segments.show(0, 0)
            self.count = self.min_offset = self.old_count = wanted or 0
        else:
            is_whole = self.is_whole(log_begin)
            if is_whole:
                self.recover(covered, log_begin)
            if not is_whole or (wanted is not None and self.count != wanted):
                raise CorruptError(
                    "a queue does not reach as far as the log",
                    where=self._segments.directory,
                    wanted=f"units up to {wanted}",
                    got=self.count,
                )
        self.is_settled = True

    def may_lack_units(self) -> bool:
        """Return whether the first unit is the first of a file, so that others may have been in
        files before it.
        """
        return 0 < self._segments.begin == self.min_offset * UNIT_BYTES

    def end_in_files(self) -> int:
        """Return where the record of the last unit in files ends; 0 without any unit."""
        self._segments.load()
        return self.last_record_end()

    def add(self, offset: int, units: bytes | memoryview) -> None:
        """Add units in memory, from a queue offset on. It must follow the units in files, unless
        the queue has no files.
        """
        if offset != self.count:
            if (
                offset < self.count
                or self._segments.numbers
                or self._segments.tail_begin is not None
            ):
                raise CorruptError(
                    "queue offsets in the log have a gap",
                    where=self._segments.directory,
                    wanted=f"{self.count} and on",
                    got=offset,
                )
            self.min_offset = offset
        self._segments.go_on(offset * UNIT_BYTES, units)
        self.count = offset + len(units) // UNIT_BYTES

    def after_gap(self, offset: int) -> int:
        """Return `offset`, or if its file is missing the first offset of the next file."""
        begin = self._segments.tail_begin
        if begin is not None and offset * UNIT_BYTES >= begin:
            return offset
        return super().after_gap(offset)

    def visible(self, log_end: int) -> int:  # noqa: ARG002 - no unit points past it
        """Return the queue offset after the last unit."""
        return max(self.min_offset, self.count)

    def forget(self) -> None:
        """Close the files; the queue must be settled again."""
        self.is_settled = False
        self._segments.close()


# --- queue files ---
# The files that name topics and queues: config/topics.json and the folders of consumequeue/.


FILLER_SIZE = 0x7FFFFFFF
"""The size in units that a broker writes before the first message of a queue that does not begin
at 0."""


def read_topics(disk: Disk, tree: Tree) -> Topics:
    """Return the topics as their owner has written them. Raises CorruptError."""
    return topics_json.read(
        disk.read_small(tree.topics_json), disk.read_small(backup_of(tree.topics_json))
    )


def queue_folders(disk: Disk, tree: Tree) -> Iterator[tuple[str, int, Path]]:
    """Return (topic, queue, folder) of each consume queue that has a folder."""
    for name in disk.list(tree.queues):
        topic_folder = tree.queues / name
        for folder in disk.list(topic_folder) if disk.is_directory(topic_folder) else ():
            number = queue_number(folder)
            if number is not None and disk.is_directory(topic_folder / folder):
                yield name, number, topic_folder / folder


# --- snapshot routes ---
# `SnapshotRoutes`: topics and queues of a store that another process writes, as its files show
# them.
#
# They come from config/topics.json and from the folders of the queues. A route that only a record
# names is made in memory.
#
# Thread safety: one thread at a time.
# Invariants: nothing is written.


class SnapshotRoutes(Routes):
    """All queues of a store."""

    def __init__(self, disk: ReadOnlyDisk, tree: Tree, queue_segment_bytes: int) -> None:
        self._read_only = disk
        super().__init__(disk, tree, queue_segment_bytes)
        self._seen: bytes | None = None

    def look(self) -> None:
        """Read the topics that the owner has added."""
        tree = self._tree
        text = self._disk.read_small(tree.topics_json)
        if text == self._seen:
            return
        try:
            found = read_topics(self._disk, tree)
        except CorruptError as error:
            raise CorruptError(f"topics cannot be read: {error}", where=tree.topics_json) from error
        self._topics, self._seen = found, text
        self.deleted_below.update(found.deleted)
        for topic in found.deleted.keys() - found.topics.keys():
            self._made_count.pop(topic, None)

    def load(self) -> None:
        """Make a route for every queue that has a folder."""
        for topic, queue_id, _ in queue_folders(self._disk, self._tree):
            if is_topic(topic):
                self.make(topic, queue_id, 0, persist=False)
        self.make(WHEEL_TIMER_TOPIC, 0, 0)

    def find(self, topic: str, queue_id: int) -> Route | None:
        """Return the route of a queue, which the owner may have just made. None: no such queue."""
        route = self.get(topic, queue_id)
        if route is None and can_have_queue(topic, queue_id):
            if queue_id < self.full_queue_count(topic):
                return self.make(topic, queue_id, 0)
            if self._disk.is_directory(self._tree.queue(topic, queue_id)):
                return self.make(topic, queue_id, 0, persist=False)
        return route

    def queues(self) -> list[SnapshotQueue]:
        """Return the queue of each route."""
        found = [route.queue for route in self.by_index]
        return [queue for queue in found if isinstance(queue, SnapshotQueue)]

    def clear_counts(self) -> None:
        """Set the number of pending messages of each queue to zero."""
        for route in self.by_index:
            route.native.pending = route.native.level_pending = 0

    def _persist(self, topic: str, queue_count: int, now_ms: int) -> None:
        self._topics = self._topics.with_topic(topic, queue_count, now_ms)

    def _make_queue(self, directory: Path) -> SnapshotQueue:
        return SnapshotQueue(self._read_only, directory, self._queue_segment_bytes)


class SettledQueues:
    """Takes the part of dispatch in a snapshot, whose queues do not move."""

    def __init__(self, index: KeyFinder | None = None) -> None:
        self.index = index

    def through(self, offset: int) -> None:
        """Return: the queues reach as far as the log."""

    def rebuild(self, store_id: int) -> None:
        """Return: there is no index to rebuild."""
