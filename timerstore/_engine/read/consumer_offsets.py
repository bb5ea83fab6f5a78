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

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import consumer_offset_json, json_text, queue_unit
from timerstore._engine.format.consumer_offset_json import SEPARATOR, ConsumerOffsets, entry_name
from timerstore._engine.format.lease import (
    LEASE_PROPERTY,
    RETRY_PREFIX,
    TOPIC_PROPERTY,
    group_of,
    read_lease,
    retry_topic,
)
from timerstore._engine.format.store_paths import Tree, backup_of
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.read.groups import Groups
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError, FailedError, ReentrantCallError
from timerstore.types.messages import parse_properties

# --- consumer offsets ---


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


class Offsets(NotCopyable):
    """The committed offsets of one store."""

    def __init__(self, core: Core, tree: Tree) -> None:
        self.is_deleting = core.routes.is_deleting
        self._disk = core.disk
        self._tree = tree
        self._clock = core.clock
        self._log = core.log
        self._lock = Lock()
        self._write_lock = Lock()
        # In order, under `_lock`; the commits of the last write stay until the next one.
        self._pending: list[PendingCommit] = []
        path = tree.consumer_offset_json
        try:
            self._file = read_file(core.disk, tree)
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
        """Request a commit, which is ordered after all earlier ones; return it to wait for.

        It has no effect if the topic is being deleted.
        """
        pending = PendingCommit((topic, group), offsets)
        with self._lock:
            pending.is_done = self.is_deleting(topic)
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
                self._log.check_alive()
                self._write(changes)
            except BaseException as error:  # KeyboardInterrupt too
                pending.is_done = True  # failed; the other commits are retried by their threads
                if isinstance(error, FailedError):
                    self._log.fail(error)
                raise
            for one in batch:
                one.is_done = True
        reach("commit_written")

    def remove_deleting(self) -> None:
        """Remove the offsets in topics that are being deleted; durable on return."""
        with self._write_lock:
            self._log.check_alive()
            with self._lock:
                for one in self._pending:
                    one.is_done |= self.is_deleting(one.key[0])
            new = self._file.without(lambda topic: not self.is_deleting(topic), self._clock.now_ms)
            if new is not self._file:
                self._replace(new)

    def _write(self, changes: Mapping[Key, Mapping[int, int]]) -> None:
        self._replace(self._file.with_offsets(changes, self._clock.now_ms))

    def _replace(self, new: ConsumerOffsets) -> None:
        self._disk.make_directory(self._tree.config)
        text = json_text.with_checksum(consumer_offset_json.write(new))
        self._disk.write_small(self._tree.consumer_offset_json, text)
        self._file = new  # only now: an offset counts as committed once it is durable


# --- consumer lag ---
# Compute which messages known groups have not read yet, for retention and metrics.
#
# A group is known in a topic if it has committed there or has a consumer in this process. In every
# queue of the topic, messages that it has not committed count as unread.
#
# Thread safety: ConsumerLag is used on the retention thread only.
# See also: docs/decisions/0012-snapshots-and-retention.md.


_NOTHING = 2**62


class ConsumerLag:
    """The unread messages of the groups of one store."""

    def __init__(self, core: Core, offsets: Offsets, groups: Groups) -> None:
        self._metrics = core.metrics
        self._routes = core.routes
        self._offsets = offsets
        self._groups = groups

    def lowest(self) -> int:
        """Return the lowest log offset that a group has not read."""
        found = _NOTHING
        for topic, name in self._known():
            committed = self._offsets.committed(topic, name)
            for queue_id in range(self._routes.full_queue_count(topic)):
                route = self._routes.get(topic, queue_id)
                if route is not None:
                    found = min(found, self._first(route, committed.get(queue_id, 0)))
        return found

    def _known(self) -> Iterator[tuple[str, str]]:
        yield from dict.fromkeys([*self._offsets.known(), *self._groups.known()])

    def _first(self, route: Route, offset: int) -> int:
        offset = max(offset, route.queue.min_offset)
        units = queue_unit.read(route.queue.read(offset, 1))
        return int(units["log_offset"][0]) if len(units) else _NOTHING

    def dropped(self, route: Route, begin: int, end: int) -> None:
        """Count and log the unread messages of [begin, end), which the queue has lost."""
        for topic, name in self._known() if begin < end else ():
            if topic != route.topic:
                continue
            at = self._offsets.committed(topic, name).get(route.queue_id, 0)
            count = end - max(at, begin)
            if count > 0:
                self._metrics.add("retention_unconsumed_messages", count)
                logging.getLogger("timerstore.read").warning(
                    "removed_unread=%d topic=%s queue=%d group=%s", count, topic,
                    route.queue_id, name,
                )  # fmt: skip


def log_removed_unread(topic: str, queue_id: int, group: str, count: int) -> None:
    """Log that retention removed messages before a consumer read them; it continues after them."""
    logging.getLogger("timerstore.read").warning(
        "removed_unread=%d topic=%s queue=%d group=%s reader=behind", count, topic, queue_id, group
    )


# --- lease progress ---
# Track how far groups that lease have read, and commit it with each checkpoint.
#
#     a message is leased      its lease is in the log; the group's new offset is recorded here
#     a checkpoint             the recorded offsets are committed before the watermark is written,
#                              so config/consumerOffset.json covers all leases below the watermark
#     an opening               leases after the watermark are read from the log, and committed
#
# A lease names the message it stands for, and a group leases the messages of a queue in order. So
# the last lease of a queue in the log tells the group's offset, and one append stores both.
#
# Thread safety: any thread.
# Locking: `_commit_lock` during a commit; the log's append lock for the recorded offsets. The end
# of a checkpoint is read under the append lock too, so it commits every lease below that end.
# Invariants:
#     1. An offset of a group that leases is committed only after its leases are durable in the log.
#     2. On opening, leases that the last watermark does not cover are read from the log.
# Raises: FullError if the disk is full; the offsets stay recorded for the next checkpoint.
# See also: docs/decisions/0009-leases-replace-and-recurring.md.


GroupOffsets = dict[Key, dict[int, int]]
"""The offset of the next message by topic and group, then by queue."""


class LeaseProgress(NotCopyable):
    """The progress of all groups that lease in one store."""

    def __init__(self, log: CommitLog, offsets: Offsets) -> None:
        self._log = log
        self._offsets = offsets
        self._commit_lock = Lock()
        self._recorded: GroupOffsets = {}  # not committed yet

    def record(self, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Record that a group has leased all messages below these offsets.

        The caller holds the append lock, in the critical section that placed the leases.
        """
        self._recorded.setdefault((topic, group), {}).update(offsets)

    def pass_over(self, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Record that a group has read all messages below these offsets, without a lease."""
        with self._log.lock:
            self.record(topic, group, offsets)

    def recorded(self, topic: str, group: str) -> dict[int, int]:
        """Return the offsets of a group that are not committed yet, by queue."""
        with self._log.lock:
            return dict(self._recorded.get((topic, group), ()))

    def known(self) -> list[Key]:
        """Return each topic and group with offsets that are not committed yet."""
        with self._log.lock:
            return list(self._recorded)

    def remove_deleting(self) -> None:
        """Remove the offsets in topics that are being deleted; durable on return."""
        with self._commit_lock:
            with self._log.lock:
                for key in [one for one in self._recorded if self._offsets.is_deleting(one[0])]:
                    del self._recorded[key]
            self._offsets.remove_deleting()

    def commit(self) -> None:
        """Commit all recorded offsets; durable on return."""
        with self._commit_lock:
            with self._log.lock:
                recorded, self._recorded = self._recorded, {}
                log_end = self._log.end
            if not recorded:
                return
            try:
                self._log.sync_through(log_end)
                wanted = self._known_in_retry(recorded)
                pending = [
                    self._offsets.begin_commit(*key, offsets) for key, offsets in wanted.items()
                ]
                for one in pending:  # the first call writes them all
                    self._offsets.wait_for_commit(one)
            except BaseException:
                self._record_again(recorded)
                raise
            reach("lease_progress_committed")

    def _record_again(self, recorded: GroupOffsets) -> None:
        with self._log.lock:
            for key, offsets in recorded.items():
                self._recorded[key] = {**offsets, **self._recorded.get(key, {})}

    def _known_in_retry(self, offsets: GroupOffsets) -> GroupOffsets:
        """Return the offsets, with offset 0 in the retry topic for groups that have none there.

        So retention knows that the group reads its retry topic, even if it is not receiving now.
        """
        found = dict(offsets)
        for topic, group in offsets:
            if not topic.startswith(RETRY_PREFIX):
                key = retry_topic(topic, group), group
                if key not in found and not self._offsets.committed(*key):
                    found[key] = {0: 0}
        return found

    # --- opening ---

    def recover(
        self,
        leases: Iterable[tuple[str, int, bytes]],
        store_id: int,
        deleted_below: Mapping[str, int],
    ) -> None:
        """Commit the progress of leases in the log; durable on return.

        leases: the target topic, log offset and encoded properties of each lease.
        deleted_below: as in Routes.
        """
        found: GroupOffsets = {}
        for key, queue_id, following in _source_offsets(leases, store_id, deleted_below):
            offsets = found.setdefault(key, {})
            offsets[queue_id] = max(offsets.get(queue_id, 0), following)
        for (topic, group), offsets in self._known_in_retry(found).items():
            committed = self._offsets.committed(topic, group)
            ahead = {q: at for q, at in offsets.items() if at > committed.get(q, -1)}
            if ahead:
                self._offsets.wait_for_commit(self._offsets.begin_commit(topic, group, ahead))
        if found:
            reach("recover_leases_committed")


def _source_offsets(
    leases: Iterable[tuple[str, int, bytes]], store_id: int, deleted_below: Mapping[str, int]
) -> Iterator[tuple[Key, int, int]]:
    for lease_topic, log_offset, text in leases:
        group = group_of(lease_topic)
        properties = parse_properties(text)
        lease = read_lease(properties.get(LEASE_PROPERTY, ""))
        topic = properties.get(TOPIC_PROPERTY)
        if group is None or topic is None or lease is None or lease.store_id != store_id:
            continue
        if log_offset < deleted_below.get(topic, 0):
            continue
        source = retry_topic(topic, group) if lease.is_from_retry else topic
        yield (source, group), lease.source_queue, lease.source_offset + 1
