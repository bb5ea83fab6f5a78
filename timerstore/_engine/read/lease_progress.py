"""Lease progress: how far groups that lease have come, as their leases in the log say.

    a message is leased      its lease is in the log; here it is noted how far the group is
    a checkpoint             what is noted is committed before the watermark is written: so what
                             the watermark covers is in config/consumerOffset.json
    a crash, an opening      what lies behind the watermark is read, and committed

A lease says which message of which queue it stands for, and a group leases a queue in its order: so
the last lease in the log says how far it came, and one write to the log does both.

Threads:  any.
Locks:    `_commit_lock` over a commit; the append lock for what is noted: so a checkpoint, which
          notes the log's end in a hold, commits every lease below that end.
Holds:    (1) what is committed for a group that leases has its leases durable in the log; (2) what
          leases in the log say, and the last watermark does not cover, is read on opening.
Fails:    FullError: nothing is forgotten, the checkpoint comes again.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
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

Places = dict[Key, dict[int, int]]
"""By topic and group, then by queue: the offset of the next message."""


class LeaseProgress(Owner):
    """Of all groups of one store."""

    def __init__(self, log: CommitLog, offsets: Offsets) -> None:
        self._log = log
        self._offsets = offsets
        self._commit_lock = Lock()
        self._noted: Places = {}  # and not committed yet

    def note(self, topic: str, group: str, places: dict[int, int]) -> None:
        """A group has leased what lies below these offsets: in the hold that placed the leases."""
        self._noted.setdefault((topic, group), {}).update(places)

    def commit(self) -> None:
        """Commit all that is noted; durable on return."""
        with self._commit_lock:
            with self._log.lock:
                noted, self._noted = self._noted, {}
                log_end = self._log.end
            if not noted:
                return
            try:
                self._log.sync_through(log_end)
                wanted = self._known_in_retry(noted)
                asked = [self._offsets.ask(*key, places) for key, places in wanted.items()]
                for one in asked:  # the first writes them all
                    self._offsets.settle(one)
            except BaseException:
                self._note_again(noted)
                raise
            reach("lease_progress_committed")

    def _note_again(self, noted: Places) -> None:
        with self._log.lock:
            for key, places in noted.items():
                self._noted[key] = {**places, **self._noted.get(key, {})}

    def _known_in_retry(self, places: Places) -> Places:
        """The same, and a place in the retry topic for who has none: so retention knows of a reader
        of what comes again, whether he is there or not.
        """
        found = dict(places)
        for topic, group in places:
            if not topic.startswith(RETRY_PREFIX):
                key = retry_topic(topic, group), group
                if key not in found and not self._offsets.committed(*key):
                    found[key] = {0: 0}
        return found

    # --- opening ---

    def recover(self, texts: Iterable[tuple[str, bytes]], store_id: int) -> None:
        """Take in leases of the log: topic that each goes to, its properties; durable on return."""
        found: Places = {}
        for key, queue_id, following in _places(texts, store_id):
            places = found.setdefault(key, {})
            places[queue_id] = max(places.get(queue_id, 0), following)
        for (topic, group), places in self._known_in_retry(found).items():
            committed = self._offsets.committed(topic, group)
            ahead = {q: at for q, at in places.items() if at > committed.get(q, -1)}
            if ahead:
                self._offsets.settle(self._offsets.ask(topic, group, ahead))
        if found:
            reach("recover_leases_committed")


def _places(texts: Iterable[tuple[str, bytes]], store_id: int) -> Iterator[tuple[Key, int, int]]:
    for lease_topic, text in texts:
        group = group_of(lease_topic)
        properties = parse_properties(text)
        lease = read_lease(properties.get(LEASE_PROPERTY, ""))
        topic = properties.get(TOPIC_PROPERTY)
        if group is None or topic is None or lease is None or lease.store_id != store_id:
            continue
        source = retry_topic(topic, group) if lease.is_from_retry else topic
        yield (source, group), lease.source_queue, lease.source_offset + 1
