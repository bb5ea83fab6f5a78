"""Opening a directory: geometry, lock, recovery, and the rooms tied together; and closing it.

Four ways in, told apart by the watermark, `abort` and the wheel's length:

    nothing there                               a new store
    closed by us, nobody was here since         go on from the watermark
    ours, not closed                            recover from the watermark (exactly-once.md 6)
    a broker's, or side files do not fit        scan the whole log, fold it, build the rest anew

Holds:    `abort` and the wheel's extra length are durable before anything is changed; they go last.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, SupportsIndex

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import Owner, refuse_copy
from timerstore._engine.base.service import Service
from timerstore._engine.change.cancel import Canceller
from timerstore._engine.change.cancel_many import ManyCanceller
from timerstore._engine.change.reschedule import Rescheduler
from timerstore._engine.dedupe import Ids
from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.lease import group_of
from timerstore._engine.format.store_paths import (
    BACKUP_JSON,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
)
from timerstore._engine.format.unique_key import make_prefix
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.levels import pending_counts as level_pending
from timerstore._engine.levels.broker_offsets import write_for_brokers as write_level_offsets
from timerstore._engine.levels.deliver import ScheduleDeliver
from timerstore._engine.levels.level_pending import LevelPending
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.fold import Fold, Scan, fold, level_places, strangers_wrote, wild_places
from timerstore._engine.log.log_recovery import (
    first_offsets,
    refuse_damage_inside,
    restore_staged,
    scan,
    scan_batches,
    settle_end,
)
from timerstore._engine.log.staging import Staged, Staging, read_staged
from timerstore._engine.log.survey import next_record
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.index_file import Geometry
from timerstore._engine.queues.key_index import Index
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.pending_removals import Removals
from timerstore._engine.queues.record_lookup import record_fields, route_needed
from timerstore._engine.queues.record_properties import timer_texts
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.read.consumer_offsets import Offsets
from timerstore._engine.read.lease_progress import LeaseProgress
from timerstore._engine.read.pull import Puller
from timerstore._engine.read.query import Querier
from timerstore._engine.recurring import Definitions
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore._engine.storage.guarded_map import forget_below
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer import chain_compaction, timer_recovery
from timerstore._engine.timer.broker_export import write_for_brokers
from timerstore._engine.timer.checkpoint import Checkpoint, Rooms
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.handle_lookup import Finder
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.pipeline import Pipeline, make_pipeline
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_retention import Retained, make_retention
from timerstore._engine.timer.timer_states import States
from timerstore._engine.timer.wheel import Wheel, has_length, is_left_open
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, CorruptError, FailedError, TimerStoreError, as_failure

_log = logging.getLogger("timerstore.recovery")

_DELETE_BYTES = 4096
"""Of a half of the staging, beside the largest record: its delete record, in one group with it.
More than all topics and our own message ids make."""


class Recovered(NamedTuple):
    """What recovery found out."""

    log_end: int
    dispatch_from: int
    start: timer_recovery.Start
    store_id: int
    mark: Watermark | None
    imported: Fold | None


class Opened(NamedTuple):
    """An open directory."""

    config: StoreConfig
    clock: Clock
    disk: Disk
    directory: Directory
    metrics: Metrics
    rooms: Rooms
    timer_route: Route
    checkpoint: Checkpoint
    pipeline: Pipeline
    linker: Linker
    schedule: ScheduleDeliver
    puller: Puller
    canceller: Canceller
    many_canceller: ManyCanceller
    rescheduler: Rescheduler
    pending: PendingReader
    level_pending: LevelPending
    offsets: Offsets
    lease_progress: LeaseProgress
    definitions: Definitions
    finder: Finder
    querier: Querier
    retention: Retained
    store_id: int
    id_prefix: str
    imported: Fold | None

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        refuse_copy(self)

    def start(self) -> None:
        """Start every thread."""
        for service in self.services:
            service.on_failure = self._failed
        self.rooms.dispatch.start()
        self.pipeline.start()
        self.schedule.start()
        self.retention.start()
        self.wake_all()

    @property
    def services(self) -> tuple[Service, ...]:
        """All services but the planner of recurring messages."""
        return (self.rooms.dispatch, *self.pipeline, self.schedule, self.retention)

    def _failed(self, name: str, error: BaseException) -> None:
        """A service ended by an error: so does the store."""
        with suppress(FailedError):
            self.rooms.log.check_alive()  # a file that was cut explains any error
        cause = error if isinstance(error, TimerStoreError) else FailedError(f"{name}: {error!r}")
        try:
            self._note_damage(cause)
        finally:
            self.rooms.log.fail(cause)

    def _note_damage(self, error: TimerStoreError) -> None:
        """Have the next opening build the timer log and the far wheel anew, where those are what
        is damaged: also where a unit of theirs, whole as it is, leads to another record than its
        own, which is named then.
        """
        tree = self.directory.tree
        if not isinstance(error, CorruptError):
            return
        leads_astray = error.what.endswith(FAULTS[lib.TS_FAULT_TOPIC])
        if leads_astray or str(error.where).startswith(f"{tree.timer_log}/"):
            with suppress(TimerStoreError):  # else the next opening meets it as this one did
                self.disk.write_small(tree.timer_damaged, f"{error}\n".encode())

    def give_up(self, error: BaseException) -> None:
        """Let go of everything as it is: the opening was cut off."""
        self.rooms.log.fail(as_failure(error, self.directory.root))
        self.close()

    def wake_all(self) -> None:
        """Let every service and every waiting pull look again."""
        self.rooms.dispatch.wake()
        self.pipeline.wake_all()
        self.schedule.wake()
        self.retention.wake()
        self.puller.turned()

    def close(self) -> None:
        """Stop, complete the last checkpoint, let a broker in again, release the lock."""
        self.puller.close()
        self.retention.stop()
        self.schedule.stop()
        self.pipeline.stop()
        self.rooms.dispatch.stop()
        is_clean = False
        try:
            if self.rooms.log.failed is None:
                self._read_back()
                self._link_rest()
                self.retention.finish()
                self._empty_far_wheel()
                self.checkpoint.run(is_clean=True)
                reach("close_checkpointed")
                rechainer = chain_compaction.Rechainer(self.rooms, self.pending)
                rechainer.relink()
                reach("close_relinked")
                rechainer.bury()  # also where a broker is kept out: no later closing finds them all
                reach("close_buried")
                self.checkpoint.note_wheel()
                write_for_brokers(
                    self.disk,
                    self.directory.tree,
                    self.config,
                    self.clock,
                    self.rooms,
                    self.checkpoint,
                )
                reach("close_written_for_brokers")
                write_level_offsets(
                    self.disk,
                    self.directory.tree,
                    self.clock,
                    self.rooms.routes,
                    self.rooms.levels,
                )
                is_clean = True
                reach("close_levels_written")
        except CorruptError as error:
            self._note_damage(error)
            raise
        finally:
            try:
                self._let_go(is_clean=is_clean)
            finally:  # whatever the disk says to the last calls, too
                self.directory.release()

    def _let_go(self, *, is_clean: bool) -> None:
        """Close the files; say that all was closed, where it was."""
        for service in self.services:
            service.end(self.directory.root)
        self.checkpoint.close()
        self.rooms.log.close()
        self.rooms.routes.close()
        if self.rooms.dispatch.index is not None:
            self.rooms.dispatch.index.close()
        self.rooms.timer_log.segments.close()
        self.rooms.far.close()
        self.rooms.states.close()
        # What is not on the wheel a broker would never deliver, and what is delivered beyond a
        # level's cursor it would deliver again: then it is kept out.
        linked, put = self.rooms.timer_log.linked_offset, self.timer_route.native.next_offset
        is_plain = linked == put and not self.rooms.levels.has_gaps and not self.rooms.far.count
        self.rooms.wheel.close(as_broker_wants=is_clean and is_plain)
        if is_clean:
            reach("close_wheel_restored")
            self.directory.mark_closed()

    def _read_back(self) -> None:
        """A broker goes on from what was read, which may not lie ahead of the present then."""
        wheel, open_slot = self.rooms.wheel, self.rooms.open_slot
        now_slot = max(1, self.clock.now_ms // self.config.precision_ms)
        with wheel.lock:
            if wheel.read_back(now_slot, open_slot.outstanding):
                open_slot.follow_back(wheel.frontier, wheel.back_count)

    def _empty_far_wheel(self) -> None:
        """Have the wheel as a broker reads it, as far as it and the disk take it."""
        try:
            self.linker.drop_parked()
            if self.config.far_wheel == "own" or self.linker.hand_over():
                self.linker.end_log(self.timer_route)
        except TimerStoreError as error:
            if not error.retryable:
                raise
            self.linker.refused = error

    def _link_rest(self) -> None:
        """Give what is in the timer topic its unit, as far as the wheel and the disk take it."""
        services = (self.rooms.dispatch, self.pipeline.enqueue_get, self.pipeline.enqueue_put)
        try:
            while sum(service.step() for service in services):
                pass
        except TimerStoreError as error:
            if not error.retryable:
                raise
            self.linker.refused = error


def open_directory(
    root: Path, config: StoreConfig | None, clock: Clock, *, threads: bool
) -> Opened:
    """Lock, recover, and make every room."""
    disk = Disk()
    directory = None
    try:
        directory = Directory(disk, root)
        forget_below(root)
        return _Opening(disk, directory, config, clock).run(threads=threads)
    except BaseException:
        if directory is not None:
            directory.release()
        raise


def _refuse_backup(disk: Disk, tree: Tree) -> None:
    """A backup has a log, too; what is put there the next backup would write over."""
    path = tree.root / BACKUP_JSON
    if not disk.exists(path):
        return
    problem = f"{tree.root}: wanted a store's folder, got a backup; restore it into another folder"
    if disk.exists(tree.timer_wheel):  # as versions before let it be
        problem += f"; to go on with it as a store, which it was opened as, remove {path}"
    raise ConfigError(problem)


class _Opening(Owner):
    """One opening, step by step."""

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
        self._metrics = Metrics()

    def run(self, *, threads: bool) -> Opened:
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
        self._states = States()
        self._open_slot = OpenSlot(config.precision_ms)
        self._levels = LevelCursors()
        self._ids = Ids(disk, tree, self._clock, config.dedupe_window_ms, config.dedupe_ids_max)
        found = self._recover(was_open=was_open, wheel_is_ours=wheel_is_ours)
        return self._tie(found, threads=threads)

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
        if mark.is_unbuilt or self._disk.exists(tree.timer_damaged):
            return None
        staged = read_staged(self._disk, tree.staging) if is_unclean else Staged()
        segments.retire(mark.log_begin)  # unlinked once this opening has a checkpoint of its own
        if mark.log_end > segments.extent or segments.begin > mark.log_begin:
            return None
        scanned, end, fault = self._scan_with_staged(mark.log_end, staged)
        if not mark.is_clean:
            self._refuse_wild_place(scanned)
        # Behind a clean one also where an opening behind a broker was cut off.
        if strangers_wrote(scanned, mark.store_id, is_clean=bool(mark.is_clean)):
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
            self._states = States()
            return None
        if is_unclean:
            # Past the known durable end nothing is damage: a power cut keeps pages in any order.
            self._refuse_damage_below(staged.durable_end, tree.staging, end, fault)
            self._report_cut(end, fault)
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
        self._levels.done(level_places(scanned, mark.store_id))
        timer_recovery.start_at(self._wheel, self._open_slot, mark.read_slot)
        return Recovered(
            end,
            mark.log_end,
            timer_recovery.Start(mark.timer_queue_offset, mark.read_slot),
            mark.store_id,
            mark,
            None,
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
        self._states = States()
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
            self._refuse_lost_front(self._mark, end, is_ours=is_ours)
        if not was_open:
            self._refuse_shorter_log(end)
        self._refuse_wild_place(scanned)
        segments.mark_dirty()
        if was_open:
            self._report_cut(end, fault)
        settle_end(segments, max(begin, durable) if was_open else end, end)
        if self._mark is not None:
            self._forget_mark()  # not before the cut: without it a torn tail may look like damage
        if disk.exists(tree.timer_damaged):  # without a watermark nothing of the timer is trusted
            disk.unlink(tree.timer_damaged)
            disk.sync_directory(tree.side)
        reach("recover_anew_begun")
        found = fold(scanned, known_id=before.store_id if before else None)
        store_id = found.store_id or (before.store_id if before else 0) or secrets.randbits(32) | 1
        if before is not None and before.timer_id_end:  # no id is given a second time
            timers = ends.setdefault(WHEEL_TIMER_TOPIC, {})
            timers[0] = max(timers.get(0, 0), before.timer_id_end)
        self._states.open_file(disk, tree.state, anew=True)
        timer_recovery.fold_anew(self._states, self._routes, scanned, found)
        self._levels.clear()
        self._levels.done(found.level_places_done)
        level_pending.fold_anew(self._routes, scanned["route"][found.level_rows_waiting])
        self._build_ids(store_id, end)
        self._restart_queues(scanned, begin, end, ends)
        reach("recover_anew_queues_restarted")
        self._wheel.clear_all()
        self._timer_log.segments.load(is_derived=True)
        self._timer_log.remove_all()
        self._far.begin_anew()
        self._far.fit_window(self._config.roll_slots)
        timer_recovery.start_at(self._wheel, self._open_slot, now_slot)
        queue = timer_recovery.timer_route(self._routes).queue
        return Recovered(
            end,
            begin,
            timer_recovery.Start(queue.min_offset, now_slot),
            store_id,
            None,
            found if len(scanned) else None,
        )

    def _build_ids(self, store_id: int, end: int) -> None:
        marks = counts_json.ids_marks(self._disk.read_small(self._tree.counts))
        self._ids.build(marks, self._segments, store_id, end)

    def _forget_mark(self) -> None:
        """From here on only the log counts; durable."""
        self._disk.unlink(self._tree.watermark)
        self._disk.sync_directory(self._tree.side)
        self._mark = None

    def _refuse_damage_below(self, durable_end: int, source: Path, end: int, fault: int) -> None:
        """Raise CorruptError where the log ends before what was durable, as `source` says."""
        if end < durable_end:
            raise CorruptError(
                f"the commit log is damaged: {FAULTS.get(fault, 'unreadable')}",
                where=f"{self._segments.path(end // self._segments.segment_bytes)} offset {end}",
                wanted=f"records up to {durable_end}, which were durable (noted in {source})",
                got="bytes that do not read; `timerstore repair` keeps the rest",
            )

    def _durable_end(self, staged: Staged, end: int, fault: int) -> int:
        """Return up to where the log is known to be durable, which it must reach."""
        if self._mark is not None:
            durable, source = self._mark.log_end, self._tree.watermark
        else:
            durable, source = self._counted_end(), self._tree.counts
        self._refuse_damage_below(durable, source, end, fault)
        self._refuse_damage_below(staged.durable_end, self._tree.staging, end, fault)
        return max(durable, staged.durable_end)

    def _report_cut(self, end: int, fault: int) -> None:
        """Log a warning where readable records follow the place at which the log is cut: writes
        that were never synced and reached the disk out of order, or damage among them.
        """
        follows = next_record(self._disk, self._tree.commit_log, end, self._config.precision_ms)
        if follows is not None:
            _log.warning(
                "the commit log ends at %s offset %d (%s) and is cut there; a record at log offset "
                "%d, which was not known to be durable, is dropped",
                self._segments.path(end // self._segments.segment_bytes),
                end,
                FAULTS.get(fault, "unreadable"),
                follows,
            )

    def _refuse_wild_place(self, scanned: Scan) -> None:
        """A timer id that no record can have had is damage, not a reason to have memory for it."""
        wild = wild_places(scanned)
        if wild.any():
            at = int(scanned["log_offset"][np.argmax(wild)])
            raise CorruptError(
                "the commit log is damaged: a record says a timer id that none can have had",
                where=f"{self._segments.path(at // self._segments.segment_bytes)} offset {at}",
            )

    def _counted_end(self) -> int:
        """How far the log was durable by the numbers that stand beside a watermark that is lost."""
        return counts_json.log_end(self._disk.read_small(self._tree.counts))

    def _refuse_lost_front(self, mark: Watermark, end: int, *, is_ours: bool) -> None:
        """Where files are gone from the log's front that we did not remove, and no broker was here,
        who leaves the log longer, somebody else did.
        """
        begin = self._segments.begin
        if begin > mark.log_begin and (is_ours or end <= mark.log_end):
            raise CorruptError(
                "the commit log has lost its first files",
                where=self._segments.path(mark.log_begin // self._segments.segment_bytes),
                wanted=f"records from {mark.log_begin} on",
                got=f"the first file begins at {begin}; if a broker removed what was before, "
                f"remove {self._tree.watermark}",
            )

    def _refuse_shorter_log(self, end: int) -> None:
        """A store that was closed has every unit's record: else its log has lost something."""
        for route in self._routes.by_index:
            last = route.queue.last_record_end()
            if last > end:
                self._directory.mark_closed()  # else the next opening would cut the log there
                raise CorruptError(
                    "the commit log has lost its end, or a queue is damaged, which points beyond",
                    where=f"{self._segments.path(end // self._segments.segment_bytes)} "
                    f"offset {end}",
                    wanted=f"records up to {last}, as {self._tree.queue(*route[:2])} has it",
                    got=f"an end at {end}; if that is right, remove that folder: it is made anew",
                )

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
            elif route.queue.has_misfits:
                route.queue.restart(known)
            else:
                route.queue.recover(end, begin)
                route.queue.cut()
                if route.queue.count < known:
                    route.queue.restart(known)

    # --- tying ---

    def _tie(self, found: Recovered, *, threads: bool) -> Opened:
        config, clock, metrics, tree = self._config, self._clock, self._metrics, self._tree
        group_bytes = max(config.record_bytes_max + _DELETE_BYTES, config.group_bytes_max)
        half_bytes = max(group_bytes, config.staging_bytes) + 64
        staging = Staging(self._disk, tree.staging, half_bytes)
        log = CommitLog(config, clock, self._segments, staging, found.log_end)
        timer_route = timer_recovery.timer_route(self._routes)
        index = self._open_index(found) if config.index_enabled else None
        dispatch = Dispatch(
            metrics,
            clock,
            log,
            self._routes,
            config.level_delays,
            config.precision_ms,
            config.flush_interval_ms / 1000,
            found.dispatch_from,
            index,
        )
        dispatch.through(found.log_end)
        timer_recovery.finish_queues(self._routes)
        for route in self._routes.by_index:
            if route.native.kind == lib.TS_ROUTE_LEVELS:
                self._levels.begin_at(route.queue_id, route.queue.min_offset)
        reach("recover_dispatched")
        offsets = Offsets(self._disk, tree, clock, log.check_alive, log.fail)
        offsets.clamp(self._routes)
        reach("recover_offsets_clamped")
        lease_progress = LeaseProgress(log, offsets)
        lease_progress.recover(self._lease_texts(found), found.store_id)
        definitions = Definitions(self._disk, tree, log)
        definitions.recover(
            lambda: self._parts_behind(found), lambda at: self._text_at(at, found.log_end)
        )
        self._timer_log.linked_offset = found.start.timer_queue_offset
        rooms = Rooms(
            log,
            self._routes,
            dispatch,
            self._states,
            self._wheel,
            self._timer_log,
            self._open_slot,
            self._levels,
            self._ids,
            self._far,
        )
        self._ids.lock = log.lock
        log.ensure_ids = self._ids.ensure
        prefix = self._identify(log, timer_route, found.store_id)
        checkpoint = Checkpoint(config, clock, self._disk, tree, rooms, found.store_id, found.mark)
        checkpoint.before_mark += [lease_progress.commit, definitions.save]
        checkpoint.copy_recurring = definitions.copy
        log.ensure_states = self._states.ensure
        log.on_synced = partial(metrics.took, "sync_ms")
        checkpoint.on_completed.append(lambda: metrics.took("checkpoint_ms", checkpoint.took_ns))
        log.wait_for_checkpoint = checkpoint.wait
        log.on_left = rooms.dispatch.wake
        checkpoint.on_completed.append(self._directory.check_held)
        checkpoint.run()
        self._segments.unlink_all_retired()
        linker = Linker(metrics, config, clock, rooms, found.store_id)
        pipeline = make_pipeline(
            metrics,
            config,
            clock,
            rooms,
            timer_route,
            found.store_id,
            found.start.timer_queue_offset,
            checkpoint,
            linker,
            threads=threads,
        )
        _wake_enqueue(dispatch, timer_route, pipeline.enqueue_get.wake)
        schedule = self._make_schedule(rooms, pipeline)
        puller = Puller(metrics, config, clock, log, dispatch, pipeline.flush.request)
        pending = PendingReader(config, rooms, timer_route, found.store_id)
        finder = Finder(
            clock,
            log,
            dispatch,
            self._routes,
            timer_route,
            self._states,
            pending,
            found.store_id,
            config.precision_ms,
        )
        removals = Removals(log)
        canceller = Canceller(clock, log, finder, removals)
        querier = Querier(
            config,
            log,
            dispatch,
            removals,
            self._routes,
            self._states.native,
            found.store_id,
        )
        return Opened(
            config,
            clock,
            self._disk,
            self._directory,
            metrics,
            rooms,
            timer_route,
            checkpoint,
            pipeline,
            linker,
            schedule,
            puller,
            canceller,
            ManyCanceller(
                clock,
                log,
                dispatch,
                self._routes,
                timer_route,
                config.precision_ms,
                canceller,
                removals,
            ),
            Rescheduler(config, clock, log, timer_route, finder, removals, self._ids),
            pending,
            LevelPending(config, log, self._routes, dispatch, self._levels),
            offsets,
            lease_progress,
            definitions,
            finder,
            querier,
            make_retention(
                metrics,
                config,
                clock,
                self._disk,
                rooms,
                timer_route,
                checkpoint,
                pipeline.flush,
                found.store_id,
            ),
            found.store_id,
            prefix,
            found.imported,
        )

    def _parts_behind(self, found: Recovered) -> Iterator[Scan]:
        """What lies behind the watermark."""
        for part, _, _ in scan_batches(
            self._segments,
            lambda: self._routes.native,
            self._serve_route,
            self._config.precision_ms,
            found.dispatch_from,
            found.log_end,
        ):
            yield part

    def _text_at(self, log_offset: int, log_end: int) -> bytes:
        """Properties of the record there."""
        with self._segments.view(log_end) as view:
            return record_fields(self._segments, view, log_offset)[2]

    def _lease_texts(self, found: Recovered) -> Iterator[tuple[str, bytes]]:
        """The leases behind the watermark: topic, properties."""
        return timer_texts(
            self._segments,
            self._routes,
            self._config.precision_ms,
            self._clock.now_ms,
            found.dispatch_from,
            found.log_end,
            lambda topic: group_of(topic) is not None,
        )

    def _make_schedule(self, rooms: Rooms, pipeline: Pipeline) -> ScheduleDeliver:
        def placed() -> None:
            rooms.dispatch.wake()
            pipeline.flush.request()

        schedule = ScheduleDeliver(
            self._metrics,
            self._config,
            self._clock,
            rooms.log,
            rooms.routes,
            rooms.levels,
            placed,
        )
        rooms.dispatch.listeners.append(schedule.arrived)
        rooms.log.on_durable.append(schedule.durable)
        return schedule

    def _open_index(self, found: Recovered) -> Index:
        """Give the index, which reaches at least as far as the queues."""
        config = self._config
        geometry = Geometry(config.index_slot_count, config.index_entry_count)
        lag_bytes = config.checkpoint_log_bytes // 8
        index = Index(
            self._disk, self._tree, self._clock, geometry, lag_bytes, has_tags=config.index_tags
        )
        if found.mark is None:  # a broker may have been here
            index.restart(found.store_id, self._segments.begin)
        else:
            index.recover(found.store_id, self._segments.begin, found.log_end)
        index.catch_up(self._segments, found.dispatch_from)
        return index

    def _identify(self, log: CommitLog, timer_route: Route, store_id: int) -> str:
        """Tell C who we are; the prefix of this opening's message ids."""
        ip, port = self._config.store_address
        host = bytes(map(int, ip.split("."))) + port.to_bytes(4, "big")
        prefix = make_prefix(ip, os.getpid(), secrets.randbits(32))
        native = log.native
        native.timer_route = timer_route.native
        native.states = self._states.native
        native.store_id = store_id
        native.unique_counter = (int(time.time() * 1000) & 0xFFFFFFFF) << 16
        ffi.memmove(native.host, host, len(host))
        ffi.memmove(native.unique_prefix, prefix.encode("ascii"), 20)
        return prefix


def _wake_enqueue(dispatch: Dispatch, timer_route: Route, wake: Callable[[], None]) -> None:
    index = int(timer_route.native.index)

    def arrived(touched: set[int]) -> None:
        if index in touched:
            wake()

    dispatch.listeners.append(arrived)
