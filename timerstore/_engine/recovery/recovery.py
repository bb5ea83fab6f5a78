"""Recover a store: go on from its last checkpoint, or rebuild everything from the commit log.

Four cases, told apart by the watermark, `abort` and the wheel's length:

    nothing there                                 a new store
    closed by us, not opened by others since      continue from the watermark
    ours, not closed                              recover from the watermark
    a broker's, or side files do not fit          scan the whole log, fold it, rebuild the rest

Invariants:
    1. `abort` and the wheel's extra length are durable before anything is changed.
See also: docs/decisions/0001-crash-safety.md, log_checks.py.
"""

import secrets
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import AppendLock, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.dedupe import Ids
from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.store_paths import (
    BACKUP_JSON,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
)
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.levels import pending_counts as level_pending
from timerstore._engine.log.fold import Fold, fold
from timerstore._engine.log.fold_ownership import has_foreign_records
from timerstore._engine.log.log_recovery import (
    first_offsets,
    refuse_damage_inside,
    restore_staged,
    scan,
    settle_end,
)
from timerstore._engine.log.scanned_records import Scan, delivered_level_places
from timerstore._engine.log.staging import Staged, read_staged
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Routes
from timerstore._engine.recovery.log_checks import LogChecks
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer import chain_compaction, timer_recovery
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import Wheel, has_length, is_left_open
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, CorruptError


def _refuse_backup(disk: Disk, tree: Tree) -> None:
    """A backup has a log, too; what is put there the next backup would write over."""
    path = tree.root / BACKUP_JSON
    if not disk.exists(path):
        return
    problem = f"{tree.root}: wanted a store's folder, got a backup; restore it into another folder"
    if disk.exists(tree.timer_wheel):  # as versions before let it be
        problem += f"; to go on with it as a store, which it was opened as, remove {path}"
    raise ConfigError(problem)


class Recovered(NamedTuple):
    """What recovery found out, and the parts of the store that it restored."""

    config: StoreConfig
    segments: Segments
    wheel: Wheel
    timer_log: TimerLog
    far: FarWheel
    routes: Routes
    states: TimerStates
    open_slot: OpenSlot
    levels: LevelCursors
    ids: Ids
    append_lock: Any
    log_end: int
    dispatch_from: int
    start: timer_recovery.Start
    store_id: int
    mark: Watermark | None
    imported: Fold | None


def recover(
    disk: Disk, directory: Directory, config: StoreConfig | None, clock: Clock
) -> Recovered:
    """Inspect a directory that this process has locked, and recover it."""
    return Recovery(disk, directory, config, clock).run()


class Recovery(Owner):
    """One recovery, step by step."""

    def __init__(
        self, disk: Disk, directory: Directory, config: StoreConfig | None, clock: Clock
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._tree: Tree = directory.tree
        _refuse_backup(disk, self._tree)
        for folder in self._tree.folders:
            disk.refuse_link(folder)
        raw = disk.read_small(self._tree.watermark)
        self._raw_mark = raw or b""
        self._mark = watermark.read(self._raw_mark)
        self._config = adopt_geometry(disk, self._tree, config, self._mark)
        self._clock = clock

    def run(self) -> Recovered:
        """Mark the directory as open, restore its parts, and return them."""
        config, tree, disk = self._config, self._tree, self._disk
        was_open = self._directory.was_open
        wheel_is_ours = is_left_open(disk, tree.timer_wheel, config.wheel_slot_count)
        disk.make_directory(tree.side)
        self._directory.mark_open()
        if was_open:  # what is read now may not be durable yet: who wrote it died
            if disk.exists(tree.config):
                disk.sync_directory(tree.config)
            disk.sync_directory(tree.side)
            self._rewrite_mark()
        reach("recover_marked_open")
        self._segments = Segments(
            disk, tree.commit_log, config.commit_log_segment_bytes, config.reserve_bytes
        )
        self._segments.load(needed=0 if self._mark is None else self._mark.log_end)
        self._drop_misfit_wheel()
        self._wheel = Wheel(
            disk,
            tree.timer_wheel,
            tree.wheel_checks,
            config.wheel_slot_count,
            config.precision_ms,
        )
        reach("recover_wheel_lengthened")
        self._timer_log = TimerLog(
            disk, tree.timer_log, config.timer_log_segment_bytes, config.reserve_bytes
        )
        self._far = FarWheel(disk, tree, config.timer_log_segment_bytes, config.reserve_bytes)
        self._routes = Routes(disk, tree, config.queue_segment_bytes)
        self._routes.load()
        self._states = TimerStates()
        self._open_slot = OpenSlot(config.precision_ms, self._routes.are_mixed)
        self._levels = LevelCursors()
        self._append_lock = AppendLock()
        self._ids = Ids(
            disk,
            tree,
            self._clock,
            config.dedupe_window_ms,
            config.dedupe_ids_max,
            self._append_lock,
        )
        self._checks = LogChecks(disk, self._directory, self._segments, config.precision_ms)
        return self._recover(was_open=was_open, wheel_is_ours=wheel_is_ours)

    def _recovered(
        self,
        *,
        log_end: int,
        dispatch_from: int,
        start: timer_recovery.Start,
        store_id: int,
        mark: Watermark | None,
        imported: Fold | None,
    ) -> Recovered:
        return Recovered(
            config=self._config,
            segments=self._segments,
            wheel=self._wheel,
            timer_log=self._timer_log,
            far=self._far,
            routes=self._routes,
            states=self._states,
            open_slot=self._open_slot,
            levels=self._levels,
            ids=self._ids,
            append_lock=self._append_lock,
            log_end=log_end,
            dispatch_from=dispatch_from,
            start=start,
            store_id=store_id,
            mark=mark,
            imported=imported,
        )

    # --- recovery ---

    def _recover(self, *, was_open: bool, wheel_is_ours: bool) -> Recovered:
        mark = self._mark
        is_ours = mark is not None and was_open and wheel_is_ours
        if mark is not None:
            is_unclean = not mark.is_clean or is_ours
            strangers = was_open and not wheel_is_ours
            found = None if strangers else self._from_watermark(mark, is_unclean=is_unclean)
            if found is not None:
                return found
            is_ours = is_ours and not mark.is_clean  # else a broker wrote what lies behind it
        return self._anew(was_open=was_open, is_ours=is_ours)

    def _rewrite_mark(self) -> None:
        """Write the watermark again and sync it. After a sync that failed the page cache can show
        one that the disk does not have, and a sync alone would not write it.
        """
        if self._mark is not None:
            file = self._disk.open(self._tree.watermark)
            file.write(self._raw_mark, 0)
            file.sync()

    def _drop_misfit_wheel(self) -> None:
        """A wheel of another length than the watermark knows, cut or put there by somebody, is
        damaged: it goes, and is built anew as one that is lost. Without a watermark its length is
        all that is known of it.
        """
        path = self._tree.timer_wheel
        if self._mark is None or self._disk.file_bytes(path) is None:
            return
        if not has_length(self._disk, path, self._config.wheel_slot_count):
            self._disk.unlink(path)
            self._disk.sync_directory(self._tree.root)

    def _serve_route(self, view: Any) -> None:
        route_needed(self._segments, view, self._routes, self._clock.now_ms)

    def _scan(self, begin: int) -> Any:
        self._segments.reserve_edges(begin)
        return scan(
            self._segments,
            lambda: self._routes.native,
            self._serve_route,
            self._config.precision_ms,
            begin,
        )

    def _scan_with_staged(self, begin: int, staged: Staged) -> Any:
        """Scan from `begin`, then go on with staged bytes where they continue the log."""
        scanned, end, fault = self._scan(begin)
        for base, data in staged.pieces:
            if restore_staged(self._segments, base, data, end):
                more, end, fault = self._scan(end)
                scanned = np.concatenate([scanned, more])
        reach("recover_staged_restored")
        return scanned, end, fault

    def _from_watermark(self, mark: Watermark, *, is_unclean: bool) -> Recovered | None:
        """Go on from a watermark; None where the side files do not fit it, or a broker was here."""
        tree, segments = self._tree, self._segments
        if mark.is_bootstrap or self._disk.exists(tree.timer_damaged):
            return None
        staged = read_staged(self._disk, tree.staging) if is_unclean else Staged()
        segments.retire(mark.log_begin)  # unlinked once this opening has a checkpoint of its own
        if mark.log_end > segments.extent or segments.begin > mark.log_begin:
            return None
        scanned, end, fault = self._scan_with_staged(mark.log_end, staged)
        if not mark.is_clean:
            self._checks.refuse_wild_place(scanned)
        # Behind a clean one also where an opening behind a broker was cut off.
        if has_foreign_records(scanned, mark.store_id, is_clean=bool(mark.is_clean)):
            return None
        self._states.open_file(self._disk, tree.state, anew=False)
        counts = counts_json.read_counts(
            self._disk.read_small(tree.counts), mark.log_end, mark.sequence
        )
        if (
            counts is None
            or not self._states.read(
                mark.state_chunk_count, mark.state_digest, mark.log_end, counts.past
            )
            or not self._is_whole(mark, counts)
        ):
            self._states = TimerStates()
            return None
        if is_unclean:
            # Past the known durable end nothing is damage: a power cut keeps pages in any order.
            self._checks.refuse_damage_below(staged.durable_end, tree.staging, end, fault)
            self._checks.report_cut(end, fault)
            settle_end(segments, mark.log_end, end)
            reach("recover_log_settled")
        if is_unclean:
            for route in self._routes.by_index:
                route.queue.cut()
                route.queue.mark_dirty()
        reach("recover_queues_cut")
        timer_recovery.set_pending(self._routes, counts.pending, self._clock.now_ms)
        timer_recovery.fold_forward(self._states, self._routes, scanned, mark.store_id)
        if not self._timer_from(mark, scanned, is_unclean=is_unclean):
            return None
        self._far.fit_window(self._config.roll_slots)
        if self._ids.load(counts.ids):
            self._ids.scan(segments, mark.store_id, mark.log_end, end)
        else:
            self._build_ids(mark.store_id, end)
        self._levels.add(counts.levels)
        level_pending.set_at(self._routes, counts.level_pending, self._clock.now_ms)
        level_pending.fold_forward(self._routes, self._levels, scanned, mark.store_id)
        self._levels.done(delivered_level_places(scanned, mark.store_id))
        timer_recovery.start_at(self._wheel, self._open_slot, mark.read_slot)
        return self._recovered(
            log_end=end,
            dispatch_from=mark.log_end,
            start=timer_recovery.Start(mark.timer_queue_offset, mark.read_slot),
            store_id=mark.store_id,
            mark=mark,
            imported=None,
        )

    def _is_whole(self, mark: Watermark, counts: counts_json.Counts) -> bool:
        """Whether queues and timer log reach as far as they did at the watermark."""
        for route in self._routes.by_index:
            if not route.queue.is_whole(self._segments.begin):
                return False
            route.queue.recover(mark.log_end, self._segments.begin)
        for topic, queues in counts.ends.items():
            for queue_id, end in queues.items():
                route_there = self._routes.get(topic, queue_id)
                if route_there is None or route_there.queue.count != end:
                    return False
        self._timer_log.load(mark.timer_log_end)
        self._timer_log.segments.remove_below(mark.timer_log_begin)
        return self._timer_log.is_whole(mark.timer_log_begin)

    def _timer_from(self, mark: Watermark, scanned: Scan, *, is_unclean: bool) -> bool:
        """Have wheel and timer log as at the watermark; False where the wheel was damaged."""
        if not self._wheel.checks.fits(mark.wheel_writes):
            return self._distrust_timer()
        if is_unclean:
            try:
                if mark.is_clean:
                    self._settle_chains(mark)
                timer_recovery.cut_back(self._wheel, self._timer_log, mark)
            except CorruptError:  # a unit that is torn, or damaged behind the watermark
                return self._distrust_timer()
        else:
            self._timer_log.load(mark.timer_log_end)
        if self._far.load(mark.far_number) and self._leads_to_all(mark, scanned):
            return True
        return self._distrust_timer()

    def _settle_chains(self, mark: Watermark) -> None:
        """Killed while closing, between the log's chains and the wheel, or before what those lead
        past was buried: have all agree; CorruptError where a unit that was written anew is torn.
        """
        self._timer_log.load(mark.timer_log_end)
        self._timer_log.check()
        timer_log = self._timer_log.segments  # closing may have died before its sync, or by it
        timer_log.rewrite(mark.timer_log_begin, mark.timer_log_end)
        timer_log.sync()
        chain_compaction.settle(self._wheel, self._timer_log, mark.read_slot, mark.timer_log_end)

    def _distrust_timer(self) -> bool:
        """Go back to where all is built anew from the log; False."""
        self._states = TimerStates()
        for route in self._routes.by_index:
            route.native.pending = route.native.level_pending = 0
        return False

    def _leads_to_all(self, mark: Watermark, scanned: Scan) -> bool:
        """Whether the wheel has a unit for each message that waits, but for those that have still
        to be linked: a wheel of an older version, which has no checks, may have fewer where it was
        damaged. More do no harm: their states say which of them wait.
        """
        kinds = (lib.TS_KIND_TIMER, lib.TS_KIND_DELETE, lib.TS_KIND_UNUSABLE)
        put = timer_recovery.timer_route(self._routes).queue.count + int(
            np.isin(scanned["kind"], kinds).sum()
        )
        linked = int(self._states.native.waiting) - (put - mark.timer_queue_offset)
        try:
            linked -= self._far.count_waiting(self._states.native, self._segments.begin)
            if self._wheel.units_from(mark.read_slot, mark.timer_log_end) >= linked:
                return True
            # Counts are cut back roughly, and a delete takes one off its slot, wherever what it
            # deletes waits; the chains are exact.
            chain_compaction.recount(
                self._wheel, self._timer_log, mark.read_slot, mark.timer_log_end
            )
            return self._wheel.units_from(mark.read_slot, mark.timer_log_end) >= linked
        except CorruptError:
            return False

    def _anew(self, *, was_open: bool, is_ours: bool) -> Recovered:
        """Trust the commit log alone: fold it whole, build everything else from it."""
        tree, segments, disk = self._tree, self._segments, self._disk
        now_slot = self._clock.now_ms // self._config.precision_ms
        ends, before = self._known_ends(), self._mark
        if self._mark is not None:  # what a power cut brought back has lost its evidence
            segments.remove_below(self._mark.log_begin)
        begin = segments.begin
        # A store that was closed has written out all that was staged.
        staged = read_staged(disk, tree.staging) if was_open else Staged()
        scanned, end, fault = self._scan_with_staged(begin, staged)
        durable = self._durable_end(staged, end, fault)
        if not is_ours:
            refuse_damage_inside(segments, end, fault)
        if self._mark is not None:
            self._checks.refuse_lost_front(self._mark, end, is_ours=is_ours)
        if not was_open:
            self._checks.refuse_shorter_log(end, self._routes)
        self._checks.refuse_wild_place(scanned)
        segments.mark_dirty()
        if was_open:
            self._checks.report_cut(end, fault)
        settle_end(segments, max(begin, durable) if was_open else end, end)
        if self._mark is not None:
            self._forget_mark()  # not before the cut: without it a torn tail may look like damage
        if disk.exists(tree.timer_damaged):  # without a watermark nothing of the timer is trusted
            disk.unlink(tree.timer_damaged)
            disk.sync_directory(tree.side)
        reach("recover_rebuild_begun")
        found = fold(scanned, known_id=before.store_id if before else None)
        store_id = found.store_id or (before.store_id if before else 0) or secrets.randbits(32) | 1
        if before is not None and before.timer_id_end:  # no id is given a second time
            timers = ends.setdefault(WHEEL_TIMER_TOPIC, {})
            timers[0] = max(timers.get(0, 0), before.timer_id_end)
        self._states.open_file(disk, tree.state, anew=True)
        timer_recovery.fold_from_empty(self._states, self._routes, scanned, found)
        self._levels.clear()
        self._levels.done(found.level_places_done)
        level_pending.fold_from_empty(self._routes, scanned["route"][found.level_rows_pending])
        self._build_ids(store_id, end)
        self._restart_queues(scanned, begin, end, ends)
        reach("recover_rebuild_queues_restarted")
        self._wheel.clear_all()
        self._timer_log.segments.load(is_derived=True)
        self._timer_log.remove_all()
        self._far.start_over_empty()
        self._far.fit_window(self._config.roll_slots)
        timer_recovery.start_at(self._wheel, self._open_slot, now_slot)
        queue = timer_recovery.timer_route(self._routes).queue
        return self._recovered(
            log_end=end,
            dispatch_from=begin,
            start=timer_recovery.Start(queue.min_offset, now_slot),
            store_id=store_id,
            mark=None,
            imported=found if len(scanned) else None,
        )

    def _build_ids(self, store_id: int, end: int) -> None:
        marks = counts_json.ids_marks(self._disk.read_small(self._tree.counts))
        self._ids.build(marks, self._segments, store_id, end)

    def _forget_mark(self) -> None:
        """From here on only the log counts; durable."""
        self._disk.unlink(self._tree.watermark)
        self._disk.sync_directory(self._tree.side)
        self._mark = None

    def _durable_end(self, staged: Staged, end: int, fault: int) -> int:
        """Return up to where the log is known to be durable, which it must reach."""
        if self._mark is not None:
            durable, source = self._mark.log_end, self._tree.watermark
        else:
            durable, source = self._counted_end(), self._tree.counts
        self._checks.refuse_damage_below(durable, source, end, fault)
        self._checks.refuse_damage_below(staged.durable_end, self._tree.staging, end, fault)
        return max(durable, staged.durable_end)

    def _counted_end(self) -> int:
        """How far the log was durable by the numbers that stand beside a watermark that is lost."""
        return counts_json.log_end(self._disk.read_small(self._tree.counts))

    def _known_ends(self) -> counts_json.Pending:
        """Where each queue ended at the watermark, as far as that is still known."""
        if self._mark is None:
            return {}
        raw = self._disk.read_small(self._tree.counts)
        counts = counts_json.read_counts(raw, self._mark.log_end, self._mark.sequence)
        return {} if counts is None else counts.ends

    def _restart_queues(
        self, scanned: Scan, begin: int, end: int, ends: counts_json.Pending
    ) -> None:
        """Every queue begins anew at its first record; those without one keep what they have, or
        where retention removed all their records, go on where they ended. Where that is not known
        either, the timer topic's begins at 0: then no copy and no watermark is left that would
        vouch for the store's id, and the ids are those of a new one.
        """
        for topic, queues in ends.items():
            for queue_id in queues:
                self._routes.make(topic, queue_id, self._clock.now_ms)
        found = first_offsets(scanned)
        first = dict(found.by_route)
        for queue_id, offset in found.by_level.items():
            level = self._routes.get(SCHEDULE_TOPIC, queue_id)
            assert level is not None, "scanning made it"
            first[int(level.native.index)] = offset
        if found.timer is not None:
            first[int(timer_recovery.timer_route(self._routes).native.index)] = found.timer
        for route in self._routes.by_index:
            at = first.get(int(route.native.index))
            known = ends.get(route.topic, {}).get(route.queue_id, 0)
            if at is not None:
                route.queue.restart(at)
            elif route.queue.has_incompatible_files:
                route.queue.restart(known)
            else:
                route.queue.recover(end, begin)
                route.queue.cut()
                if route.queue.count < known:
                    route.queue.restart(known)
