"""Streaming reads: divide the log into micro-batches between offsets.

Invariants:
    1. An offset is the start of a record. Equal offsets have equal JSON text, because Spark
       compares the text.
    2. No state is kept between runs: Spark stores the offsets in its checkpoint.
    3. The initial offset is the same each time Spark asks for it.
Raises: FailedError if retention removed data that was not read yet (with fail_on_data_loss), if a
    shard is missing, or if a store was replaced by an older state.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from timerstore._engine.base.native import lib
from timerstore._engine.format import timer_unit
from timerstore._engine.snapshot.columns.table_scan import Damage, Wanted
from timerstore._engine.snapshot.log_windows import is_record, skip_records
from timerstore._engine.snapshot.position import Snapshot, refreshed
from timerstore.errors import ConfigError, CorruptError, FailedError
from timerstore.shards.shard_snapshots import find_stores, take_shard
from timerstore.spark import offsets
from timerstore.spark.batch import TimerStorePartition, read_task
from timerstore.spark.offsets import Ends
from timerstore.spark.plan import (
    Task,
    first_stored_ms,
    log_position,
    split_log,
    split_timers,
)
from timerstore.spark.read_options import ReadOptions

_STREAMED = ("messages", "deliveries", "timer_units")
_log = logging.getLogger("timerstore.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read one table as a stream."""

    def __init__(self, options: ReadOptions, wanted: Wanted) -> None:
        if options.table not in _STREAMED:
            raise ConfigError(
                f"table: wanted one of {', '.join(_STREAMED)} for a stream, got {options.table}, "
                "which has no order"
            )
        if options.as_of is not None:
            raise ConfigError("as_of: not for streams; use starting_offsets")
        if "cancelled" in wanted.columns:
            raise ConfigError(
                "column cancelled: not for streams of timer units, because a cancel can follow "
                "later; leave the column out (columns=...), or read the table as a batch"
            )
        since = options.starting_offsets.removeprefix("timestamp:")
        if since != options.starting_offsets:
            # The offset skips whole segments, and this bound single rows.
            wanted = replace(wanted, bounds=wanted.bounds.stored_since(int(since)))
        self._options = options.absolute_path()
        self._wanted = wanted
        self._target: Ends | None = None
        self._stores: dict[int, Snapshot] = {}

    # --- stores ---

    def _roots(self) -> dict[int, Path]:
        asked = self._options.shards
        stores = find_stores(self._options.paths)
        return {n: root for n, root in stores.items() if asked is None or n in asked}

    def _look(self) -> dict[int, Snapshot]:
        """Take or refresh the snapshots of all shards. A refresh is cheap."""
        if not self._stores:
            self._stores = {
                n: take_shard(root, self._options.precision_ms) for n, root in self._roots().items()
            }
        else:
            self._stores = {n: _again(one) for n, one in self._stores.items()}
        return self._stores

    def _end(self, store: Snapshot) -> int:
        return store.timer_log_end if self._options.table == "timer_units" else store.log_end

    def _begin(self, store: Snapshot) -> int:
        return store.timer_log_begin if self._options.table == "timer_units" else store.log_begin

    def _ends(self) -> Ends:
        return {n: self._end(store) for n, store in self._look().items()}

    # --- methods that Spark calls ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the first offset. `earliest` is 0, which stays valid when retention runs."""
        given, step_ms = self._options.starting_offsets, self._options.clock_step_ms
        if given == "earliest":
            return offsets.make(dict.fromkeys(self._roots(), 0))
        if given.startswith("timestamp:"):
            return offsets.make(
                {
                    n: _segment_before(store, self._wanted, step_ms)
                    for n, store in self._look().items()
                }
                if self._options.table != "timer_units"
                else dict.fromkeys(self._roots(), 0)
            )
        positions = offsets.read("starting_offsets", given)
        starts = dict.fromkeys(self._roots(), 0)
        for n, at in positions.items():
            if n not in starts:
                raise ConfigError(f"starting_offsets: shard {n} does not exist")
            starts[n] = at.p
            if self._options.table == "timer_units":
                if at.t is None:
                    raise ConfigError(f"starting_offsets: shard {n} has no t (table timer_units)")
                starts[n] = at.t
        return offsets.make(starts)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of this run."""
        self._target = self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the read limit set by the options."""
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        begins = offsets.ends_of(start)
        ends = self._ends() if self._target is None else self._target
        lost = sorted(begins.keys() - ends.keys())
        if lost:
            self._lose(f"shards {lost} are missing from {self._options.paths}")
        for n in sorted(begins.keys() & ends.keys()):
            if ends[n] < begins[n]:
                self._lose(
                    f"shard {n} was set back: the stream has read up to {begins[n]}, but the store "
                    f"ends at {ends[n]}; to read another store, use another checkpoint"
                )
        # A missing shard keeps its position, because stream offsets must not lose a key.
        goals = {n: max(begin, ends.get(n, begin)) for n, begin in begins.items()}
        goals.update({n: end for n, end in ends.items() if n not in begins})
        if isinstance(limit, ReadMaxRows):
            bytes_max = self._options.max_bytes_per_trigger
            goals = self._share(begins, goals, limit.max_rows, bytes_max)
        elif isinstance(limit, ReadMaxBytes):
            goals = self._share(begins, goals, None, limit.max_bytes)
        return offsets.make(goals)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the current ends of the stores."""
        return offsets.make(self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of one batch."""
        begins, ends = offsets.ends_of(start), offsets.ends_of(end)
        stores = self._look()
        found: list[InputPartition] = []
        for n, stop in sorted(ends.items()):
            begin = begins.get(n, 0)
            if begin >= stop:
                continue
            if n not in stores:
                self._lose(f"shard {n} is missing from {self._options.paths}")
                continue
            store = stores[n]
            begin = self._checked(n, store, begin, stop)
            log_position(f"batch table={self._options.table} from={begin} to={stop}", n, store)
            split = split_timers if self._options.table == "timer_units" else split_log
            parts = split(n, self._limited(store, stop), begin, stop, self._max_bytes)
            found.extend(TimerStorePartition(Task(part, self._wanted)) for part in parts)
        return found

    @property
    def _max_bytes(self) -> int:
        return self._options.max_partition_bytes

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one partition."""
        return read_task(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint has the position of the stream."""

    # --- limits ---

    def _limited(self, store: Snapshot, end: int) -> Snapshot:
        if self._options.table == "timer_units":
            return replace(store, timer_log_end=end)
        return replace(store, log_end=end)

    def _checked(self, shard: int, store: Snapshot, begin: int, end: int) -> int:
        """Return the start of a batch, after retention. Raise FailedError if it is not a record."""
        if end > self._end(store):
            raise FailedError(
                f"shard {shard} was set back: the stream is ahead of the store",
                where=store.root,
                wanted=f"an end of at least {end}",
                got=self._end(store),
            )
        first = self._begin(store)
        if 0 < begin < first:
            self._lose(
                f"shard {shard}: retention removed {first - begin} bytes of {store.root} at "
                f"offset {begin} before the stream read them"
            )
        begin = min(max(begin, first), end)
        if self._options.table != "timer_units" and first < begin < end:
            windows = store.log(verify=False)
            if not is_record(windows, begin):
                raise FailedError(
                    f"shard {shard}: no record begins at the position of the stream: this is not "
                    "the store that it has read; begin with another checkpoint",
                    where=windows.path(begin),
                    got=f"offset {begin}",
                )
        return begin

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise FailedError(f"{what}; fail_on_data_loss=false continues without the data")
        _log.warning("data loss: %s", what)

    def _share(
        self, begins: Ends, goals: Ends, rows_max: int | None, bytes_max: int | None
    ) -> Ends:
        """Divide a limit among the shards by their backlogs. Take at least one item in all."""
        backlog = {n: goal - begins.get(n, 0) for n, goal in goals.items()}
        rows_left, bytes_left, backlog_left = rows_max, bytes_max, sum(backlog.values())
        shared: Ends = {}
        for n in sorted(goals, key=lambda one: (-backlog[one], one)):
            begin = begins.get(n, 0)
            store = self._stores.get(n)
            if store is None or backlog[n] <= 0 or backlog_left <= 0:
                shared[n] = begin if store is None else goals[n]
                continue
            begin = max(begin, self._begin(store))
            rows = _part_of(rows_left, backlog[n], backlog_left)
            size = _part_of(bytes_left, backlog[n], backlog_left)
            count, end = self._advance(n, store, begin, goals[n], rows, size)
            if end == begin and not any(shared[m] > begins.get(m, 0) for m in shared):
                count, end = self._advance(n, store, begin, goals[n], 1, None)
            shared[n] = end if end > begin else begins.get(n, 0)
            rows_left = None if rows_left is None else max(0, rows_left - count)
            bytes_left = None if bytes_left is None else max(0, bytes_left - (end - begin))
            backlog_left -= backlog[n]
        return shared

    def _advance(
        self,
        shard: int,
        store: Snapshot,
        begin: int,
        goal: int,
        rows: int | None,
        size: int | None,
    ) -> tuple[int, int]:
        """Advance by at most `rows` items and `size` bytes; return (items, next position)."""
        if rows == 0 or size == 0:
            return 0, begin
        stop = goal if size is None else min(goal, begin + size)
        if self._options.table == "timer_units":
            segment = store.timer_log_segment_bytes
            first = timer_unit.count_below(begin, segment)
            last = timer_unit.count_below(stop, segment)
            last = last if rows is None else min(last, first + rows)
            return last - first, min(goal, timer_unit.position_of(last, segment))
        windows = store.log(verify=False, end=stop)
        limit = 2**62 if rows is None else rows
        count, end = skip_records(windows, begin, limit, stops_at_damage=True)
        return count, self._edge(shard, store, begin, end, goal)

    def _edge(self, shard: int, store: Snapshot, begin: int, at: int, goal: int) -> int:
        """Return the end of a batch from `begin` to `at`, moved past damaged bytes at its end.

        The next batch could not begin in damaged bytes.
        """
        windows = store.log(verify=False, end=goal)
        on_corrupt = self._options.on_corrupt
        if at >= goal or is_record(windows, at) or (at > begin and on_corrupt == "fail"):
            return at  # records before the damage are read first; the next batch raises
        try:
            skip_records(windows, at, 1)
        except CorruptError as error:
            if windows.native.fault == lib.TS_FAULT_NONE:
                raise  # a file is missing or short
            return Damage(on_corrupt, shard, store).in_records(windows, error)
        return at


def _again(store: Snapshot) -> Snapshot:
    """Refresh a snapshot. Take a new one if the store had never been opened."""
    return (
        take_shard(store.root) if not store.log_end and store.store_id is None else refreshed(store)
    )


def _part_of(limit: int | None, mine: int, all_of_it: int) -> int | None:
    return None if limit is None else -(-limit * mine // all_of_it)


def _segment_before(store: Snapshot, wanted: Wanted, clock_step_ms: int) -> int:
    """Return the start of the segment to begin with, or 0.

    It is the last segment whose first record was stored more than clock_step_ms before the
    requested time.
    """
    since = wanted.bounds.stored_from_ms
    size = store.log_segment_bytes
    best = 0
    for begin in range(-(-store.log_begin // size) * size, store.log_end, size):
        first = first_stored_ms(store, begin)
        if since is None or first is None or first + clock_step_ms >= since:
            break
        best = begin
    return best
