"""Routes: topic and queue number to the queue, for Python and for C.

Data:     config/topics.json; one ts_route (native/api/route.h) a queue.
Threads:  any may look up; making one takes `_lock`.
Locks:    `_lock`, then nothing.
Holds:    (1) a route lives as long as the store; (2) a topic's name and queue count are in
          topics.json before its first record is appended; (3) a route is there for Python in one
          step; where something came between that and C's finding it, the next who asks sees to it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import json_text, topics_json
from timerstore._engine.format.store_paths import (
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
    backup_of,
    can_have_queue,
    is_topic,
    queue_number,
)
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError, MessageError

_KINDS = {WHEEL_TIMER_TOPIC: lib.TS_ROUTE_TIMER, SCHEDULE_TOPIC: lib.TS_ROUTE_LEVELS}


class Route(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int
    native: Any  # ts_route *
    queue: ConsumeQueue


class Routes(Owner):
    """All queues of a store."""

    def __init__(self, disk: Disk, tree: Tree, queue_segment_bytes: int) -> None:
        self._disk = disk
        self._tree = tree
        self._queue_segment_bytes = queue_segment_bytes
        self._lock = Lock()
        self._by_name: dict[tuple[str, int], Route] = {}
        self._listed: list[Route] = []  # the same, as far as it was asked for
        self.topic_numbers: dict[str, int] = {}  # of topics that have a route, from 1
        self._made_count: dict[str, int] = {}  # behind a topic's last queue that has a route
        self._pointers: list[Any] = []  # every table that C may still walk
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
                wanted="the file, its .bak, or neither: then topics are those that have queues",
            ) from error

    # --- looking up ---

    @property
    def by_index(self) -> list[Route]:
        """All there are, by their index."""
        if len(self._listed) != len(self._by_name):
            self._listed = list(self._by_name.values())
        return self._listed

    def is_found(self, topic: str, queue_id: int) -> bool:
        """Whether C finds the route."""
        route = self._by_name.get((topic, queue_id))
        return route is not None and bool(self._table[self._place(self._table, route)])

    def get(self, topic: str, queue_id: int) -> Route | None:
        """Give the route, None where it was never made."""
        return self._by_name.get((topic, queue_id))

    def queue_count(self, topic: str) -> int:
        """How many queues the topic has; 0 where it is unknown."""
        one = self._topics.topics.get(topic)
        return one.queue_count if one is not None else 0

    def full_queue_count(self, topic: str) -> int:
        """How many queues the topic has, those counted that topics.json leaves out."""
        return max(self.queue_count(topic), self._made_count.get(topic, 0))

    def are_mixed(self) -> bool:
        """Whether more than one topic has timers that wait."""
        first = None
        for route in list(self.by_index):
            if route.native.pending and route.topic != (first := first or route.topic):
                return True
        return False

    def topics(self) -> dict[str, int]:
        """Give every topic with its queue count, system topics included."""
        names = {**self._topics.topics, **self._made_count}
        return {name: self.full_queue_count(name) for name in names}

    # --- making ---

    def load(self) -> None:
        """Make a route for every queue that has a folder or stands in topics.json."""
        for topic in filter(is_topic, self._folders(self._tree.queues)):
            for name in self._folders(self._tree.queues / topic):
                queue_id = queue_number(name)
                if queue_id is not None:
                    self.make(topic, queue_id, 0, persist=False)
        self.make(WHEEL_TIMER_TOPIC, 0, 0, persist=False)

    def _folders(self, path: Path) -> list[str]:
        """Names of folders; files among them are nobody's, and a broker passes them over, too."""
        names = [name for name in self._disk.list(path) if self._disk.is_directory(path / name)]
        for name in names:
            self._disk.check_no_link(path / name)
        return names

    def make(self, topic: str, queue_id: int, now_ms: int, *, persist: bool = True) -> Route:
        """Give the route, made where it is new; then also in topics.json, durably. MessageError
        where there can be no such queue.
        """
        if not can_have_queue(topic, queue_id):
            raise MessageError(f"topic {topic!r} can have no queue {queue_id}")
        with self._lock:
            route = self._by_name.get((topic, queue_id))
            if persist and self.queue_count(topic) <= queue_id:
                self._persist(topic, queue_id + 1, now_ms)
            if route is None:
                route = self._make(topic, queue_id)
            self._let_find(route)
            return route

    def grow(self, topic: str, queue_count: int, now_ms: int) -> None:
        """Give the topic at least so many queues."""
        with self._lock:
            if self.queue_count(topic) < queue_count:
                self._persist(topic, queue_count, now_ms)

    def _persist(self, topic: str, queue_count: int, now_ms: int) -> None:
        topics = self._topics.with_topic(topic, queue_count, now_ms)
        self._disk.make_directory(self._tree.config)
        self._disk.write_small(
            self._tree.topics_json, json_text.with_checksum(topics_json.write(topics))
        )
        self._topics = topics  # not before: where the disk is full, the next put tries again
        reach("topics_json_written")

    def _make(self, topic: str, queue_id: int) -> Route:
        name = topic.encode("ascii")
        native = ffi.new("ts_route *")
        real = b"REAL_TOPIC\x01" + name + b"\x02REAL_QID\x01%d\x02" % queue_id
        native.index = len(self._by_name)
        native.kind = _KINDS.get(topic, lib.TS_ROUTE_REAL)
        native.topic_number = self.topic_numbers.setdefault(topic, len(self.topic_numbers) + 1)
        native.queue_id = queue_id
        native.topic_hash = lib.ts_topic_hash(name, len(name))
        native.topic_size = len(name)
        native.real_size = len(real)
        ffi.memmove(native.topic, name, len(name))
        ffi.memmove(native.real, real, len(real))
        queue = self._make_queue(self._tree.queue(topic, queue_id))
        queue.load()
        route = Route(topic, queue_id, native, queue)
        self._made_count[topic] = max(self._made_count.get(topic, 0), queue_id + 1)
        self._by_name[topic, queue_id] = route  # last: from here on it is there
        return route

    def _make_queue(self, directory: Path) -> ConsumeQueue:
        return ConsumeQueue(self._disk, directory, self._queue_segment_bytes)

    def _let_find(self, route: Route) -> None:
        """Have C find it, if it does not yet."""
        if 2 * len(self._by_name) > self.native.mask:
            self._rebuild(4 * (int(self.native.mask) + 1))
        else:
            self._table[self._place(self._table, route)] = route.native

    def _rebuild(self, size: int) -> None:
        table = ffi.new("ts_route *[]", size)
        native = ffi.new("ts_routes *")
        native.slots = table
        native.mask = size - 1
        for route in self.by_index:
            table[self._place(table, route)] = route.native
        self._pointers.append((table, native))
        self._table, self.native = table, native

    def _place(self, table: Any, route: Route) -> int:
        """Where it stands in a table, or would."""
        native, mask = route.native, len(table) - 1
        at = int(lib.ts_route_key(native.topic, native.topic_size, native.queue_id)) & mask
        while table[at] and table[at] != native:
            at = (at + 1) & mask
        return at

    def native_by_index(self) -> Any:
        """Give an array of all ts_route pointers, by index, for one call."""
        return ffi.new("ts_route *[]", [route.native for route in self.by_index] or [ffi.NULL])

    def queues(self) -> Sequence[ConsumeQueue]:
        """Give the queue of every route."""
        return [route.queue for route in list(self.by_index)]

    def close(self) -> None:
        """Let go of the files."""
        for route in self.by_index:
            route.queue.close()
