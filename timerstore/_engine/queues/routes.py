"""Find a queue by topic and queue number, for Python and for C.

Each queue has a route: a ts_route (native/api) in a hash table that C reads.

Thread safety: any thread may look up. Making a route takes `_lock`.
Locking: `_lock`; no lock is taken under it.
Invariants:
    1. A route exists as long as the store.
    2. A topic's name and queue count are in topics.json before its first record is appended.
    3. A route appears to Python in one step. If an exception then prevents its entry in C's table,
       the next call of `make` completes it.
On-disk format: config/topics.json.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import json_text, queue_unit, topics_json
from timerstore._engine.format.lease import source_of
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.store_paths import (
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
    backup_of,
    can_have_queue,
    is_topic,
    queue_number,
)
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.storage.disk import Disk
from timerstore.errors import BusyError, CorruptError, MessageError, quoted

# --- routes ---


_KINDS = {WHEEL_TIMER_TOPIC: lib.TS_ROUTE_TIMER, SCHEDULE_TOPIC: lib.TS_ROUTE_LEVELS}


class Route(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int
    native: Any  # ts_route *
    queue: ConsumeQueue


class Routes(NotCopyable):
    """All queues of a store."""

    def __init__(self, disk: Disk, tree: Tree, queue_segment_bytes: int) -> None:
        self._disk = disk
        self._tree = tree
        self._queue_segment_bytes = queue_segment_bytes
        self._lock = Lock()
        self._by_name: dict[tuple[str, int], Route] = {}
        self._listed: list[Route] = []  # the same in order; updated on access
        self.topic_numbers: dict[str, int] = {}  # of topics that have a route, from 1
        self._made_count: dict[str, int] = {}  # one more than a topic's last queue with a route
        self.gone: set[tuple[str, int]] = set()
        """Topic and queue id of the queues of deleted topics, which no caller sees."""
        self._pointers: list[Any] = []  # all tables that C may still read
        self.native: Any = None  # ts_routes *
        self._table: Any = None
        self._rebuild(64)
        try:
            self._topics = topics_json.read(
                disk.read_small(tree.topics_json), disk.read_small(backup_of(tree.topics_json))
            )
        except CorruptError as error:
            raise CorruptError(
                f"topics cannot be read: {error}",
                where=tree.topics_json,
                wanted="a valid file or .bak, or neither: then the queue folders name the topics",
            ) from error
        self.deleted_below = {name: at for name, at in self._topics.deleted.items() if at >= 0}
        """By topic: the log offset below which its records are deleted."""
        self.deleting = {name for name, at in self._topics.deleted.items() if at < 0}
        """The topics whose deletion has begun and is not complete."""
        topics = self._topics.topics
        self.priority_topics = {name for name, one in topics.items() if one.has_priorities}
        """The topics of which each queue holds the messages of one priority."""

    # --- looking up ---

    @property
    def by_index(self) -> list[Route]:
        """All routes, by index."""
        if len(self._listed) != len(self._by_name):
            self._listed = list(self._by_name.values())
        return self._listed

    def is_found(self, topic: str, queue_id: int) -> bool:
        """Return whether C finds the route."""
        route = self._by_name.get((topic, queue_id))
        return route is not None and bool(self._table[self._place(self._table, route)])

    def get(self, topic: str, queue_id: int) -> Route | None:
        """Return the route, or None."""
        return self._by_name.get((topic, queue_id))

    def readable(self, topic: str, queue_id: object, now_ms: int) -> Route:
        """Return the route of a queue that the topic has; make it if it has no messages yet.

        Raises:
            MessageError: the topic has no such queue.
        """
        number = queue_id if type(queue_id) is int else -1
        route = self._by_name.get((topic, number))
        if route is not None:
            return route
        known = self.queue_count(topic)
        if not 0 <= number < known:
            raise MessageError(
                f"queue: topic {quoted(topic)} has {known} queues, got {quoted(queue_id)}"
            )
        return self.make(topic, number, now_ms)

    def queue_count(self, topic: str) -> int:
        """Return the topic's queue count in topics.json, 0 if it is unknown."""
        one = self._topics.topics.get(topic)
        return one.queue_count if one is not None else 0

    def full_queue_count(self, topic: str) -> int:
        """Return the topic's queue count, including queues that topics.json omits."""
        one = self._topics.topics.get(topic)
        return max(one.queue_count if one is not None else 0, self._made_count.get(topic, 0))

    def are_mixed(self) -> bool:
        """Return whether more than one topic has pending timers."""
        first = None
        for route in list(self.by_index):
            if route.native.pending and route.topic != (first := first or route.topic):
                return True
        return False

    def topics(self) -> dict[str, int]:
        """Return every topic with its queue count, including system topics."""
        names = {**self._topics.topics, **self._made_count}
        return {name: self.full_queue_count(name) for name in names}

    # --- making ---

    def load(self) -> None:
        """Make a route for every queue that has a folder, and for the timer topic."""
        for topic in filter(is_topic, self._folders(self._tree.queues)):
            for name in self._folders(self._tree.queues / topic):
                queue_id = queue_number(name)
                if queue_id is not None:
                    self.make(topic, queue_id, 0, persist=False)
        self.make(WHEEL_TIMER_TOPIC, 0, 0, persist=False)

    def _folders(self, path: Path) -> list[str]:
        """Return the names of folders. Files are ignored, as in RocketMQ."""
        names = [name for name in self._disk.list(path) if self._disk.is_directory(path / name)]
        for name in names:
            self._disk.check_no_link(path / name)
        return names

    def make(self, topic: str, queue_id: int, now_ms: int, *, persist: bool = True) -> Route:
        """Return the route; make it if it is new.

        persist: enter the queue in topics.json too, durably.

        Raises:
            MessageError: the topic's name or the queue number is not valid.
        """
        if not can_have_queue(topic, queue_id):
            raise MessageError(f"topic {topic!r} can have no queue {queue_id}")
        with self._lock:
            route = self._by_name.get((topic, queue_id))
            if persist and self.queue_count(topic) <= queue_id:
                self._persist(topic, queue_id + 1, now_ms)
            if route is None:
                route = self._make(topic, queue_id)
            self._made_count[topic] = max(self._made_count.get(topic, 0), queue_id + 1)
            self.gone.discard((topic, queue_id))
            self._enter(route)
            return route

    def grow(self, topic: str, queue_count: int, now_ms: int) -> None:
        """Raise the topic's queue count in topics.json to at least `queue_count`, durably."""
        with self._lock:
            if self.queue_count(topic) < queue_count:
                self._persist(topic, queue_count, now_ms)

    def set_priorities(self, topic: str, queue_count: int, now_ms: int) -> None:
        """Make the topic one with priorities and at least `queue_count` queues, durably."""
        with self._lock:
            if topic not in self.priority_topics:
                self._write_topics(self._topics.with_priorities(topic, queue_count, now_ms))
                self.priority_topics.add(topic)

    def _persist(self, topic: str, queue_count: int, now_ms: int) -> None:
        self._write_topics(self._topics.with_topic(topic, queue_count, now_ms))

    def _write_topics(self, topics: topics_json.Topics) -> None:
        self._disk.make_directory(self._tree.config)
        self._disk.write_small(
            self._tree.topics_json, json_text.with_checksum(topics_json.write(topics))
        )
        self._topics = topics  # after the write: if the disk is full, the next put retries
        reach("topics_json_written")

    # --- deleting ---

    def make_of_record(self, topic: str, queue_id: int, log_offset: int, now_ms: int) -> None:
        """Make the route that C needs for a record; no caller sees that of a deleted record."""
        if log_offset >= self.deleted_below.get(topic, 0):
            self.make(topic, queue_id, now_ms)
            return
        with self._lock:
            if (topic, queue_id) not in self._by_name:
                self.gone.add((topic, queue_id))
                self._enter(self._make(topic, queue_id))

    def restore(self, route: Route, now_ms: int) -> None:
        """Make a deleted topic visible again: its queue gets a unit."""
        if (route.topic, route.queue_id) in self.gone:
            self.make(route.topic, route.queue_id, now_ms)

    def is_deleting(self, topic: str) -> bool:
        """Return whether the topic, or for a retry topic that of its messages, is being deleted."""
        deleting = self.deleting
        return bool(deleting) and (topic in deleting or source_of(topic) in deleting)

    def refuse_deleting(self, topic: str) -> None:
        """Raise BusyError if the topic is being deleted."""
        if self.is_deleting(topic):
            raise BusyError(
                f"topic {topic!r} is being deleted: call again when delete_topic has returned; if "
                "it raised an error, repeat it first"
            )

    def delete(self, topic: str, below: int) -> None:
        """Empty the topic's queues, remove their files, and forget the topic.

        The caller excludes dispatch. It may be repeated after an error.

        below: the log offset below which the topic's records are deleted.
        """
        with self._lock:
            gone = {key for key in self._by_name if key[0] == topic}
            for key in gone:
                self._by_name[key].queue.empty()
            self._disk.remove_tree(self._tree.queues / topic)
            if self._disk.is_directory(self._tree.queues):
                self._disk.sync_directory(self._tree.queues)
            for key in gone:  # a reader may have opened a file
                self._by_name[key].queue.empty()
            self.deleted_below[topic] = below
            gone |= {(topic, queue_id) for queue_id in range(self.queue_count(topic))}
            self._made_count.pop(topic, None)
            self.gone |= gone

    def save_deletions(self, log_begin: int, now_ms: int, ended: Collection[str] = ()) -> None:
        """Write to topics.json which topics are deleted and which are being deleted, durably.

        ended: topics whose deletion is complete.
        """
        for key in list(self.gone):  # a topic that was made again, and has no unit yet
            route = self._by_name.get(key)
            if route is not None and (route.native.pending or route.native.level_pending):
                self.make(*key, now_ms)
        with self._lock:
            deleting = self.deleting.difference(ended)
            gone = {topic for topic, _ in self.gone}.difference(self._made_count, deleting)
            below = {name: at for name, at in self.deleted_below.items() if at > log_begin}
            deleted = {**below, **dict.fromkeys(sorted(deleting), -1)}
            new = self._topics.with_deleted(deleted, gone.union(ended), now_ms)
            if new is not self._topics:
                self._write_topics(new)
            self.priority_topics -= gone.union(ended)
            self.deleting -= set(ended)

    def _make(self, topic: str, queue_id: int) -> Route:
        name = topic.encode("ascii")
        real = b"REAL_TOPIC\x01" + name + b"\x02REAL_QID\x01%d\x02" % queue_id
        native = ffi.new(
            "ts_route *",
            {
                "index": len(self._by_name),
                "kind": _KINDS.get(topic, lib.TS_ROUTE_REAL),
                "topic_number": self.topic_numbers.setdefault(topic, len(self.topic_numbers) + 1),
                "queue_id": queue_id,
                "topic_hash": lib.ts_topic_hash(name, len(name)),
                "topic_size": len(name),
                "real_size": len(real),
            },
        )
        ffi.memmove(native.topic, name, len(name))
        ffi.memmove(native.real, real, len(real))
        queue = self._make_queue(self._tree.queue(topic, queue_id))
        queue.load()
        route = Route(topic, queue_id, native, queue)
        self._by_name[topic, queue_id] = route  # last: from here on the route exists
        return route

    def _make_queue(self, directory: Path) -> ConsumeQueue:
        return ConsumeQueue(self._disk, directory, self._queue_segment_bytes)

    def _enter(self, route: Route) -> None:
        """Enter the route in the table of C, if it is not there yet."""
        if 2 * len(self._by_name) > self.native.mask:
            self._rebuild(4 * (int(self.native.mask) + 1))
        else:
            self._table[self._place(self._table, route)] = route.native

    def _rebuild(self, size: int) -> None:
        table = ffi.new("ts_route *[]", size)
        native = ffi.new("ts_routes *", {"slots": table, "mask": size - 1})
        for route in self.by_index:
            table[self._place(table, route)] = route.native
        self._pointers.append((table, native))
        self._table, self.native = table, native

    def _place(self, table: Any, route: Route) -> int:
        """Return the slot of a route in a table, or the slot for it."""
        native, mask = route.native, len(table) - 1
        at = int(lib.ts_route_key(native.topic, native.topic_size, native.queue_id)) & mask
        while table[at] and table[at] != native:
            at = (at + 1) & mask
        return at

    def native_by_index(self) -> Any:
        """Return an array of all ts_route pointers, by index, for one call."""
        return ffi.new("ts_route *[]", [route.native for route in self.by_index] or [ffi.NULL])

    def queues(self) -> Sequence[ConsumeQueue]:
        """Return the queues of all routes."""
        return [route.queue for route in list(self.by_index)]

    def close(self) -> None:
        """Close the files of all queues."""
        for route in self.by_index:
            route.queue.close()


# --- old units ---
# Check units that existed when the store was opened against the log.
#
# The tags code of a unit takes 8 of its 20 bytes and has no checksum. For a level message these
# bytes hold the due time. So a unit that this opening did not write is compared with its message.
#
# Thread safety: any thread.
# Invariants:
#     1. A filter skips a message by its unit's tags code only if this opening wrote or checked the
#        unit.
#     2. A level message is due at the time that its record and the table of delays give.
# Raises: CorruptError if the tags code of a unit differs from its message's tags.
# See also: docs/decisions/0006-index-and-queries.md.


def old_unit_count(route: Route, offset: int, count: int) -> int:
    """Return how many of `count` units from a queue offset existed at opening: the first ones."""
    return max(0, min(count, route.queue.old_count - offset))


def check_tags(log: LogReader, view: Any, route: Route, units: bytes, offset: int) -> int:
    """Return how many units from the first on have the tags code of their messages.

    offset: the queue offset of the first unit.

    Returns 0 if the first unit differs. Raises CorruptError if its message cannot be read.
    """
    count, done = old_unit_count(route, offset, len(units) // UNIT_BYTES), 0
    while done < count:
        got = lib.ts_old_units_check(
            view,
            route.native,
            ffi.from_buffer("uint8_t[]", units) + done * UNIT_BYTES,
            count - done,
            offset + done,
        )
        if got > 0:
            done += got
        elif got == lib.TS_CORRUPT and (done or view.fault == lib.TS_FAULT_NONE):
            return done
        else:
            log.segments.provide(view, got, "pull")
    return len(units) // UNIT_BYTES


def wrong_tags(route: Route, offset: int) -> CorruptError:
    """Return the error for a unit whose tags code differs from its message's tags."""
    return CorruptError(
        "a queue unit has other tags than its message", where=route.queue.where(offset)
    )


class LevelUnits(NotCopyable):
    """Reads units of the level topic."""

    def __init__(self, log: LogReader, delays: Sequence[int]) -> None:
        self._log = log
        self._delays = ffi.new("int64_t[]", list(delays))
        self._level_count = len(delays)

    def read(self, route: Route, offset: int, count: int) -> queue_unit.Units:
        """Return units [offset, offset + count), with the due times in place of tags codes.

        The units must be below the queue's count.
        """
        data = bytearray(route.queue.read(offset, count))
        assert len(data) == count * UNIT_BYTES, "units below the count of a queue exist"
        old, done = old_unit_count(route, offset, count), 0
        if old:
            units = ffi.from_buffer("uint8_t[]", data)
            with self._log.segments.view(self._log.written) as view:
                while done < old:
                    done += self._log.segments.call(
                        view,
                        "level",
                        lib.ts_old_units_repair,
                        route.native,
                        units + done * UNIT_BYTES,
                        old - done,
                        offset + done,
                        self._delays,
                        self._level_count,
                        at_least=1,
                    )
        return queue_unit.read(bytes(data))
