"""Introspection calls of a read-only store: pending, histogram, explain, query.

Invariants: each result is as of one position. An iterator has the position of its first step.
"""

from collections.abc import Iterator
from datetime import datetime
from heapq import merge
from typing import Any

import numpy as np

from timerstore._engine.format import queue_unit
from timerstore._engine.introspection.calendar import buckets_of
from timerstore._engine.introspection.explain import (
    WAITS_TO_BE_HANDED_OVER,
    Explainer,
    Name,
    name_of,
)
from timerstore._engine.queues.dispatch import PendingDeletes
from timerstore._engine.read.groups import check_name
from timerstore._engine.read.pull_request import range_problems
from timerstore._engine.read.query import Querier, Query, check_query
from timerstore._engine.snapshot.columns.table_scan import Part, Wanted, units
from timerstore._engine.snapshot.log_windows import RowArray
from timerstore._engine.snapshot.snapshot_calls import SnapshotCalls, answered
from timerstore._engine.snapshot.snapshot_log import FILLER_SIZE, SettledQueues
from timerstore._engine.snapshot.snapshot_timers import SnapshotTimers
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.timer.timer_arrays import Int64Array, Records
from timerstore.errors import MessageError
from timerstore.types.clock import Clock
from timerstore.types.messages import Message, unexpired
from timerstore.types.receipts import PutReceipt
from timerstore.types.reports import Explanation, Histogram, PendingTimer

# --- explain snapshot ---
# Explain one message of a read-only store: its records, and its slot from the timer log.
#
# It reads the log, and for a pending message the timer log.
#
# Thread safety: one thread at a time.
# See also: introspection/explain.py, which explains a message of an open store.


class SnapshotExplainer(Explainer):
    """Explains messages of one store."""

    def __init__(self, view: SnapshotView, timers: SnapshotTimers, clock: Clock) -> None:
        super().__init__(
            config=view.config,
            clock=clock,
            log=view.log,
            routes=view.routes,
            dispatch=timers.dispatch,
            states=timers.states,
            store_id=timers.store_id,
            levels=timers.cursors,
            level_pending=timers.level_pending,
        )
        self._view = view

    def _pending(self, name: Name, rows: Records) -> Explanation:
        row = rows[-1]
        precision_ms, due_ms = self._config.precision_ms, int(row["due_ms"])
        unit, chain = self._unit(int(row["log_offset"]))
        why = self._when(due_ms)
        if unit is None:
            why += "; as of the last checkpoint it is not on the wheel yet"
            return self._made(name, rows, "pending", "timer topic", why)
        slot_ms = int(unit["slot_ms"])
        if slot_ms < int(unit["write_ms"]) // precision_ms * precision_ms:
            why += "; it gets its slot on the wheel when that is near"
            return self._made(name, rows, "pending", "far wheel", why)
        slot, mark = slot_ms // precision_ms, self._view.position.mark
        is_read = mark is not None and slot < mark.replay_slot
        held_back = WAITS_TO_BE_HANDED_OVER if is_read else None
        return self._made(
            name,
            rows,
            "pending",
            "open slot" if is_read else "wheel",
            why + self._until_read(slot, due_ms, held_back),
            slot=slot,
            slot_ms=slot_ms,
            chain_place=int((chain > int(unit["timer_pos"])).sum()) + 1,
            chain_length=len(chain),
        )

    def _unit(self, log_offset: int) -> tuple[RowArray | None, Any]:
        """Return the newest unit of a record, and the positions of all units in its slot."""
        part = Part.whole(self._view.position.store, "timer_units")
        own, found = None, [np.empty(0, [("slot_ms", np.int64), ("timer_pos", np.int64)])]
        for rows in units(part, Wanted("timer_units", (), batch_rows=32_768)):
            mine = np.flatnonzero(rows["log_offset"] == log_offset)
            if len(mine):
                own = rows[mine[-1]].copy()
            slots = np.empty(len(rows), found[0].dtype)
            slots["slot_ms"], slots["timer_pos"] = rows["slot_ms"], rows["timer_pos"]
            found.append(slots)
        every = np.concatenate(found)
        if own is None:
            return None, every["timer_pos"][:0]
        return own, every["timer_pos"][every["slot_ms"] == own["slot_ms"]]


# --- key search ---
# `query` of a read-only store: find messages by key without an index.
#
# The owner writes its index from memory, so the files of a live index prove nothing to another
# process. A query therefore reads the topic's queues (20 bytes a message) and every record of them.
#
# Thread safety: one thread at a time.


_BATCH = 16_384
_UNITS = 262_144  # read at a time


class QueueSearch:
    """Takes the part of the index: every message of a topic is a candidate."""

    def __init__(self, view: SnapshotView) -> None:
        self._view = view

    def find(
        self,
        topic: bytes,
        key: bytes,  # noqa: ARG002 - every record is read
        begin_ms: int = 0,  # noqa: ARG002
        end_ms: int = 0,  # noqa: ARG002
    ) -> Iterator[Int64Array]:
        """Return the log offsets of the topic's messages, newest first."""
        name = topic.decode("ascii")
        offsets: Int64Array = np.sort(np.concatenate([np.empty(0, np.int64), *self._of(name)]))
        for end in range(len(offsets), 0, -_BATCH):
            yield offsets[max(0, end - _BATCH) : end][::-1]

    def _of(self, topic: str) -> Iterator[Int64Array]:
        begin = self._view.position.store.log_begin
        for route in list(self._view.routes.by_index):
            if route.topic != topic:
                continue
            queue = self._view.settle(route).queue
            for at in range(queue.min_offset, queue.count, _UNITS):
                units = queue_unit.read(queue.read(at, _UNITS))
                found = units["log_offset"].astype(np.int64)
                is_unit = (units["size"] > 0) & (units["size"] < FILLER_SIZE)
                yield found[(found >= begin) & is_unit]


class _SnapshotQuerier(Querier):
    """Finds messages by key, those pending on a fixed level included."""

    def __init__(self, view: SnapshotView, timers: SnapshotTimers) -> None:
        super().__init__(
            view.config,
            view.log,
            SettledQueues(QueueSearch(view)),
            PendingDeletes(view.log),
            view.routes,
            timers.states.native,
            timers.store_id,
        )
        self._offsets_on_levels = frozenset(timers.level_pending.entries()["log_offset"].tolist())

    def query(self, query: Query) -> list[Message]:
        """Query once. If retention removed a record, the caller moves to a newer position first."""
        return self._query(query)

    def _waits_on_level(self, found: Any, below: int) -> bool:  # noqa: ARG002
        return found.log_offset in self._offsets_on_levels


# --- snapshot introspection ---


class SnapshotIntrospectionCalls(SnapshotCalls):
    """The introspection calls of a read-only store."""

    def _do_pending(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        self.check_open()
        problems = range_problems(begin_ms, end_ms)
        if problems:
            raise MessageError(problems)
        if topic is not None:
            check_name("topic", topic)
        return self._pending_steps(begin_ms, end_ms, topic)

    def _pending_steps(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        def read() -> tuple[Records, Records]:
            self._timers.catch_up()
            return self._timers.entries(begin_ms, end_ms, topic)

        timers, on_level = self.answer(read)
        both = merge(
            ((int(one["due_ms"]), False, k) for k, one in enumerate(timers)),
            ((int(one["due_ms"]), True, k) for k, one in enumerate(on_level)),
        )
        for _, is_level, k in both:
            entry = (on_level if is_level else timers)[k]
            with self.turn():
                one = self._timers.describe(entry, is_level=is_level)
            if one is not None and (topic is None or one.topic == topic):
                yield one

    @answered
    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        if topic is not None:
            check_name("topic", topic)
        buckets = buckets_of(self._clock.now_ms, begin, end, by)
        self._timers.catch_up()
        due_ms = np.concatenate([one["due_ms"] for one in self._timers.entries(topic=topic)])
        return Histogram(buckets.edges(), buckets.counts_of(due_ms))

    @answered
    def _do_explain(
        self, message: PutReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        name = name_of(message, topic)
        self._timers.catch_up()
        return SnapshotExplainer(self._view, self._timers, self._clock).explain(name)

    @answered
    def _do_timing_distribution(self) -> dict[int | None, int]:
        self._timers.catch_up()
        return self._timers.counts.distribution()

    @answered
    def _do_congestion(self) -> dict[int, int]:
        self._timers.catch_up()
        return self._timers.counts.congestion()

    @answered
    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[Message]:
        wanted = check_query(topic, key, begin_ms, end_ms, max_count)
        self._timers.catch_up()
        found = _SnapshotQuerier(self._view, self._timers).query(wanted)
        return unexpired(found, self._clock.now_ms)
