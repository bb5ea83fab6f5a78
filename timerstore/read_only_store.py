"""ReadOnlyStore: a store that is read, whoever has it open.

    timerstore.open(path, read_only=True)

Threads:  every method from any thread; calls take turns, who waits does so beside them.
Holds:    (1) nothing in the directory is made, changed or locked; (2) an answer is as of one moment
          (position.py), and no later answer as of an earlier one.
Fails:    ReadOnlyError for what would change something (unsupported.py); CorruptError for damage.
Source:   docs/decisions/0012-snapshots-and-retention.md.
"""

from collections import Counter
from typing import Any

from timerstore._engine.format import recurring_json
from timerstore._engine.format.consumer_offset_json import entry_name
from timerstore._engine.ingest.row_batch import IngestedVersions
from timerstore._engine.ingest.version_set import VersionSet
from timerstore._engine.levels.pending_counts import pending_by_topic
from timerstore._engine.maintenance import verify_directory
from timerstore._engine.read.consumer_offsets import read_file
from timerstore._engine.read.groups import check_name
from timerstore._engine.recurring import Recurring
from timerstore._engine.recurring.definition import describe
from timerstore._engine.snapshot.calls import answered
from timerstore._engine.snapshot.snapshot_introspection import SnapshotIntrospectionCalls
from timerstore._engine.snapshot.snapshot_pull import SnapshotPullCalls
from timerstore._engine.snapshot.unsupported import refuse_unsupported
from timerstore._engine.storage.directory import holder_of
from timerstore._engine.tables.table_scan import Bounds, Part
from timerstore._engine.tables.transactions import transactions
from timerstore.api import StoreApi
from timerstore.messages import Message
from timerstore.reports import Report


@refuse_unsupported
class ReadOnlyStore(
    SnapshotPullCalls,
    SnapshotIntrospectionCalls,
    StoreApi[Any, Any, Message, Any, Recurring, Any, Any],
):
    """A store that is only read. `timerstore.open(path, read_only=True)` makes it.

    Beside whoever has it open it reads up to the last completed checkpoint, one of which begins
    every `checkpoint_interval_ms` (500): what was put since is not there yet. Of a store that
    nobody has open, and of a broker's, it reads every whole record. What was seen is never taken
    back.

    Calls differ from those of a TimerStore as follows.

    pull, pull_batch: with `wait` they look every 50 ms for what a checkpoint has made visible.
        Closed while it waits, a pull returns what it found last.
    query, explain: read the log; query looks at every record of the topic. No index is used.
    pending: as of its first step. histogram: reads all pending messages with each call.
    committed: includes what was committed since the last checkpoint.
    recurring: how far each definition is, as of the last checkpoint.
    stats: some of TimerStore's names, and `as_of_ms`: when the checkpoint was written, by the
        file's time (0: a broker's); `open_in`: the process that has the store open, 0 if it is
        unknown, None if there is none.
    """

    @answered
    def _do_topics(self) -> dict[str, int]:
        return self._room.routes.topics()

    @answered
    def _do_committed(self, topic: str, group: str) -> dict[int, int]:
        topic, group = check_name("topic", topic), check_name("group", group)
        table = read_file(self._room.disk, self._room.tree).table
        return dict(table.get(entry_name(topic, group), {}))

    @answered
    def _do_recurring(self) -> list[Recurring]:
        text = self._room.disk.read_small(self._room.tree.recurring_json)
        now_ms = self._clock.now_ms
        found = [describe(one, now_ms) for one in recurring_json.read(text) if not one.is_ended]
        return sorted(found, key=lambda one: one.name)

    @answered
    def ingested(self, source: str) -> IngestedVersions:
        """Give the versions of a source that are complete."""
        store = self._room.moment.store
        part = Part(0, store, store.log_begin, store.log_end)
        versions = VersionSet()
        for one in transactions(part, Bounds()):
            if one.source == source:
                versions.add(one.version)
        return IngestedVersions(source, tuple(range(*one) for one in versions.ranges()))

    # --- the whole ---

    @answered
    def _do_stats(self) -> dict[str, Any]:
        self._timers.catch_up()
        room, store = self._room, self._room.moment.store
        by_topic, on_level = (Counter(one) for one in pending_by_topic(room.routes))
        as_of_ms = room.disk.changed_ms(room.tree.watermark) if room.moment.mark else None
        return {
            "as_of_ms": as_of_ms or 0,
            "open_in": holder_of(room.disk, room.tree),
            "pending_messages": sum(by_topic.values()) + sum(on_level.values()),
            "pending_by_topic": dict(by_topic + on_level),
            "level_pending_messages": sum(on_level.values()),
            "log_begin_bytes": store.log_begin,
            "log_end_bytes": room.moment.log_end,
            "log_durable_bytes": room.moment.log_end,
            "timer_log_end_bytes": store.timer_log_end,
        }

    def verify(self) -> Report:
        """Read the whole store and tell all damage, as `verify_directory` does. Of a store that
        somebody has open only what is found twice counts: it changes meanwhile.
        """
        self.check_open()
        found = verify_directory(self._root, self._given)
        if found.clean or holder_of(self._room.disk, self._room.tree) is None:
            return found
        again = verify_directory(self._root, self._given)
        both = tuple(one for one in again.problems if one in found.problems)
        return Report(both, again.counts)
