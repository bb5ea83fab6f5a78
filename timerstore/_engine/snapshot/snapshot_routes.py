"""`SnapshotRoutes`: topics and queues of a store that another process writes, as its files show
them.

They come from config/topics.json and from the folders of the queues. A route that only a record
names is made in memory.

Thread safety: one thread at a time.
Invariants: nothing is written.
"""

from pathlib import Path

from timerstore._engine.format.store_paths import (
    WHEEL_TIMER_TOPIC,
    Tree,
    can_have_queue,
    is_topic,
)
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.snapshot.queue_files import queue_folders, read_topics
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
