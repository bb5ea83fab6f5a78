"""Keep the committed offsets of each group and queue, in memory and on disk.

Thread safety: any thread. A thread that waits for a commit writes it, together with all commits
that were requested before the write.
Locking: `_write_lock`, then `_lock`. `_write_lock` is held during the sync: the threads that wait
for it wait for that sync.
Invariants:
    1. A commit is durable when `wait_for_commit` returns, also with `flush="async"`: a group whose
       commit returned must not receive its messages again.
    2. Commits of one queue take effect in the order of `begin_commit`.
    3. After `clamp` no offset lies past the end of its queue, so new messages are not skipped.
Raises: FullError if the disk is full; nothing changed, and the call may be repeated. FailedError,
which is final. CorruptError on opening.
On-disk format: config/consumerOffset.json (format/consumer_offset_json.py), replaced as a whole.
See also: docs/file-format.md, docs/exactly-once.md, docs/decisions/0005-long-poll.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import consumer_offset_json, json_text
from timerstore._engine.format.consumer_offset_json import SEPARATOR, ConsumerOffsets, entry_name
from timerstore._engine.format.store_paths import Tree, backup_of
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.disk import Disk
from timerstore.clock import Clock
from timerstore.errors import CorruptError, FailedError, ReentrantCallError, TimerStoreError

Key = tuple[str, str]
"""Topic and group."""


def read_file(disk: Disk, tree: Tree) -> ConsumerOffsets:
    """Read the file, or its backup copy; raise CorruptError if neither can be read."""
    path = tree.consumer_offset_json
    return consumer_offset_json.read(disk.read_small(path), disk.read_small(backup_of(path)))


class OffsetPastEnd(NamedTuple):
    """A committed offset that lies past the end of its queue."""

    topic: str
    group: str
    queue_id: int
    offset: int
    end: int


def offsets_past_end(file: ConsumerOffsets, routes: Routes) -> Iterator[OffsetPastEnd]:
    """Yield the committed offsets that lie past the end of their queue.

    The end is 0 if the topic exists but the queue does not. Entries of unknown topics are skipped.
    """
    for name, offsets in file.table.items():
        topic, _, group = name.partition(SEPARATOR)
        if not group or not routes.full_queue_count(topic):
            continue
        for queue_id, offset in offsets.items():
            route = routes.get(topic, queue_id)
            end = 0 if route is None else route.queue.count
            if offset > end:
                yield OffsetPastEnd(topic, group, queue_id, offset, end)


class PendingCommit:
    """A commit that was requested."""

    __slots__ = ("is_done", "key", "offsets")

    def __init__(self, key: Key, offsets: Mapping[int, int]) -> None:
        self.key = key
        self.offsets = dict(offsets)
        self.is_done = False  # written under `_write_lock`


class Offsets(Owner):
    """The committed offsets of one store."""

    def __init__(
        self,
        disk: Disk,
        tree: Tree,
        clock: Clock,
        check_alive: Callable[[], None],
        fail: Callable[[TimerStoreError], None],
    ) -> None:
        self._disk = disk
        self._tree = tree
        self._clock = clock
        self._check_alive = check_alive
        self._fail = fail
        self._lock = Lock()
        self._write_lock = Lock()
        # In order, under `_lock`; the commits of the last write stay until the next one.
        self._pending: list[PendingCommit] = []
        path = tree.consumer_offset_json
        try:
            self._file = read_file(disk, tree)
        except CorruptError as error:
            raise CorruptError(
                f"committed offsets cannot be read: {error}",
                where=path,
                wanted="the file, its .bak, or neither: then every group starts from the beginning",
            ) from error

    def committed(self, topic: str, group: str) -> dict[int, int]:
        """Return the offset of the next message for each queue in which the group has committed."""
        return dict(self._file.table.get(entry_name(topic, group), {}))

    def known(self) -> list[Key]:
        """Return every topic and group with a commit."""
        names = (name.partition(SEPARATOR) for name in self._file.table)
        return [(topic, group) for topic, _, group in names if group]

    def clamp(self, routes: Routes) -> None:
        """Reduce offsets past the end of their queue to that end; durable on return.

        Must run before the first append.
        """
        changes: dict[Key, dict[int, int]] = {}
        for one in offsets_past_end(self._file, routes):
            changes.setdefault((one.topic, one.group), {})[one.queue_id] = one.end
        if changes:
            self._write(changes)

    def begin_commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> PendingCommit:
        """Request a commit, which is ordered after all earlier ones; return it to wait for."""
        pending = PendingCommit((topic, group), offsets)
        with self._lock:
            self._pending.append(pending)
        return pending

    def wait_for_commit(self, pending: PendingCommit) -> None:
        """Return when a commit is durable; one write covers all commits requested before it."""
        try:
            self._write_through(pending)
        except ReentrantCallError:
            pending.is_done = True  # a rejected commit must not become part of a later write
            raise

    def _write_through(self, pending: PendingCommit) -> None:
        with self._write_lock:
            if pending.is_done:
                return
            try:
                with self._lock:
                    batch = [one for one in self._pending if not one.is_done]
                    self._pending = list(batch)  # kept until done, also if this call is interrupted
                changes: dict[Key, dict[int, int]] = {}
                for one in batch:
                    changes.setdefault(one.key, {}).update(one.offsets)
                self._check_alive()
                self._write(changes)
            except BaseException as error:  # KeyboardInterrupt too
                pending.is_done = True  # failed; the other commits are retried by their threads
                if isinstance(error, FailedError):
                    self._fail(error)
                raise
            for one in batch:
                one.is_done = True
        reach("commit_written")

    def _write(self, changes: Mapping[Key, Mapping[int, int]]) -> None:
        new = self._file.with_offsets(changes, self._clock.now_ms)
        self._disk.make_directory(self._tree.config)
        text = json_text.with_checksum(consumer_offset_json.write(new))
        self._disk.write_small(self._tree.consumer_offset_json, text)
        self._file = new  # only now: an offset counts as committed once it is durable
