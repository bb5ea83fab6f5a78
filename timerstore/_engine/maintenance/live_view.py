"""`LiveView`: an open store, as the checks read it. Its services run during the checks.

    watermark, states, counts, wheel   copied between two checkpoints         M: their log end
    wheel, end of the timer log        copied under the wheel's lock
    end of the log, states, counts     copied under the append lock           L >= M

Thread safety: any thread. Services wait only while the wheel and the states are copied.
Locking: the checkpoint's lock, the wheel's, the append lock, dispatch's; one after the other.
Raises: FailedError if the store has failed. Damage is a finding.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.format import wheel_slot
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.maintenance.check_log import runs_of
from timerstore._engine.maintenance.check_timer import read_far_table
from timerstore._engine.maintenance.store_view import (
    FarChains,
    Findings,
    LiveStore,
    LogPart,
    Memory,
    SideFiles,
    StoreView,
    TimerEnd,
    UnitRun,
    WheelCopy,
    place,
)
from timerstore._engine.queues.record_lookup import RecordUnits, scan_batches
from timerstore._engine.queues.routes import Route
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError, TimerStoreError
from timerstore.types.reports import Problem

_PAGE_BYTES = 4096
_LENGTH_IS_RIGHT = (lib.TS_FAULT_POSITION, lib.TS_FAULT_BODY_CRC, lib.TS_FAULT_PROPERTY_CRC)


class LiveView(StoreView):
    """One open store."""

    def __init__(self, findings: Findings, engine: LiveStore) -> None:
        engine.log.check_alive()
        self.findings = findings
        self.engine: LiveStore = engine
        self.config = engine.config
        self.disk = engine.disk
        self.tree = engine.directory.tree
        self._segments = engine.log.segments
        self.timer_log: Segments = engine.timer_log.segments
        self.log_begin = self._segments.begin
        self.deleted_below = engine.routes.deleted_below
        self._units = RecordUnits(self.config.level_delays)

    # --- copies ---

    def take(self) -> bool:
        """Copy side files, wheel and memory. Each copy has at least the records of the one before.
        Return False if a file is too short to be mapped.
        """
        self._take_files()
        self.memory = self._take_memory()
        self.log_begin, self.log_end = self._segments.begin, self.memory.log_end
        if not self._can_map():
            return False
        try:
            self.engine.dispatch.through(self.log_end)
        except CorruptError as error:
            self.findings.raised("dispatch", self.tree.commit_log, error)
        return True

    def _take_files(self) -> None:
        disk, tree, checkpoint = self.disk, self.tree, self.engine.checkpoint
        with checkpoint.still():
            self.mark = checkpoint.completed
            self.side = read_side(disk, tree)
            self.far_table = read_far_table(self)
            self.wheel = self._copy_wheel()
            if (size := disk.file_bytes(tree.timer_wheel)) is not None:
                size = min(size, len(self.wheel.slots) + wheel_slot.SLOT_BYTES)
                self.wheel_file = disk.open(tree.timer_wheel, read_only=True).read(0, size)

    def _copy_wheel(self) -> WheelCopy:
        engine = self.engine
        wheel = engine.wheel
        size = wheel.slot_count * wheel_slot.SLOT_BYTES
        pages = (size + _PAGE_BYTES - 1) // _PAGE_BYTES
        with wheel.lock:
            self.timer_end = TimerEnd(engine.timer_log.end, engine.timer_log.linked_offset)
            return WheelCopy(
                np.frombuffer(ffi.buffer(wheel.native.slots, size), np.uint8).copy(),
                np.frombuffer(ffi.buffer(wheel.native.dirty_pages, pages), np.uint8).copy(),
            )

    def _take_memory(self) -> Memory:
        engine = self.engine
        with engine.log.lock:
            log_end = engine.log.end
            states = engine.states.copy_all()
            pending_timers = int(engine.states.native.pending)
            routes = [route.native for route in list(engine.routes.by_index)]
            pending = {int(one.index): int(one.pending) for one in routes}
            level_pending = {int(one.index): int(one.level_pending) for one in routes}
            levels = engine.levels.copy()
        packed = np.frombuffer(states, np.uint8)
        return Memory(log_end, packed, pending_timers, pending, levels, level_pending)

    def _can_map(self) -> bool:
        engine, is_whole = self.engine, True
        spaces = [
            (segments.segment_bytes, segments.wrong_files())
            for segments in (self._segments, self.timer_log, engine.far.segments)
        ]
        spaces += [
            (self.config.queue_segment_bytes, route.queue.wrong_files())
            for route in list(engine.routes.by_index)
        ]
        for size, wrong in spaces:
            for path, got in wrong:
                is_whole = False
                found = "no file" if got is None else f"{got} bytes"
                self.findings.add("a file's size", path, f"{size} bytes", found)
        return is_whole

    # --- the log ---

    def log_parts(self, begin: int, end: int) -> Iterator[LogPart | Problem]:
        """Read the records of [begin, end), which are both edges of records. Memory does not grow
        with the log.
        """
        self.findings.count("records", 0)
        offset = begin
        while offset < end:
            fault = 0
            try:
                for part, reached, why in scan_log(self.engine, offset, end):
                    self.findings.count("records", len(part))
                    self.findings.count("log bytes", reached - offset)
                    yield LogPart(offset, reached, part, self._runs(offset, reached))
                    offset, fault = reached, why
                if offset >= end:
                    return
                found = self._segments.read(offset, min(16, end - offset)).hex()
                what = f"commit log: {FAULTS.get(fault, 'damaged')}"
                yield Problem(what, place(self._segments, offset), "a whole record", found)
                offset = self._after_damage(offset, fault, end)
            except TimerStoreError as error:
                yield Problem("commit log", place(self._segments, offset), "readable", str(error))
                return

    def _after_damage(self, offset: int, fault: int, end: int) -> int:
        """Return where to go on: after the record if its length is right, else in the next file."""
        if fault in _LENGTH_IS_RIGHT:
            return offset + int.from_bytes(self._segments.read(offset, 4), "big")
        size = self._segments.segment_bytes
        return min(end, (offset // size + 1) * size)

    def _runs(self, begin: int, end: int) -> Iterator[UnitRun]:
        """Return the units that these records require."""
        while begin < end:
            with self._segments.view(end) as view:
                routes = self.engine.routes.native
                count = self._segments.call(view, "check", self._units.make, routes, begin)
            for index, offsets, units in self._units.by_queue(count):
                yield from runs_of(self.engine.routes.by_index[index], offsets, units)
            if self._units.reached == begin:
                return
            begin = self._units.reached

    def queue_units(self, route: Route, offset: int, count: int) -> bytes | None:
        """Return at most `count` units of a queue."""
        return route.queue.read(offset, count)

    def first_offset(self, route: Route) -> int | None:
        """Return the queue offset of a queue's first record in the log."""
        return route.queue.first_at(self._segments.begin)

    # --- the far wheel ---

    @contextmanager
    def far_chains(self) -> Iterator[FarChains | None]:
        """Copy the table of the far wheel. Its units stay during the context."""
        far = self.engine.far
        with ExitStack() as held:
            with self.engine.wheel.lock:
                rows: Any = far.table().rows
                width = far.width
                view = held.enter_context(far.view())
            yield FarChains(far, rows, width, view)


def scan_log(engine: LiveStore, begin: int, end: int) -> Iterator[tuple[Scan, int, int]]:
    """Read the records of [begin, end) up to the first damage: see `scan_batches`."""
    precision_ms = engine.config.precision_ms
    return scan_batches(engine.log.segments, engine.routes, engine.clock, precision_ms, begin, end)


def read_side(disk: Disk, tree: Tree) -> SideFiles:
    """Read the side files of a watermark. No checkpoint may run during this."""
    state = None
    if disk.exists(tree.state):
        file = disk.open(tree.state, read_only=True)
        state = file.read(0, file.size())
    return SideFiles(disk.read_small(tree.watermark), state, disk.read_small(tree.counts))
