"""Check: every invariant of an open store, while its services run.

    watermark, states, counts, wheel   read between two checkpoints        M: the log end they tell
    wheel, timer log's end             copied under the wheel's lock
    log's end, states, counts          copied under the append lock        L >= M
    the log up to M, then up to L      walked: records, their units, their fold
    fold at M = side files             fold at L = states and counts in memory
    chains of the copied wheel; and every id that waited at L, and waits now, is reached

Threads:  any; services go on, but for copies of the wheel and of the states.
Locks:    the checkpoint's, the wheel's, the append lock, dispatch's: one after the other.
Fails:    never on damage inside the store, which the Report names; FailedError where it has failed.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import lib
from timerstore._engine.format import counts_json
from timerstore._engine.format.counts_json import Levels
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.log.fold import Fold, fold
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.maintenance import id_states
from timerstore._engine.maintenance.check_far import check_far_file, check_far_wheel
from timerstore._engine.maintenance.check_index import check_index
from timerstore._engine.maintenance.check_log import LogCheck
from timerstore._engine.maintenance.check_offsets import check_offsets, read_offsets
from timerstore._engine.maintenance.check_side import (
    SideFiles,
    check_counts_file,
    check_states_file,
    check_watermark,
    read_side,
)
from timerstore._engine.maintenance.check_timer import (
    ChainCheck,
    WheelCopy,
    check_reached,
    check_timer_log,
    check_wheel_file,
    copy_wheel,
)
from timerstore._engine.maintenance.findings import Findings, place
from timerstore._engine.maintenance.id_states import NAMES, LogFold, Packed
from timerstore._engine.maintenance.live_store import LiveStore
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Route
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.pending import PendingReader
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError
from timerstore.reports import Report

_MATCHED_RECORDS_MAX = 2_000_000
"""Logs with foreign timers up to so many records are folded whole, in 250 MB; others by id only."""


class _Expected(NamedTuple):
    """What the log says at one log end."""

    states: Packed
    pending: dict[int, int] | None  # by index of route; None: not known
    levels: Levels
    level_pending: dict[int, int]  # as pending, of what waits on levels


class _Taken(NamedTuple):
    """What memory says at one log end."""

    log_end: int
    states: Packed
    waiting: int
    pending: dict[int, int]
    levels: Levels
    level_pending: dict[int, int]


def check_store(
    config: StoreConfig,
    clock: Clock,
    disk: Disk,
    tree: Tree,
    store: LiveStore,
    timer_route: Route,
    store_id: int,
    checkpoint: Checkpoint,
    pending: PendingReader,
) -> Report:
    """Walk everything; give what was found."""
    one = _Check(config, clock, disk, tree, store, timer_route, store_id, checkpoint, pending)
    return one.run()


class _Check:
    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        disk: Disk,
        tree: Tree,
        store: LiveStore,
        timer_route: Route,
        store_id: int,
        checkpoint: Checkpoint,
        pending: PendingReader,
    ) -> None:
        self._config = config
        self._clock = clock
        self._disk = disk
        self._tree = tree
        self._store = store
        self._timer_route = timer_route
        self._store_id = store_id
        self._checkpoint = checkpoint
        self._pending = pending
        self._findings = Findings()

    def run(self) -> Report:
        """Check in an order in which what is read later can only have grown."""
        store = self._store
        store.log.check_alive()
        offsets = read_offsets(self._findings, self._disk, self._tree)
        side, wheel = self._take_files()
        taken = self._take_memory()
        if not self._are_files_whole():
            return self._findings.report()
        try:
            store.dispatch.through(taken.log_end)
        except CorruptError as error:
            self._findings.raised("dispatch", self._tree.commit_log, error)
        check_offsets(self._findings, self._tree, store.routes, offsets)
        self._check_log(side, wheel, taken)
        check_watermark(
            self._findings,
            self._config,
            self._tree,
            store,
            self._store_id,
            side,
            self._timer_route.queue.count,
        )
        check_index(self._findings, store)
        check_timer_log(self._findings, store, wheel.timer_end.end, self._config.precision_ms)
        ChainCheck(self._findings, store, wheel).run()
        check_far_wheel(self._findings, store, self._config.precision_ms)
        check_reached(self._findings, store, self._pending, taken.states, store.wheel.path)
        return self._findings.report()

    # --- snapshots ---

    def _take_files(self) -> tuple[SideFiles, WheelCopy]:
        with self._checkpoint.still():
            side = read_side(self._disk, self._tree, self._checkpoint.completed)
            wheel = copy_wheel(self._store)
            raw = self._disk.read_small(self._tree.timer_wheel)
            check_far_file(self._findings, self._disk, self._tree, self._checkpoint.completed)
        check_wheel_file(self._findings, self._store, wheel, raw)
        return side, wheel

    def _take_memory(self) -> _Taken:
        store = self._store
        with store.log.lock:
            log_end = store.log.end
            states = store.states.copy_all()
            waiting = int(store.states.native.waiting)
            pending = {
                int(route.native.index): int(route.native.pending)
                for route in list(store.routes.by_index)
            }
            level_pending = {
                int(route.native.index): int(route.native.level_pending)
                for route in list(store.routes.by_index)
            }
            levels = store.levels.copy()
        packed = np.frombuffer(states, np.uint8)
        return _Taken(log_end, packed, waiting, pending, levels, level_pending)

    def _are_files_whole(self) -> bool:
        """Maps of files that are too short must not be read."""
        store = self._store
        spaces = [
            (store.log.segments.segment_bytes, store.log.segments.wrong_files()),
            (store.timer_log.segments.segment_bytes, store.timer_log.segments.wrong_files()),
            (store.far.segments.segment_bytes, store.far.segments.wrong_files()),
        ]
        spaces += [
            (self._config.queue_segment_bytes, route.queue.wrong_files())
            for route in list(store.routes.by_index)
        ]
        for size, wrong in spaces:
            for path, got in wrong:
                found = "no file" if got is None else f"{got} bytes"
                self._findings.add("a file's size", path, f"{size} bytes", found)
        return self._findings.is_clean or not any(wrong for _, wrong in spaces)

    # --- the log, and what it says ---

    def _check_log(self, side: SideFiles, wheel: WheelCopy, taken: _Taken) -> None:
        store = self._store
        floor = self._timer_route.queue.first_at(store.log.segments.begin)
        floors = {
            route.queue_id: route.queue.first_at(store.log.segments.begin)
            for route in list(store.routes.by_index)
            if route.native.kind == lib.TS_ROUTE_LEVELS
        }
        by_id = LogFold(self._store_id, floor, floors)
        walk = LogCheck(
            self._findings,
            self._config,
            self._clock,
            self._tree,
            store,
            self._timer_route,
            by_id,
            wheel.timer_end,
        )
        begin, end = store.log.segments.begin, taken.log_end
        mark_end = begin if side.mark is None else min(max(begin, side.mark.log_end), end)
        walk.walk(begin, mark_end)
        at_mark = _of_walk(by_id)
        told, told_levels = len(by_id.inherited), len(by_id.levels.inherited)
        walk.walk(mark_end, end)
        at_end = _of_walk(by_id)
        walk.ends(end)
        if walk.is_damaged:  # then what the log says is not known
            check_states_file(self._findings, self._tree, side, None, only_known=False, floor=0)
            return
        only_known = False
        if by_id.foreign or by_id.levels.foreign:
            scanned = self._scan(begin, end)
            if scanned is None:
                only_known = True
                at_mark, at_end = at_mark._replace(pending=None), at_end._replace(pending=None)
            else:
                at_mark, at_end = self._matched(scanned, mark_end, by_id)
        else:
            self._name_doubled(by_id)
        at_mark = _with_inherited(
            at_mark, by_id.inherited[told:], by_id.levels.inherited[told_levels:]
        )
        self._compare(at_end, taken, only_known=only_known, floor=floor)
        check_states_file(
            self._findings, self._tree, side, at_mark.states, only_known=only_known, floor=floor
        )
        if at_mark.pending is not None:
            wanted = {"pending": at_mark.pending, "level_pending": at_mark.level_pending}
            check_counts_file(self._findings, self._tree, store.routes, side, wanted)
            self._compare_levels(by_id, at_mark, at_end, side, taken)

    def _scan(self, begin: int, end: int) -> Scan | None:
        """Give the whole log's records where they are few enough."""
        segments = self._store.log.segments
        parts, total = [], 0
        for part, _, _ in scan_batches(
            segments,
            lambda: self._store.routes.native,
            lambda view: route_needed(segments, view, self._store.routes, self._clock.now_ms),
            self._config.precision_ms,
            begin,
            end,
        ):
            parts.append(part.copy())
            total += len(part)
            if total > _MATCHED_RECORDS_MAX:
                return None
        return np.concatenate(parts)

    def _compare_levels(
        self,
        by_id: LogFold,
        at_mark: _Expected,
        at_end: _Expected,
        side: SideFiles,
        taken: _Taken,
    ) -> None:
        """What memory and the counts file say of the levels is what the log says."""
        checks = [(f"memory at log end {taken.log_end}", at_end.levels, taken.levels)]
        counts = side.mark and counts_json.read_counts(
            side.counts, side.mark.log_end, side.mark.sequence
        )
        if counts:
            checks.append((str(self._tree.counts), at_mark.levels, counts.levels))
        for where, wanted, got in checks:
            for queue_id, one, other in by_id.levels.differing(wanted, got):
                self._findings.add(f"delivered of level {queue_id + 1}", where, one, other)

    def _matched(self, scanned: Scan, mark_end: int, by_id: LogFold) -> tuple[_Expected, _Expected]:
        """Fold by matching, for logs in which a broker wrote."""
        found, begin = fold(scanned, self._store_id), self._store.log.segments.begin
        at_end = _expected(found, scanned, by_id)
        before = scanned[scanned["log_offset"] < mark_end]
        at_mark = at_end
        if len(before) < len(scanned):
            at_mark = _expected(fold(before, self._store_id), before, by_id)
        for what, rows in (
            ("a delivery beyond its source", found.duplicate_rows),
            ("a delivery without a source before it", found.orphan_rows),
        ):
            if begin and rows is found.orphan_rows:
                continue  # retention removed what lies before the log's beginning
            for row in rows.tolist():
                self._doubled(what, int(scanned["log_offset"][row]), "a timer that waited")
        return at_mark, at_end

    def _name_doubled(self, by_id: LogFold) -> None:
        for log_offset, timer_id, is_delivery in by_id.doubled:
            what = "a delivery beyond its source" if is_delivery else "a second delete record"
            self._doubled(what, log_offset, f"timer id {timer_id} still waiting there")
        for log_offset, timer_id in by_id.orphans:
            what = "a delivery without a source before it"
            self._doubled(what, log_offset, f"a source of timer id {timer_id}")

    def _doubled(self, what: str, log_offset: int, wanted: str) -> None:
        self._findings.add(what, place(self._store.log.segments, log_offset), wanted, "none")

    def _compare(self, expected: _Expected, taken: _Taken, *, only_known: bool, floor: int) -> None:
        """States and counts in memory are what the log says at the same end."""
        where = f"memory at log end {taken.log_end}"
        for timer_id, one, other in id_states.differing(
            expected.states, taken.states, only_known=only_known, floor=floor
        ):
            self._findings.add(f"state of timer id {timer_id}", where, NAMES[one], NAMES[other])
        counted = sum(len(ids) for ids in id_states.waiting(taken.states))
        if counted != taken.waiting:
            self._findings.add("how many wait", where, counted, taken.waiting)
        if expected.pending is None:
            return
        for name, log_says, memory_says in (
            ("pending", expected.pending, taken.pending),
            ("waiting on levels", expected.level_pending, taken.level_pending),
        ):
            for index in log_says.keys() | memory_says.keys():
                wanted, got = log_says.get(index, 0), memory_says.get(index, 0)
                if wanted != got:
                    route = self._store.routes.by_index[index]
                    what = f"{name} of topic {route.topic} queue {route.queue_id}"
                    self._findings.add(what, where, wanted, got)


def _of_walk(by_id: LogFold) -> _Expected:
    return _Expected(
        by_id.states.copy(), dict(by_id.pending), by_id.levels.copy(), dict(by_id.levels.pending)
    )


def _with_inherited(
    expected: _Expected, inherited: list[tuple[int, int]], on_levels: list[int]
) -> _Expected:
    """Add what waited there though only records behind it tell so: its source is gone."""
    states = id_states.IdStates()
    ids = np.array([timer_id for timer_id, _ in inherited], np.int64)
    states.put(ids, np.full(len(ids), lib.TS_WAITING, np.uint8))
    added, pending = states.copy(), expected.pending
    size = max(len(added), len(expected.states))
    packed = np.zeros(size, np.uint8)
    packed[: len(added)] = added
    packed[: len(expected.states)] |= expected.states
    if pending is not None:
        for _, route in inherited:
            pending[route] = pending.get(route, 0) + 1
    for route in on_levels:
        expected.level_pending[route] = expected.level_pending.get(route, 0) + 1
    return expected._replace(states=packed, pending=pending)


def _expected(found: Fold, scanned: Scan, by_id: LogFold) -> _Expected:
    pending, level_pending = (
        _counted(scanned["route"][rows]) for rows in (found.rows_pending, found.level_rows_pending)
    )
    levels = by_id.levels.of_fold(found)
    return _Expected(id_states.of_fold(found), pending, levels, level_pending)


def _counted(routes: npt.NDArray[np.int32]) -> dict[int, int]:
    indexes, counts = np.unique(routes, return_counts=True)
    return dict(zip(indexes.tolist(), counts.tolist(), strict=True))
