"""Routes of a store that somebody else writes: topics and queues as its files have them.

Data:     config/topics.json, and the folders of the queues; a route that a record names is made in
          memory.
Threads:  one at a time.
Holds:    nothing is written.
"""

from pathlib import Path

from timerstore._engine.format import topics_json
from timerstore._engine.format.store_paths import (
    WHEEL_TIMER_TOPIC,
    Tree,
    backup_of,
    can_have_queue,
    is_topic,
    queue_number,
)
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.snapshot.snapshot_queue import SnapshotQueue
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore.errors import CorruptError


class SnapshotRoutes(Routes):
    """All queues of a store."""

    def __init__(self, disk: ReadOnlyDisk, tree: Tree, queue_segment_bytes: int) -> None:
        self._read_only = disk
        super().__init__(disk, tree, queue_segment_bytes)
        self._seen: bytes | None = None

    def look(self) -> None:
        """Take in topics that are new, as their owner has written them down."""
        tree = self._tree
        text = self._disk.read_small(tree.topics_json)
        if text == self._seen:
            return
        try:
            found = topics_json.read(text, self._disk.read_small(backup_of(tree.topics_json)))
        except CorruptError as error:
            raise CorruptError(f"topics cannot be read: {error}", where=tree.topics_json) from error
        self._topics, self._seen = found, text

    def load(self) -> None:
        """Make a route for every queue that has a folder."""
        for topic in filter(is_topic, self._folders(self._tree.queues)):
            self._load_topic(topic)
        self.make(WHEEL_TIMER_TOPIC, 0, 0)

    def _load_topic(self, topic: str) -> None:
        for name in self._folders(self._tree.queues / topic):
            queue_id = queue_number(name)
            if queue_id is not None:
                self.make(topic, queue_id, 0, persist=False)

    def find(self, topic: str, queue_id: int) -> Route | None:
        """Give a route that is there or has come meanwhile; None where there is no such queue."""
        route = self.get(topic, queue_id)
        if route is None and can_have_queue(topic, queue_id):
            if queue_id < self.full_queue_count(topic):
                return self.make(topic, queue_id, 0)
            if self._disk.is_directory(self._tree.queue(topic, queue_id)):
                return self.make(topic, queue_id, 0, persist=False)
        return route

    def queues(self) -> list[SnapshotQueue]:
        """Give the queue of each route."""
        found = [route.queue for route in self.by_index]
        return [queue for queue in found if isinstance(queue, SnapshotQueue)]

    def clear_counts(self) -> None:
        """Forget what waits for each queue."""
        for route in self.by_index:
            route.native.pending = route.native.level_pending = 0

    def _persist(self, topic: str, queue_count: int, now_ms: int) -> None:
        self._topics = self._topics.with_topic(topic, queue_count, now_ms)

    def _make_queue(self, directory: Path) -> SnapshotQueue:
        return SnapshotQueue(self._read_only, directory, self._queue_segment_bytes)
