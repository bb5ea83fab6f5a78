"""Statistics of stores that another process owns: the wheel, rates and lateness.

`timerstore top` and the dashboard show them. Each look reads the wheel's file (32 bytes a slot) and
the new part of the log.

Invariants: numbers are as of the last checkpoint, and as of now if no process has the store open. A
rate is measured over the last few looks. The numbers of a store that a broker has open are unknown:
each look would read its whole log.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from timerstore._engine.base.metrics import LATE_MS
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.store_paths import (
    DELETED_TOPIC,
    INGEST_TOPIC,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
)
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.snapshot.columns.table_scan import Part, Wanted, records, slots
from timerstore._engine.snapshot.position import PositionReader, Snapshot, SnapshotPosition, take
from timerstore._engine.snapshot.snapshot_calls import SnapshotCalls, answered
from timerstore._engine.snapshot.snapshot_log import read_topics
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.checkpoint import copy_counts, counts_by_topic
from timerstore.errors import CorruptError
from timerstore.types.clock import SystemClock
from timerstore.types.messages import Int64Array
from timerstore.types.reports import GroupBacklog

# --- snapshot counts ---
# How many messages a store has, and how far it can be read now. All counts come from here.
#
#     a process has the store open    the counts of its last checkpoint
#     no process has it open          the same, and the records after the checkpoint
#     restored, repaired, a broker's  a fold of the whole log: there are no stored counts
#
# Thread safety: any thread. Nothing is written, and no lock is taken.
# Invariants: the counts are those that a read-only store has at the same position.
# Raises: as SnapshotCalls.


class SnapshotCounts(SnapshotCalls):
    """Counts the messages of one store."""

    @answered
    def position(self) -> SnapshotPosition:
        """Return how far the store can be read."""
        return self._view.position

    @answered
    def read(self) -> tuple[SnapshotPosition, Counts]:
        """Return the position, and the pending messages and the end of each queue there."""
        position = self._view.position
        mark, counts = position.mark, position.counts
        is_stored = mark is not None and not mark.is_bootstrap and mark.log_end == position.log_end
        if is_stored and counts is not None:
            return position, counts
        self._timers.catch_up()
        pending, ends, on_level = counts_by_topic(copy_counts(self._view.routes))
        return position, Counts(position.log_end, pending, ends, {}, on_level)


def take_newest(root: Path, precision_ms: int | None = None) -> Snapshot:
    """Return how far a store can be read now, with the records after its last checkpoint if no
    process has it open.

    `precision_ms`: of a broker's store whose files do not show it.

    Raises:
        ConfigError: there is no store. CorruptError: limits and files do not fit.
    """
    found = take(root, precision_ms)
    if found.store_id is None or owner_pid(Disk(), Tree(found.root)) is not None:
        return found
    with SnapshotCounts(found.root) as reader:
        store = reader.position().store
    is_newer = store.log_end > found.log_end
    return replace(store, as_of_ms=SystemClock().now_ms if is_newer else found.as_of_ms)


# --- store summary ---
# A summary of a store. Another process may have the store open.
#
#     look       as of the last checkpoint; without counts if none are stored
#     counted    as of now, always with counts
#
# Thread safety: takes no lock and writes nothing.
# Invariants: a summary has only durable messages. `look` returns no counts for a broker's store,
# nor for a restored or repaired one that was not opened yet.
# Raises: ConfigError if there is no store. CorruptError if a file cannot be read.


SYSTEM_TOPICS = frozenset({WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC, INGEST_TOPIC, DELETED_TOPIC})


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store, at one position."""

    path: Path
    shard: int | None
    holder: int | None
    """The process that has it open. 0: an unknown process. None: no process."""
    store: Snapshot
    mark: Watermark | None
    counts: Counts | None
    queue_counts: dict[str, int]

    @property
    def topics(self) -> list[str]:
        """All topics except the engine's own, by name."""
        known = set(self.queue_counts)
        if self.counts is not None:
            known |= set(self.counts.ends) | set(self.counts.pending)
            known |= set(self.counts.level_pending)
        return sorted(known - SYSTEM_TOPICS)

    @property
    def is_brokers(self) -> bool:
        """Whether a broker wrote it, and it was not opened here since."""
        return self.store.store_id is None and self.store.log_end > self.store.log_begin

    def pending(self, topic: str | None = None) -> int | None:
        """Return the number of pending messages, of one topic or all."""
        if self.counts is None:
            return None
        parts = (self.counts.pending, self.counts.level_pending)
        if topic is None:
            return sum(sum(queues.values()) for part in parts for queues in part.values())
        return sum(sum(part.get(topic, {}).values()) for part in parts)

    def end(self, topic: str) -> int | None:
        """Return the number of messages that a topic ever received."""
        if self.counts is None:
            return None
        return sum(self.counts.ends.get(topic, {}).values())


def look(path: Path, shard: int | None = None) -> StoreSummary:
    """Summarize one store as of its last checkpoint. The counts are None if none are stored."""
    path = path.absolute()
    disk, tree = Disk(), Tree(path)
    _, (store, mark, counts) = PositionReader(disk, tree).find()
    if mark is not None and mark.is_bootstrap:
        counts = None  # its counts have the ends of queues only
    topics = read_topics(disk, tree).topics
    queue_counts = {name: one.read_queue_count for name, one in topics.items()}
    return StoreSummary(path, shard, owner_pid(disk, tree), store, mark, counts, queue_counts)


def counted(found: StoreSummary) -> StoreSummary:
    """Return the summary as of now. Without stored counts the whole log is read."""
    if found.counts is not None and found.holder is not None:
        return found
    if found.store.log_end == found.store.log_begin and found.mark is None:
        return found  # it has no file yet
    with SnapshotCounts(found.path) as reader:
        (store, mark, _), counts = reader.read()
    return replace(found, store=store, mark=mark, counts=counts)


def read_slot(found: StoreSummary) -> int:
    """Return the first slot of the wheel that was not read yet, as the files show it."""
    if found.mark is not None:
        return found.mark.replay_slot
    raw = Disk().read_small(found.store.tree.timer_check)
    fields = ffi.new("int64_t[7]")
    if raw is None or lib.ts_timer_check_unpack(raw, len(raw), fields) < 0:
        return 0
    return int(fields[0]) // found.store.precision_ms


# --- live stats ---


_SLOT_ROWS = 1 << 20
_LATENESS_BYTES_MAX = 64 << 20  # of new log that one look goes through
_LATENESS_KEPT = 100_000
_LOOKS_KEPT = 6
_GRACE_MS = 2000
HISTORY = 60
ROW = np.dtype([("time", np.int64), ("count", np.int64)])

BUCKETS: tuple[tuple[str, int], ...] = (
    ("1 s", 1000),
    ("10 s", 10_000),
    ("1 min", 60_000),
    ("10 min", 600_000),
    ("1 h", 3_600_000),
    ("6 h", 21_600_000),
    ("1 day", 86_400_000),
)


class Lateness(NamedTuple):
    """The lateness of the last deliveries, ms."""

    number: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LiveStats:
    """Statistics of all stores at one time."""

    now_ms: int
    looks: tuple[StoreSummary, ...]
    due_ms: Int64Array
    """The begin of each slot in use, ascending."""
    counts: Int64Array
    """The number of messages in each of these slots."""
    precision_ms: int
    pending: int | None
    by_topic: Mapping[str, tuple[int | None, int | None, float]]
    """By topic: pending messages, arrived messages, arrived messages per second."""
    put_per_s: float
    arrived_per_s: float
    log_per_s: float
    lateness: Lateness | None
    history: tuple[float, ...]
    """Arrived messages per second, the newest value last."""
    groups: tuple[tuple[str, str, GroupBacklog], ...] = ()
    """Topic, group and backlog; only of a served store, whose server counts leases."""
    late_counts: tuple[int, ...] = ()
    """How many of the last deliveries were at most each of LATE_MS late, and how many later."""

    @property
    def late(self) -> int:
        """The number of messages that are overdue.

        An open store delivers them before its checkpoint knows. So a message of an open store
        counts as overdue only 2 s after its time.
        """
        grace_ms = _GRACE_MS if any(one.holder is not None for one in self.looks) else 0
        ends = self.due_ms + self.precision_ms + grace_ms
        return int(self.counts[ends <= self.now_ms].sum())

    def by_time(self) -> list[tuple[str, int]]:
        """Return how many messages the wheel reaches within each span of BUCKETS, each without the
        shorter spans.

        A message that rolls counts at its present slot. The last row counts pending messages that
        are not on the wheel: on the far wheel, on a fixed level, or just put.
        """
        late, names = self.late, (*(name for name, _ in BUCKETS), "later")
        bounds = [bound for _, bound in BUCKETS]
        places = np.searchsorted(bounds, self.due_ms - self.now_ms, side="right")
        counts = np.bincount(places, self.counts, len(names)).astype(np.int64).tolist()
        missing = max(0, (self.pending or 0) - sum(counts))
        counts[0] -= late
        return [("late", late), *zip(names, counts, strict=True), ("not on it", missing)]

    def ahead(self, unit_ms: int, places: int) -> Int64Array:
        """Return how many messages are due in each unit of time, from the present one on."""
        numbers = self.due_ms // unit_ms - self.now_ms // unit_ms
        chosen = (numbers >= 0) & (numbers < places)
        ring = np.bincount(numbers[chosen], weights=self.counts[chosen], minlength=places)
        return ring.astype(np.int64)

    def ring(self, unit_ms: int, places: int) -> Int64Array:
        """Return the same by place on a ring that begins at the epoch."""
        return np.roll(self.ahead(unit_ms, places), self.now_ms // unit_ms % places)


@dataclass
class Watch:
    """Measures stores again and again."""

    stores: Mapping[int | None, Path]
    _before: deque[tuple[float, tuple[StoreSummary, ...]]] = field(
        default_factory=lambda: deque(maxlen=_LOOKS_KEPT)
    )
    _history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _late: deque[Int64Array] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _closed: dict[int | None, tuple[StoreSummary, StoreSummary]] = field(default_factory=dict)
    """By shard: the last look at a store that no process has open, and the counted one."""

    def look(self, now_ms: int, now_s: float) -> LiveStats:
        """Measure once. `now_s` is the time of a monotonic clock."""
        looks = tuple(self._look(shard, path) for shard, path in self.stores.items())
        if self._before:
            for before, now in zip(self._before[-1][1], looks, strict=True):
                self._late.append(_lateness(before, now))
        last_s, last = self._before[-1] if self._before else (now_s, looks)
        self._history.append(_rate(_arrived(last), _arrived(looks), now_s - last_s))
        self._before.append((now_s, looks))
        due_ms, counts = _wheel(looks)
        first_s, first = self._before[0]
        span = now_s - first_s
        return LiveStats(
            now_ms=now_ms,
            looks=looks,
            due_ms=due_ms,
            counts=counts,
            precision_ms=max(one.store.precision_ms for one in looks),
            pending=_sum([one.pending() for one in looks]),
            by_topic=_topics(first, looks, span),
            put_per_s=_rate(_put(first), _put(looks), span),
            arrived_per_s=_rate(_arrived(first), _arrived(looks), span),
            log_per_s=_rate(_log(first), _log(looks), span),
            lateness=_percentiles(list(self._late)),
            late_counts=_by_bound(list(self._late)),
            history=tuple(self._history),
        )

    def _look(self, shard: int | None, path: Path) -> StoreSummary:
        """Look at one store. One that no process has open is counted once."""
        found = look(path, shard)
        if found.holder is not None:
            return found
        known = self._closed.get(shard)
        if known is None or known[0] != found:
            known = self._closed[shard] = found, counted(found)
        return known[1]


def _sum(numbers: list[int | None]) -> int | None:
    known = [one for one in numbers if one is not None]
    return sum(known) if len(known) == len(numbers) else None


def _rate(before: int, now: int, seconds: float) -> float:
    return max(0, now - before) / seconds if seconds > 0 else 0.0


def _arrived(looks: tuple[StoreSummary, ...]) -> int:
    return sum(one.end(topic) or 0 for one in looks for topic in one.topics)


def _put(looks: tuple[StoreSummary, ...]) -> int:
    return sum(one.mark.timer_id_end for one in looks if one.mark is not None)


def _log(looks: tuple[StoreSummary, ...]) -> int:
    return sum(one.store.log_end for one in looks)


def _topics(
    first: tuple[StoreSummary, ...], looks: tuple[StoreSummary, ...], span: float
) -> dict[str, tuple[int | None, int | None, float]]:
    names = sorted({topic for one in looks for topic in one.topics})
    found = {}
    for name in names:
        now = _sum([one.end(name) for one in looks])
        before = _sum([one.end(name) for one in first])
        rate = 0.0 if now is None or before is None else _rate(before, now, span)
        found[name] = _sum([one.pending(name) for one in looks]), now, rate
    return found


def _wheel(looks: tuple[StoreSummary, ...]) -> tuple[Int64Array, Int64Array]:
    """Return the slots of all wheels that were not read yet, by their begin."""
    times, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for one in looks:
        store = one.store
        floor = read_slot(one)
        mine = [np.empty(0, ROW)]
        for rows in slots(Part.whole(store, "slots"), Wanted("slots", (), batch_rows=_SLOT_ROWS)):
            kept = rows[(rows["time"] >= floor) & (rows["count"] > 0)]
            mine.append(np.rec.fromarrays((kept["time"], kept["count"]), ROW))
        used = np.concatenate(mine)
        used.sort(order="time")
        times.append(used["time"] * store.precision_ms)
        counts.append(_without_delivered(used["count"], one))
    due_ms, number = np.concatenate(times), np.concatenate(counts)
    order = np.argsort(due_ms, kind="stable")
    return due_ms[order], number[order]


def _without_delivered(counts: Int64Array, found: StoreSummary) -> Int64Array:
    """Subtract delivered messages from the counts of slots.

    A slot keeps its count while it is read. So the counts of all slots may exceed the number of
    pending messages; the difference is subtracted from the first slots. The result is nearly exact,
    as the slots are slightly newer than the counts of the checkpoint.
    """
    if found.counts is None:
        return counts
    pending = sum(sum(queues.values()) for queues in found.counts.pending.values())
    beyond = max(0, int(counts.sum()) - pending)
    left = counts - np.diff(np.minimum(np.cumsum(counts), beyond), prepend=0)
    return np.asarray(left, np.int64)


def _lateness(before: StoreSummary, now: StoreSummary) -> Int64Array:
    """Return the lateness of the deliveries between two looks."""
    begin, end = before.store.log_end, now.store.log_end
    if end - begin > _LATENESS_BYTES_MAX or begin < now.store.log_begin:
        return np.empty(0, np.int64)
    found = [np.empty(0, np.int64)]
    try:
        for rows in records(Part(0, now.store, begin, end), _DELIVERIES):
            known = rows.rows[rows.rows["due_ms"] != 0]
            found.append((known["store_ms"] - known["due_ms"]).astype(np.int64))
    except CorruptError:
        pass  # `verify` reports damage; a screen goes on
    return np.concatenate(found)


_DELIVERIES = Wanted("deliveries", ("lateness_ms", "level"), verify_crc=False)


def _percentiles(parts: list[Int64Array]) -> Lateness | None:
    late = np.concatenate(parts)[-_LATENESS_KEPT:] if parts else np.empty(0, np.int64)
    if not len(late):
        return None
    p50, p99 = np.percentile(late, [50, 99])
    return Lateness(len(late), float(p50), float(p99), float(late.max()))


def _by_bound(parts: list[Int64Array]) -> tuple[int, ...]:
    places = np.searchsorted(LATE_MS, np.concatenate(parts), side="left") if parts else ()
    return tuple(np.bincount(places, minlength=len(LATE_MS) + 1).tolist())
