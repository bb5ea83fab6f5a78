"""`ReadOnlyStore`: a store that is only read, whether or not a process has it open.

    timerstore.open(path, read_only=True)

Thread safety: every method can be called from any thread. Calls take turns; a waiting call does not
hold up the others.
Invariants:
    1. Nothing in the directory is created, changed or locked.
    2. A result is as of one position (_engine/snapshot/position.py), and no later result is as of
       an earlier one.
Raises: ReadOnlyError from calls that would change the store. CorruptError for damage.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from timerstore._engine.base.version import __version__
from timerstore._engine.format import recurring_json
from timerstore._engine.format.consumer_offset_json import entry_name
from timerstore._engine.leases import DeadLetter
from timerstore._engine.leases.dead_letters import DeadLetterReader, RequeuedPlaces, check_names
from timerstore._engine.maintenance import verify_directory
from timerstore._engine.read.consumer_offsets import read_file
from timerstore._engine.read.groups import check_name
from timerstore._engine.recurring import Recurring
from timerstore._engine.recurring.definition import describe
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, transactions
from timerstore._engine.snapshot.snapshot_calls import answered, reject_unsupported
from timerstore._engine.snapshot.snapshot_introspection import SnapshotIntrospectionCalls
from timerstore._engine.snapshot.snapshot_pull import SnapshotPullCalls
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.timer.level_delivery import pending_by_topic
from timerstore._engine.write.ledger import VersionSet
from timerstore._engine.write.row_batch import IngestedVersions
from timerstore.api import StoreApi
from timerstore.messages import Message
from timerstore.reports import Report


@reject_unsupported
class ReadOnlyStore(
    SnapshotPullCalls,
    SnapshotIntrospectionCalls,
    StoreApi[Any, Any, Message, Any, Recurring, Any, Any],
):
    """A store that is only read. `timerstore.open(path, read_only=True)` returns it.

    While another process has the store open, this reads up to the last completed checkpoint. A
    checkpoint begins every `checkpoint_interval_ms` (500), so newer messages are not visible yet.
    Of a store that no process has open, and of a broker's store, it reads every whole record. A
    message that was visible stays visible, until retention removes it.

    Calls differ from those of a TimerStore as follows.

    pull, pull_batch: with `wait` they look every 50 ms for messages that a checkpoint has made
        visible. If the store is closed while it waits, a pull returns its last result.
    query, explain: read the log. query reads every record of the topic; no index is used.
    pending: as of its first step. histogram: reads all pending messages with each call.
    committed: includes commits since the last checkpoint.
    dead_letters: each page as of the checkpoint at its time. Each call reads the group's retry
        topics again.
    recurring: the progress of each definition as of the last checkpoint.
    stats: some of TimerStore's names, and two more. `as_of_ms` is when the checkpoint was written,
        by the file's time (0: a broker's store). `open_in` is the process that has the store open
        (0: unknown, None: no process).
    """

    @answered
    def _do_topics(self) -> dict[str, int]:
        return self._view.routes.topics()

    @answered
    def _do_committed(self, topic: str, group: str) -> dict[int, int]:
        topic, group = check_name("topic", topic), check_name("group", group)
        table = read_file(self._view.disk, self._view.tree).table
        return dict(table.get(entry_name(topic, group), {}))

    def _do_dead_letters(self, group: str, topic: str | None) -> Iterator[DeadLetter]:
        self.check_open()
        group, topic = check_names(group, topic)
        reader = DeadLetterReader(
            self._timers.store_id or 0,
            self.topics,
            self.pull_batch,
            self._view.routes.deleted_below,
        )
        known = RequeuedPlaces()

        def scan() -> set[tuple[int, int]]:
            reader.scan(group, known)
            return known.places

        return reader.unrequeued(group, topic, scan)

    @answered
    def _do_recurring(self) -> list[Recurring]:
        path = self._view.tree.recurring_json
        definitions = recurring_json.read(self._view.disk.read_small(path), path)
        now_ms = self._clock.now_ms
        found = [describe(one, now_ms) for one in definitions if not one.is_ended]
        return sorted(found, key=lambda one: one.name)

    @answered
    def ingested(self, source: str) -> IngestedVersions:
        """Return the complete versions of a source."""
        part = Part.whole(self._view.position.store, "transactions")
        versions = VersionSet()
        for one in transactions(part, Bounds()):
            if one.source == source:
                versions.add(one.version)
        return IngestedVersions(source, tuple(range(*one) for one in versions.ranges()))

    # --- statistics and verification ---

    @answered
    def _do_stats(self) -> dict[str, Any]:
        self._timers.catch_up()
        view, store = self._view, self._view.position.store
        by_topic, on_level = (Counter(one) for one in pending_by_topic(view.routes))
        as_of_ms = view.disk.modified_ms(view.tree.watermark) if view.position.mark else None
        return {
            "version": __version__,
            "as_of_ms": as_of_ms or 0,
            "open_in": owner_pid(view.disk, view.tree),
            "pending_messages": sum(by_topic.values()) + sum(on_level.values()),
            "pending_by_topic": dict(by_topic + on_level),
            "level_pending_messages": sum(on_level.values()),
            "log_begin_bytes": store.log_begin,
            "log_end_bytes": view.position.log_end,
            "log_durable_bytes": view.position.log_end,
            "timer_log_end_bytes": store.timer_log_end,
        }

    def verify(self) -> Report:
        """Read the whole store and report all damage, as `verify_directory` does.

        A store that another process has open changes during the reading. Then only problems that
        are found twice are reported.
        """
        self.check_open()
        found = verify_directory(self._root, self._given)
        if found.clean or owner_pid(self._view.disk, self._view.tree) is None:
            return found
        again = verify_directory(self._root, self._given)
        both = tuple(one for one in again.problems if one in found.problems)
        return Report(both, again.counts)
