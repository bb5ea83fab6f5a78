"""Track how far groups that lease have read, and commit it with each checkpoint.

    a message is leased      its lease is in the log; the group's new offset is recorded here
    a checkpoint             the recorded offsets are committed before the watermark is written, so
                             config/consumerOffset.json covers all leases below the watermark
    an opening               leases after the watermark are read from the log, and committed

A lease names the message it stands for, and a group leases the messages of a queue in order. So the
last lease of a queue in the log tells the group's offset, and one append stores both.

Thread safety: any thread.
Locking: `_commit_lock` during a commit; the log's append lock for the recorded offsets. The end of
a checkpoint is read under the append lock too, so it commits every lease below that end.
Invariants:
    1. An offset of a group that leases is committed only after its leases are durable in the log.
    2. On opening, leases that the last watermark does not cover are read from the log.
Raises: FullError if the disk is full; the offsets stay recorded for the next checkpoint.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Iterable, Iterator

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.lease import (
    LEASE_PROPERTY,
    RETRY_PREFIX,
    TOPIC_PROPERTY,
    group_of,
    read_lease,
    retry_topic,
)
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.read.consumer_offsets import Key, Offsets
from timerstore.messages import parse_properties

GroupOffsets = dict[Key, dict[int, int]]
"""The offset of the next message by topic and group, then by queue."""


class LeaseProgress(Owner):
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

    def recorded(self, topic: str, group: str) -> dict[int, int]:
        """Return the offsets of a group that are not committed yet, by queue."""
        with self._log.lock:
            return dict(self._recorded.get((topic, group), ()))

    def known(self) -> list[Key]:
        """Return each topic and group with offsets that are not committed yet."""
        with self._log.lock:
            return list(self._recorded)

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

    def recover(self, leases: Iterable[tuple[str, bytes]], store_id: int) -> None:
        """Commit the progress of leases in the log; durable on return.

        leases: the target topic and the encoded properties of each lease.
        """
        found: GroupOffsets = {}
        for key, queue_id, following in _source_offsets(leases, store_id):
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
    leases: Iterable[tuple[str, bytes]], store_id: int
) -> Iterator[tuple[Key, int, int]]:
    for lease_topic, text in leases:
        group = group_of(lease_topic)
        properties = parse_properties(text)
        lease = read_lease(properties.get(LEASE_PROPERTY, ""))
        topic = properties.get(TOPIC_PROPERTY)
        if group is None or topic is None or lease is None or lease.store_id != store_id:
            continue
        source = retry_topic(topic, group) if lease.is_from_retry else topic
        yield (source, group), lease.source_queue, lease.source_offset + 1
