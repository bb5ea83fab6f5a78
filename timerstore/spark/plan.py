"""Plan a read: find the shards, and divide them into parts, one for each task.

Invariants:
    1. A part begins and ends at a record. The starts come from queue units and segment starts, and
       each is checked. Together the parts hold every requested row once.
    2. A part carries the snapshot of its store, so a task reads the planned state.
    3. A skipped part has no requested row, unless a clock was set back by more than the option
       clock_step_ms (one hour by default).
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore._engine.snapshot.columns.pending_set import (
    NO_FACTS,
    Facts,
    PendingSet,
    facts_for,
    pending_span,
)
from timerstore._engine.snapshot.columns.record_starts import QueueUnits, RecordStarts, is_covered
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, Wanted, records
from timerstore._engine.snapshot.position import Snapshot
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError
from timerstore.shards.shard_snapshots import find_stores, take_shard
from timerstore.spark import offsets
from timerstore.spark.offsets import Position
from timerstore.spark.read_options import ReadOptions, parse

PLAN_FORMAT = 3
"""Version of `Task`. A worker with another version raises an error."""

_LOOK_BYTES = 1 << 16
_LOG_TABLES = ("messages", "deliveries")

_log = logging.getLogger("timerstore.spark")


@dataclass(frozen=True, slots=True)
class Task:
    """The part, columns and bounds that one task reads."""

    part: Part
    wanted: Wanted
    facts: Facts = NO_FACTS
    plan_format: int = PLAN_FORMAT


# --- shards ---------------------------------------------------------------------------------------


def snapshots(options: ReadOptions) -> dict[int, Snapshot]:
    """Take a snapshot of each requested shard, of the current state or as of `as_of`."""
    stores = find_stores(options.paths)
    pinned = options.as_of
    for what, asked in (("shards", options.shards), ("as_of", pinned and frozenset(pinned))):
        unknown = sorted((asked or frozenset()) - stores.keys())
        if unknown:
            raise ConfigError(f"{what}: wanted shards 0 to {len(stores) - 1}, got {unknown}")
    found = {}
    for shard, root in stores.items():
        if options.shards is not None and shard not in options.shards:
            continue
        if pinned and shard not in pinned:
            continue
        store = take_shard(root, options.precision_ms)
        if pinned is not None:
            at = pinned[shard]
            if at.t is None and options.table in ("timer_units", "slots"):
                raise ConfigError(f"as_of: shard {shard} has no t, which {options.table} requires")
            store = store.pinned(at.p, at.t, at.ms)
        found[shard] = store
    return found


def latest_offsets(path: str | Path, *, shards: str | None = None) -> str:
    """Return the current ends of all shards as JSON, for `as_of` and `starting_offsets`.

    For each shard: `p`, the end of its commit log, `t`, that of its timer log, and `ms`, the time
    of this state in ms since 1970.
    """
    given = {"path": str(path)} if shards is None else {"path": str(path), "shards": shards}
    stores = snapshots(parse(given))
    return offsets.text(
        {
            shard: Position(one.log_end, one.timer_log_end, one.as_of_ms)
            for shard, one in stores.items()
        }
    )


# --- parts ----------------------------------------------------------------------------------------


class ReadPlan(NamedTuple):
    """The tasks of one read, and the state of each shard that they read."""

    tasks: list[Task]
    stores: dict[int, Snapshot]


def plan(options: ReadOptions, wanted: Wanted) -> ReadPlan:
    """Plan one read."""
    found = ReadPlan([], {})
    for shard, taken in snapshots(options).items():
        store = taken
        if not wanted.bounds.are_impossible:
            # The table of pending messages may need a newer state file than that of `taken`.
            store, facts = facts_for(store, wanted, shard, is_pinned=options.as_of is not None)
            found.tasks.extend(shard_tasks(options, wanted, shard, store, facts))
        found.stores[shard] = store
        log_position(f"planned table={options.table}", shard, store)
    return found


def log_position(what: str, shard: int, store: Snapshot) -> None:
    """Log the state of a shard that a read sees."""
    _log.info(
        "%s shard=%d log_end=%d timer_log_end=%d as_of=%s",
        what, shard, store.log_end, store.timer_log_end, store.as_of or "unknown",
    )  # fmt: skip


def shard_tasks(
    options: ReadOptions, wanted: Wanted, shard: int, store: Snapshot, facts: Facts
) -> Iterator[Task]:
    """Yield the tasks of one shard."""
    if options.table in _LOG_TABLES:
        begin, end = log_range(store, wanted.bounds)
        parts = split_log(shard, store, begin, end, options.max_partition_bytes)
        yield from (Task(part, wanted) for part in _in_time(parts, wanted, options.clock_step_ms))
    elif options.table == "timers":
        assert facts.pending is not None, "facts_for finds it for this table"
        yield from _pending_tasks(options, wanted, shard, store, facts.pending)
    elif options.table == "timer_units":
        begin, end = store.timer_log_begin, store.timer_log_end
        for part in split_timers(shard, store, begin, end, options.max_partition_bytes):
            yield Task(part, wanted, facts)
    elif options.table == "slots":
        if store.timer_log_end > store.timer_log_begin:
            yield Task(Part(shard, store, 0, store.wheel_slot_count), wanted)
    elif store.log_end > store.log_begin:  # transactions need only a few reads
        yield Task(Part(shard, store, store.log_begin, store.log_end), wanted)


def _pending_tasks(
    options: ReadOptions, wanted: Wanted, shard: int, store: Snapshot, pending: PendingSet
) -> Iterator[Task]:
    """Yield a task for each part of the log that has pending messages."""
    begin, end, queue = pending_span(store, pending)
    parts = split_log(shard, store, begin, end, options.max_partition_bytes)
    for part in _in_time(parts, wanted, options.clock_step_ms):
        mine = pending
        if queue is not None:
            numbers = queue.number_from(part.begin), queue.number_from(part.end)
            mine = pending.cut(numbers, part.begin, part.end)
        if not mine.is_empty:
            yield Task(part, wanted, Facts(pending=mine))


def log_range(store: Snapshot, bounds: Bounds) -> tuple[int, int]:
    """Return the range of the log that can contain requested rows, from record to record."""
    begin, end = store.log_begin, store.log_end
    if bounds.topics is None or store.store_id is None or not is_covered(store, bounds.topics):
        return begin, end
    return _topics_range(store, bounds.topics)


def _topics_range(store: Snapshot, topics: tuple[str, ...]) -> tuple[int, int]:
    """Return the range from the first to the last queue unit of these topics.

    Only stores of timerstore allow this. In them each record below a watermark has a queue unit.
    """
    disk, first, last = Disk(), store.log_end, store.log_begin
    for topic in topics:
        folder = store.tree.queues / topic
        if "/" in topic or topic in {"", ".", ".."} or not disk.is_directory(folder):
            continue
        for name in disk.list(folder):
            units = QueueUnits(folder / name, store.queue_segment_bytes)
            low, high = units.range_within(store.log_begin, store.log_end)
            if low < high:
                first, last = min(first, low), max(last, high)
    return (first, last) if first < last else (store.log_end, store.log_end)


def split_log(shard: int, store: Snapshot, begin: int, end: int, max_bytes: int) -> list[Part]:
    """Divide [begin, end) of the log at record starts, into parts of about `max_bytes`."""
    if begin >= end:
        return []
    windows = store.log()
    edges: RecordStarts | None = None
    cuts = [begin]
    for target in _targets(begin, end, max_bytes):
        if target <= cuts[-1]:
            continue
        if edges is None:
            edges = RecordStarts(store.tree, store.queue_segment_bytes, windows)
        cut = edges.first_from(target, store.log_segment_bytes)
        if cuts[-1] < cut < end:
            cuts.append(cut)
    return [Part(shard, store, *edge) for edge in zip(cuts, [*cuts[1:], end], strict=True)]


def split_timers(shard: int, store: Snapshot, begin: int, end: int, max_bytes: int) -> list[Part]:
    """Divide [begin, end) of the timer log at unit starts, into parts of about `max_bytes`."""
    size = store.timer_log_segment_bytes

    def edge(target: int) -> int:
        return target - target % size + target % size // UNIT_BYTES * UNIT_BYTES

    cuts = [begin]
    for target in map(edge, _targets(begin, end, max_bytes)):
        if target % size + UNIT_BYTES < size and target > cuts[-1]:
            cuts.append(target)
    pairs = zip(cuts, [*cuts[1:], end], strict=True)
    return [Part(shard, store, low, high) for low, high in pairs if low < high]


def _targets(begin: int, end: int, max_bytes: int) -> list[int]:
    """Return the offsets that divide the range into equal parts of at most `max_bytes`."""
    count = -(-(end - begin) // max_bytes)
    return [begin + (end - begin) * k // count for k in range(1, count)]


def _in_time(parts: list[Part], wanted: Wanted, clock_step_ms: int) -> list[Part]:
    """Drop parts in which all records were stored outside the requested time.

    The decision uses the first record of a part and of the next part. Inside a part the clock may
    have run ahead or been set back by at most `clock_step_ms`.
    """
    low, high = wanted.bounds.stored_from_ms, wanted.bounds.stored_to_ms
    if (low is None and high is None) or len(parts) < 2:
        return parts
    firsts = [first_stored_ms(part.store, part.begin) for part in parts]
    kept = []
    for k, part in enumerate(parts):
        first, following = firsts[k], firsts[k + 1] if k + 1 < len(parts) else None
        edges = [one for one in (first, following) if one is not None]
        too_old = low is not None and following is not None and max(edges) + clock_step_ms < low
        too_new = high is not None and first is not None and min(edges) - clock_step_ms >= high
        if not too_old and not too_new:
            kept.append(part)
    return kept


def first_stored_ms(store: Snapshot, begin: int) -> int | None:
    """Return the store time of the first record at or after a record start, or None."""
    plain = Wanted(
        "messages", (), verify_crc=False, on_corrupt="stop", batch_rows=1, with_ledger=True
    )
    part = Part(0, store, begin, store.log_end)
    for found in records(part, plain, window_bytes=_LOOK_BYTES):
        return int(found.rows["store_ms"][0])
    return None
