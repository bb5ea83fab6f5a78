"""Recover a store: continue from its last checkpoint, or rebuild everything from the commit log.

There are four cases. The watermark, `abort` and the length of the wheel file distinguish them:

    empty directory                                       create a store
    closed by this engine, not opened by a broker since   continue from the watermark
    used by this engine, not closed                       recover from the watermark
    used by a broker, or side files do not fit            scan the whole log and rebuild the rest

Invariants:
    1. `abort` and the wheel's extra length are durable before anything else is changed.
    2. A file of a newer format raises before that, so nothing is changed.
See also: docs/decisions/0001-crash-safety.md, log_checks.py.
"""

import secrets

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import AppendLock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import counts_json, recurring_json, watermark
from timerstore._engine.format.store_paths import (
    WHEEL_TIMER_TOPIC,
    Tree,
)
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.fold import Fold, fold, has_foreign_records
from timerstore._engine.log.log_recovery import (
    refuse_damage_inside,
    settle_end,
)
from timerstore._engine.log.scanned_records import IN_TIMER_TOPIC, Scan, delivered_level_places
from timerstore._engine.log.staging import StagedBytes, check_version, read_staged
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.message_ids import Ids
from timerstore._engine.queues.routes import Routes
from timerstore._engine.recovery.log_checks import LogChecks, refuse_backup
from timerstore._engine.recovery.queue_recovery import (
    recover_queues,
    restart_queues,
)
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer import chain_compaction, level_delivery, timer_recovery
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import Wheel, has_length, is_left_open
from timerstore.errors import CorruptError
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig


class Recovery(NotCopyable):
    """One recovery of one store, in a directory that this process has locked.

    After `run`, the public attributes are the restored parts of the store, and

    mark                the watermark that recovery continued from; None after a rebuild
    log_end             end of the log
    dispatch_from       log offset from which records are dispatched again
    timer_queue_offset  queue offset of the next record of the timer topic to be linked
    imported            fold of the whole log; None if the store is empty or was not rebuilt
    """

    def __init__(
        self, disk: Disk, directory: Directory, config: StoreConfig | None, clock: Clock
    ) -> None:
        """Read the side files and check their versions; nothing is changed.

        Raises:
            ConfigError: the directory is a backup, or the configuration does not fit its files.
        """
        self._disk = disk
        self._directory = directory
        self._tree: Tree = directory.tree
        refuse_backup(disk, self._tree)
        for folder in self._tree.folders:
            disk.check_no_link(folder)
        raw = disk.read_small(self._tree.watermark)
        self._raw_mark = raw or b""
        self.mark = watermark.read(self._raw_mark, self._tree.watermark)
        if directory.was_open or (self.mark is not None and not self.mark.is_clean):
            check_version(disk, self._tree.staging)
        path = self._tree.recurring_json
        self.definitions = recurring_json.read(disk.read_small(path), path)
        self.config = adopt_geometry(disk, self._tree, config, self.mark)
        self._clock = clock
        self.imported: Fold | None = None

    def run(self) -> None:
        """Mark the directory as open, and restore the parts of the store.

        Raises:
            CorruptError: the commit log is damaged.
        """
        config, tree, disk = self.config, self._tree, self._disk
        was_open = self._directory.was_open
        wheel_is_ours = is_left_open(disk, tree.timer_wheel, config.wheel_slot_count)
        disk.make_directory(tree.side)
        self._directory.mark_open()
        if was_open:  # the process that wrote these files died, so they may not be durable
            if disk.exists(tree.config):
                disk.sync_directory(tree.config)
            disk.sync_directory(tree.side)
            self._rewrite_mark()
        reach("recover_marked_open")
        self.segments = Segments(
            disk,
            tree.commit_log,
            config.commit_log_segment_bytes,
            config.reserve_bytes,
            keeps_reserved=True,
        )
        self.segments.load(needed=0 if self.mark is None else self.mark.log_end)
        self._drop_incompatible_wheel()
        self.wheel = Wheel(
            disk,
            tree.timer_wheel,
            tree.wheel_checks,
            config.wheel_slot_count,
            config.precision_ms,
        )
        reach("recover_wheel_lengthened")
        self.timer_log = TimerLog(
            disk, tree.timer_log, config.timer_log_segment_bytes, config.reserve_bytes
        )
        self.far = FarWheel(disk, tree, config.timer_log_segment_bytes, config.reserve_bytes)
        self.routes = Routes(disk, tree, config.queue_segment_bytes)
        self.routes.load()
        self.states = TimerStates()
        self.open_slot = OpenSlot(config.precision_ms, self.routes.are_mixed)
        self.levels = LevelCursors()
        self.append_lock = AppendLock()
        self.ids = Ids(
            disk,
            tree,
            self._clock,
            config.dedupe_window_ms,
            config.dedupe_ids_max,
            self.append_lock,
        )
        self._checks = LogChecks(
            disk, self._directory, self.segments, self.routes, self._clock, config.precision_ms
        )
        self._recover(was_open=was_open, wheel_is_ours=wheel_is_ours)

    # --- recovery ---

    def _recover(self, *, was_open: bool, wheel_is_ours: bool) -> None:
        mark = self.mark
        is_ours = mark is not None and was_open and wheel_is_ours
        if mark is not None:
            is_unclean = not mark.is_clean or is_ours
            strangers = was_open and not wheel_is_ours
            if not strangers and self._from_watermark(mark, is_unclean=is_unclean):
                return
            is_ours = is_ours and not mark.is_clean  # a broker wrote records after a clean mark
        self._rebuild(was_open=was_open, is_ours=is_ours)

    def _rewrite_mark(self) -> None:
        """Write the watermark again and sync it.

        After a failed sync the page cache can show a watermark that the disk does not have, and a
        sync alone would not write it.
        """
        if self.mark is not None:
            file = self._disk.open(self._tree.watermark)
            file.write(self._raw_mark, 0)
            file.sync()

    def _drop_incompatible_wheel(self) -> None:
        """Remove the wheel if its length differs from the watermark's, so that it is rebuilt.

        It was truncated or replaced. Without a watermark, the length cannot be checked.
        """
        path = self._tree.timer_wheel
        if self.mark is None or self._disk.file_bytes(path) is None:
            return
        if not has_length(self._disk, path, self.config.wheel_slot_count):
            self._disk.remove(path)

    def _from_watermark(self, mark: Watermark, *, is_unclean: bool) -> bool:
        """Continue from a watermark, unless side files do not fit it or a broker wrote since."""
        tree, segments = self._tree, self.segments
        if mark.is_bootstrap or self._disk.exists(tree.timer_damaged):
            return False
        staged = read_staged(self._disk, tree.staging) if is_unclean else StagedBytes()
        segments.retire(mark.log_begin)  # unlinked after the first checkpoint of this opening
        if mark.log_end > segments.extent or segments.begin > mark.log_begin:
            return False
        scanned, end, fault = self._checks.scan_with_staged(mark.log_end, staged)
        if not mark.is_clean:
            self._checks.refuse_impossible_offset(scanned)
        # After a clean one this includes an interrupted opening after a broker.
        if has_foreign_records(scanned, mark.store_id, is_clean=bool(mark.is_clean)):
            return False
        self.states.open_file(self._disk, tree.state, is_new=False)
        counts = counts_json.read_counts(
            self._disk.read_small(tree.counts), mark.log_end, mark.sequence
        )
        if (
            counts is None
            or not self.states.read(
                mark.state_chunk_count, mark.state_digest, mark.log_end, counts.past
            )
            or not self._is_whole(mark, counts)
        ):
            self.states = TimerStates()
            return False
        if is_unclean:
            # Past the known durable end a power cut may leave any mix of pages; it is not damage.
            self._checks.refuse_damage_below(staged.durable_end, tree.staging, end, fault)
            self._checks.report_cut(end, fault)
            settle_end(segments, mark.log_end, end)
            reach("recover_log_settled")
            for route in self.routes.by_index:
                route.queue.cut()
                route.queue.mark_dirty()
        reach("recover_queues_cut")
        timer_recovery.set_pending(self.routes, counts, self._clock.now_ms)
        timer_recovery.fold_forward(self.states, self.routes, scanned, mark.store_id)
        if not self._restore_timer(mark, scanned, is_unclean=is_unclean):
            self.states = TimerStates()
            for route in self.routes.by_index:
                route.native.pending = route.native.level_pending = 0
            return False
        self.far.fit_window(self.config.roll_slots)
        if self.ids.load(counts.ids):
            self.ids.scan(segments, mark.store_id, mark.log_end, end)
        else:
            self._build_ids(mark.store_id, end)
        self.levels.add(counts.levels)
        level_delivery.fold_forward(self.routes, self.levels, scanned, mark.store_id)
        self.levels.done(delivered_level_places(scanned, mark.store_id))
        timer_recovery.start_at(self.wheel, self.open_slot, mark.replay_slot)
        self.log_end, self.dispatch_from = end, mark.log_end
        self.timer_queue_offset, self.store_id = mark.timer_queue_offset, mark.store_id
        return True

    def _is_whole(self, mark: Watermark, counts: counts_json.Counts) -> bool:
        """Return whether queues and timer log are as long as they were at the watermark."""
        if not recover_queues(self.routes, counts.ends, mark.log_end, self.segments.begin):
            return False
        self.timer_log.load(mark.timer_log_end)
        self.timer_log.segments.remove_below(mark.timer_log_begin)
        return self.timer_log.is_whole(mark.timer_log_begin)

    def _restore_timer(self, mark: Watermark, scanned: Scan, *, is_unclean: bool) -> bool:
        """Restore wheel and timer log as of a watermark; return False if they are damaged.

        scanned: the records after the watermark; they are folded into the states already.
        """
        if not self.wheel.checks.fits(mark.wheel_writes):
            return False
        if is_unclean:
            try:
                if mark.is_clean:
                    self._settle_chains(mark)
                timer_recovery.cut_back(self.wheel, self.timer_log, mark)
            except CorruptError:  # a unit is torn, or damaged after the watermark
                return False
        else:
            self.timer_log.load(mark.timer_log_end)
        return self.far.load(mark.far_number) and self._has_all_pending(mark, scanned)

    def _settle_chains(self, mark: Watermark) -> None:
        """Complete an interrupted close, so that wheel and timer log agree.

        The process was killed between writing the compacted chains and the wheel, or before the
        skipped units were overwritten. Raises CorruptError if a rewritten unit is torn.
        """
        self.timer_log.load(mark.timer_log_end)
        self.timer_log.check()
        timer_log = self.timer_log.segments  # its last sync may have failed or not run
        timer_log.rewrite(mark.timer_log_begin, mark.timer_log_end)
        timer_log.sync()
        chain_compaction.settle(self.wheel, self.timer_log, mark.replay_slot, mark.timer_log_end)

    def _has_all_pending(self, mark: Watermark, scanned: Scan) -> bool:
        """Return whether the wheel has a unit for each pending message that was linked.

        A wheel of an older version has no checksums. If it was damaged, it may have fewer units.
        More units do no harm, because the states say which messages are pending.
        """
        added = int(np.isin(scanned["kind"], IN_TIMER_TOPIC).sum())
        put = timer_recovery.timer_route(self.routes).queue.count + added
        linked = int(self.states.native.pending) - (put - mark.timer_queue_offset)
        try:
            linked -= self.far.count_pending(self.states.native, self.segments.begin)
            if self.wheel.units_from(mark.replay_slot, mark.timer_log_end) >= linked:
                return True
            # The slots' counts are approximate after a cut back, and a delete record lowers the
            # count of its own slot wherever its message is linked. The chains are exact.
            chain_compaction.recount(
                self.wheel, self.timer_log, mark.replay_slot, mark.timer_log_end
            )
            return self.wheel.units_from(mark.replay_slot, mark.timer_log_end) >= linked
        except CorruptError:
            return False

    def _rebuild(self, *, was_open: bool, is_ours: bool) -> None:
        """Fold the whole commit log, and rebuild everything else from it."""
        tree, segments, disk = self._tree, self.segments, self._disk
        now_slot = self._clock.now_ms // self.config.precision_ms
        known_counts, before = self._known_counts(), self.mark
        if self.mark is not None:
            # Files that a power cut restored: deliveries of their messages may be gone already.
            segments.remove_below(self.mark.log_begin)
        begin = segments.begin
        # A store that was closed has no staged records.
        staged = read_staged(disk, tree.staging) if was_open else StagedBytes()
        scanned, end, fault = self._checks.scan_with_staged(begin, staged)
        durable = self._durable_end(staged, end, fault)
        if not is_ours:
            refuse_damage_inside(segments, end, fault)
        if self.mark is not None:
            self._checks.refuse_lost_front(self.mark, end, is_ours=is_ours)
        if not was_open:
            self._checks.refuse_shorter_log(end)
        self._checks.refuse_impossible_offset(scanned)
        segments.mark_dirty()
        if was_open:
            self._checks.report_cut(end, fault)
        settle_end(segments, max(begin, durable) if was_open else end, end)
        if self.mark is not None:
            # After the cut: without the watermark a torn tail may look like damage. From now on any
            # opening rebuilds from the log.
            disk.remove(tree.watermark)
            self.mark = None
        if disk.exists(tree.timer_damaged):  # not needed: the timer is rebuilt in any case
            disk.remove(tree.timer_damaged)
        reach("recover_rebuild_begun")
        found = fold(scanned, known_id=before.store_id if before else None)
        store_id = found.store_id or (before.store_id if before else 0) or secrets.randbits(32) | 1
        if before is not None and before.timer_id_end:  # no timer id may be used twice
            timers = known_counts.setdefault(WHEEL_TIMER_TOPIC, {})
            timers[0] = max(timers.get(0, 0), before.timer_id_end)
        self.states.open_file(disk, tree.state, is_new=True)
        timer_recovery.fold_from_empty(self.states, self.routes, scanned, found)
        self.levels.done(found.level_places_done)
        self._build_ids(store_id, end)
        restart_queues(self.routes, scanned, begin, end, known_counts, self._clock.now_ms)
        reach("recover_rebuild_queues_restarted")
        self.wheel.clear_all()
        self.timer_log.segments.load(is_derived=True)
        self.timer_log.remove_all()
        self.far.start_over_empty()
        self.far.fit_window(self.config.roll_slots)
        timer_recovery.start_at(self.wheel, self.open_slot, now_slot)
        queue = timer_recovery.timer_route(self.routes).queue
        self.log_end, self.dispatch_from = end, begin
        self.timer_queue_offset, self.store_id = queue.min_offset, store_id
        self.imported = found if len(scanned) else None

    def _build_ids(self, store_id: int, end: int) -> None:
        marks = counts_json.ids_marks(self._disk.read_small(self._tree.counts))
        self.ids.build(marks, self.segments, store_id, end)

    def _durable_end(self, staged: StagedBytes, end: int, fault: int) -> int:
        """Return the known durable end of the log; raise CorruptError if the log ends before it."""
        if self.mark is not None:
            durable, source = self.mark.log_end, self._tree.watermark
        else:
            # The counts file names the durable end too, for when the watermark is lost.
            durable = counts_json.log_end(self._disk.read_small(self._tree.counts))
            source = self._tree.counts
        self._checks.refuse_damage_below(durable, source, end, fault)
        self._checks.refuse_damage_below(staged.durable_end, self._tree.staging, end, fault)
        return max(durable, staged.durable_end)

    def _known_counts(self) -> counts_json.Pending:
        """Return the count of each queue at the watermark, as far as it is still known."""
        if self.mark is None:
            return {}
        raw = self._disk.read_small(self._tree.counts)
        counts = counts_json.read_counts(raw, self.mark.log_end, self.mark.sequence)
        return {} if counts is None else counts.ends
