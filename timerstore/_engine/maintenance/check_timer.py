"""Check the wheel: its file, slots and chains, and that they lead to all pending timers."""

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.sorted_values import are_in
from timerstore._engine.format import far_table, timer_unit, wheel_checks, wheel_slot
from timerstore._engine.format.far_table import UNIT_BYTES, FarTable
from timerstore._engine.maintenance import expected_states
from timerstore._engine.maintenance.check_log import LogResult
from timerstore._engine.maintenance.store_view import (
    FarChains,
    LiveStore,
    StoreView,
    WheelCopy,
    at_offset,
    check_zeros,
    place,
)
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer.timer_arrays import CHAINED, slots_of
from timerstore.errors import TimerStoreError

# --- check wheel ---


_BATCH = 16_384
_PAGE_BYTES = 4096


def check_wheel(view: StoreView) -> None:
    """Check the wheel's file, and the chains of its slots."""
    copy, segments = view.wheel, view.timer_log
    if copy is None or segments is None:
        return
    if copy.dirty is not None:
        _check_pages(view, copy, copy.dirty)
        _ChainCheck(view, segments, copy).run()
        return
    is_open = view.disk.exists(view.tree.abort)
    is_long = view.wheel_file is not None and len(view.wheel_file) > len(copy.slots)
    is_sound = True
    if is_long if is_open else view.is_quiet:
        is_sound = _check_sectors(view, copy)
    if not is_open:  # else the wheel may be ahead of its watermark
        can_walk = is_sound and view.is_quiet and not segments.wrong_files()
        _ChainCheck(view, segments, copy).run(only_slots=not can_walk)


def _check_pages(view: StoreView, copy: WheelCopy, dirty: Any) -> None:
    """Check that pages that no checkpoint has to write are the same in file and memory."""
    size, raw, path = len(copy.slots), view.wheel_file, view.tree.timer_wheel
    if raw is None or len(raw) < size:
        got = "no file" if raw is None else f"{len(raw)} bytes"
        view.findings.add("wheel", path, f"{size} bytes or more", got)
        return
    differs = np.flatnonzero(np.frombuffer(raw, np.uint8, size) != copy.slots)
    for page in np.unique(differs // _PAGE_BYTES).tolist():
        if not dirty[page]:
            at = int(differs[np.searchsorted(differs, page * _PAGE_BYTES)])
            view.findings.add(
                "wheel: the file differs from memory", at_offset(path, at), copy.slots[at], raw[at]
            )


def _check_sectors(view: StoreView, copy: WheelCopy) -> bool:
    """Check that each sector of the wheel's file has its checksum; return whether all have."""
    mark, disk, findings = view.mark, view.disk, view.findings
    if mark is None or mark.wheel_writes < 0:
        return True
    held = wheel_checks.compute(copy.slots.tobytes())
    path, size = view.tree.wheel_checks, wheel_checks.file_bytes(len(held))
    entries = None
    if disk.file_bytes(path) == size:
        entries = wheel_checks.read(disk.open(path, read_only=True).read(0, size), len(held))
    if entries is None:
        what = f"the wheel's checks{view.derived()}"
        findings.add(what, path, f"{len(held)} of them", "none")
        return False
    wrong = np.flatnonzero(~wheel_checks.match(entries, held, mark.wheel_writes)).tolist()
    for sector in wrong:
        findings.add(
            f"the wheel{view.derived()}",
            at_offset(view.tree.timer_wheel, sector * wheel_checks.SECTOR_BYTES),
            f"check {entries['now'][sector]:08x}",
            f"{held[sector]:08x}",
        )
    return not wrong


class _ChainCheck(NotCopyable):
    """Checks the slots of a copied wheel, and walks their chains."""

    def __init__(self, view: StoreView, segments: Segments, copy: WheelCopy) -> None:
        self._findings = view.findings
        self._path = view.tree.timer_wheel
        self._segments = segments
        self._hint = view.derived("opening makes it again once the watermark is removed")
        self._slots = wheel_slot.read(copy.slots.tobytes())
        self._end = view.timer_end.end
        self._native = ffi.new("ts_wheel *")
        self._view = ffi.from_buffer("uint8_t[]", copy.slots)
        self._native.slots = self._view
        self._native.slot_count = view.config.wheel_slot_count
        self._native.precision_ms = view.config.precision_ms
        self._chained = np.empty(_BATCH, CHAINED)
        self._out = ffi.from_buffer("ts_chained[]", self._chained)

    def run(self, *, only_slots: bool = False) -> None:
        """Check every slot that was ever used, and unless `only_slots` its chain."""
        indexes = np.flatnonzero(self._slots["time"] != 0)
        self._findings.count("used slots", len(indexes))
        with self._segments.view(self._end) as view:
            for index in indexes.tolist():
                if not self._is_gone(index) and self._is_sane(index) and not only_slots:
                    self._chain(view, index)

    def _is_gone(self, index: int) -> bool:
        """Return whether retention removed units of the slot, which was read then."""
        return bool(0 <= self._slots[index]["first_pos"] < self._segments.begin)

    def _where(self, index: int) -> str:
        return at_offset(self._path, index * wheel_slot.SLOT_BYTES)

    def _add(self, index: int, what: str, wanted: object, got: object) -> None:
        slot = int(self._slots[index]["time"])
        self._findings.add(f"slot {slot}: {what}{self._hint}", self._where(index), wanted, got)

    def _is_sane(self, index: int) -> bool:
        slot = self._slots[index]
        time, first, last = (int(slot[name]) for name in ("time", "first_pos", "last_pos"))
        if time < 0 or time % self._native.slot_count != index:
            self._add(index, "its time does not belong here", f"one of slot {index}", time)
            return False
        if slot["magic"] != 0:
            self._add(index, "magic", 0, int(slot["magic"]))
        size = self._segments.segment_bytes
        for name, pos in (("first position", first), ("last position", last)):
            if not 0 <= pos < self._end or pos % size % timer_unit.UNIT_BYTES:
                self._add(index, name, f"a unit below {self._end}", pos)
                return False
        if first > last:
            self._add(index, "first position", f"at most {last}", first)
        return True

    def _chain(self, view: Any, index: int) -> None:
        time = int(self._slots[index]["time"])
        pos = ffi.new("int64_t *", -1)
        before, units, alive = int(self._slots[index]["last_pos"]), 0, 0
        while True:
            got = self._load(view, index, time, pos, _BATCH)
            if got < 0:
                return
            units += got
            magic = self._chained["magic"][:got]
            alive += int(np.count_nonzero((magic & timer_unit.MAGIC_DELETE) == 0))
            if pos[0] < 0:
                break
            before = int(pos[0])
        tail = got
        if tail > 1:  # read all but the last unit again: then `pos` is the position of that one
            pos[0] = before
            while tail > 1:
                again = self._load(view, index, time, pos, tail - 1)
                if again < 0:
                    return
                tail -= again
            before = int(pos[0])
        self._findings.count("chained units", units)
        if before != int(self._slots[index]["first_pos"]):
            self._add(index, "first position", before, int(self._slots[index]["first_pos"]))
        count = int(self._slots[index]["count"])
        if not 0 <= count <= alive:
            self._add(index, "count", f"0 to {alive}", count)

    def _load(self, view: Any, index: int, time: int, pos: Any, capacity: int) -> int:
        while True:
            got = int(lib.ts_wheel_load(view, self._native, time, pos, capacity, self._out))
            if got > 0:
                return got
            if got == lib.TS_CORRUPT:
                self._findings.add(
                    f"slot {time}: {FAULTS.get(int(view.fault), 'damaged')}{self._hint}",
                    place(self._segments, int(view.fault_offset)),
                    f"a unit of slot {time}, its previous one before it",
                    "another",
                )
                return -1
            try:
                if got == 0:
                    self._add(index, "its chain is empty", "a unit or more", 0)
                    return -1
                self._segments.provide(view, got, "check")
            except TimerStoreError as error:
                self._findings.raised(f"slot {time}{self._hint}", self._where(index), error)
                return -1


def check_reached(view: StoreView) -> None:
    """Check that every timer that was pending when memory was copied, and is still, is in a slot
    that will be read, or in a record that the wheel has still to link.
    """
    engine, memory, findings, where = view.engine, view.memory, view.findings, view.tree.timer_wheel
    if engine is None or memory is None:
        return
    found = np.zeros((int(engine.states.native.end) >> 3) + 1, np.uint8)
    try:
        for part in engine.pending.parts():
            ids = part["id"]
            if len(ids) and int(ids.max()) >> 3 >= len(found):
                ids = ids[ids >> 3 < len(found)]  # later ids were put since
            np.bitwise_or.at(found, ids >> 3, np.uint8(1) << (ids & 7).astype(np.uint8))
    except TimerStoreError as error:
        findings.raised("pending timers cannot be read", where, error)
    for ids in expected_states.pending(memory.states):
        findings.count("pending", len(ids))
        lost = ids[(found[ids >> 3] >> (ids & 7).astype(np.uint8)) & 1 == 0]
        for timer_id in lost.tolist():
            if engine.states.get(timer_id) == lib.TS_PENDING:
                findings.add(
                    f"timer id {timer_id} is pending, but nothing leads to it",
                    where,
                    "a slot still to be read, or a record still to be linked",
                    "neither",
                )


# --- check far ---
# Check the far wheel: its table, its chains, and every unit's CRC.


_HOW = "removing the table makes it again"


def read_far_table(view: StoreView) -> FarTable | None:
    """Return the table that the watermark names. Add a finding if it is missing or unreadable."""
    if view.mark is None or not view.mark.far_number:
        return None
    number = view.mark.far_number
    path, what = view.tree.far_table(number), f"far table{view.derived(_HOW)}"
    try:
        table = far_table.read(view.disk.read_small(path), number)
    except TimerStoreError as error:
        view.findings.raised(what, path, error)
        return None
    if table is None:
        view.findings.add(what, path, f"table {number}", "another, or none")
    return table


def check_far(view: StoreView) -> None:
    """Check that all chains are those of the table. Of a directory also check the units that belong
    to no chain.
    """
    with view.far_chains() as far:
        if far is None:
            return
        is_sound = True
        if view.engine is None and view.far_table is not None:
            is_sound = _check_far_units(view, far, view.far_table)
        if is_sound:
            for row in far.rows.tolist():
                _check_chain(view, far, row)


def _check_chain(view: StoreView, far: FarChains, row: list[int]) -> None:
    """Check that a chain has as many units as the table says, from the newest to the oldest."""
    slot, newest, *wanted = row
    findings = view.findings
    where = f"{far.wheel.segments.directory} slot {slot}"
    size, oldest = 0, -1
    try:
        for units in far.wheel.walk(far.view, slot, newest):
            size += len(units)
            oldest = int(units["number"][-1])
            _check_slots(view, units, where, far.width)
    except TimerStoreError as error:
        findings.raised(f"far wheel{view.derived(_HOW)}", where, error)
        return
    if view.engine is not None:
        findings.count("far units", size)
    if [oldest, size] != wanted:
        got = f"{size} units down to {oldest}"
        findings.add(f"far chain{view.derived(_HOW)}", where, row, got)


def _check_slots(view: StoreView, units: npt.NDArray[np.void], where: str, width: int) -> None:
    """Check that no unit is in a far slot after its due time."""
    late = units["slot"] > slots_of(units["due_ms"], view.config.precision_ms) // width
    for unit in units[late].tolist():
        what = f"far unit in a slot after its time{view.derived(_HOW)}"
        view.findings.add(what, where, "its own, or one before", unit)


def _check_far_units(view: StoreView, far: FarChains, table: FarTable) -> bool:
    """Check the CRC of every unit from the table's begin to its end; return whether all fit."""
    segments, is_sound = far.wheel.segments, True
    per_file = segments.segment_bytes // UNIT_BYTES
    for number in segments.numbers:
        first = number * per_file
        raw = segments.read(number * segments.segment_bytes, per_file * UNIT_BYTES)
        for one in range(max(first, table.begin), min(first + per_file, table.end)):
            at = (one - first) * UNIT_BYTES
            unit = raw[at : at + UNIT_BYTES]
            crc = zlib.crc32(unit[:48], zlib.crc32(one.to_bytes(8, "big")))
            if crc != int.from_bytes(unit[48:], "big"):
                is_sound = False
                where = at_offset(segments.path(number), at)
                what = f"a far unit{view.derived(_HOW)}"
                view.findings.add(what, where, "one whose CRC fits", unit.hex())
    view.findings.count("far units", table.end - table.begin)
    return is_sound


# --- check timer log ---
# Check the timer log: every unit below its end, the blank after each segment's last unit, and in
# an open store the zeros past the end.


_PIECE_UNITS = 16_384


def check_timer_log(view: StoreView, log: LogResult) -> None:
    """Check all files of the timer log."""
    segments, engine = view.timer_log, view.engine
    if segments is None:
        return
    end = view.timer_end.end
    per_segment = timer_unit.units_per_segment(segments.segment_bytes)
    for number in segments.numbers:
        begin = number * segments.segment_bytes
        count = min(per_segment, max(0, end - begin) // timer_unit.UNIT_BYTES)
        try:
            for at in range(0, count, _PIECE_UNITS):
                first = begin + at * timer_unit.UNIT_BYTES
                _check_units(view, segments, first, min(_PIECE_UNITS, count - at), log)
            if begin + segments.segment_bytes <= end:
                _check_blank(view, segments, begin + per_segment * timer_unit.UNIT_BYTES)
        except TimerStoreError as error:
            where = place(segments, begin)
            view.findings.raised(f"timer log{view.derived()}", where, error)
    if engine is not None:
        _check_tail(view, engine, segments)


def _check_units(
    view: StoreView, segments: Segments, begin: int, count: int, log: LogResult
) -> None:
    data = segments.read(begin, count * timer_unit.UNIT_BYTES)
    units = timer_unit.read(data)
    view.findings.count("timer units", count)
    positions = begin + np.arange(count) * timer_unit.UNIT_BYTES
    precision_ms = view.config.precision_ms
    magic = units["magic"]
    checks = [
        ("size", "unit_size", units["unit_size"] != timer_unit.UNIT_BYTES, "52"),
        ("magic", "magic", (magic < 0) | (magic > timer_unit.MAGIC_MAX), "0 to 15"),
        (
            "previous position",
            "prev_pos",
            ~_is_before(units["prev_pos"], positions, segments),
            "-1, or a unit",
        ),
        (
            "write time",
            "write_ms",
            units["write_ms"] % precision_ms != 0,
            f"whole slots of {precision_ms} ms",
        ),
        (
            "delay",
            "delay_ms",
            units["delay_ms"] % precision_ms != 0,
            f"whole slots of {precision_ms} ms",
        ),
        ("checksum", "seal", ~timer_unit.are_valid(data, begin), "one that fits, or 0"),
    ]
    if view.record_offsets is not None and not log.is_damaged:
        offsets = units["log_offset"].astype(np.int64)
        is_lost = ~are_in(offsets, view.record_offsets) & (offsets >= view.log_begin)
        checks.append(("log offset", "log_offset", is_lost, "one of a record"))
    for what, name, wrong, wanted in checks:
        for at in np.flatnonzero(wrong).tolist():
            where = place(segments, int(positions[at]))
            view.findings.add(f"timer unit: {what}{view.derived()}", where, wanted, units[name][at])


def _is_before(prev: Any, positions: Any, segments: Segments) -> npt.NDArray[np.bool_]:
    size = segments.segment_bytes
    is_unit = (prev % size % timer_unit.UNIT_BYTES == 0) & (prev >= 0)  # it may be gone
    before: npt.NDArray[np.bool_] = (prev == -1) | (is_unit & (prev < positions))
    return before


def _check_blank(view: StoreView, segments: Segments, pos: int) -> None:
    left = segments.segment_bytes - pos % segments.segment_bytes
    data = segments.read(pos, timer_unit.BLANK_BYTES)
    if not timer_unit.is_blank(data, left):
        view.findings.add(
            f"timer log: no blank at the segment's end{view.derived()}",
            place(segments, pos),
            f"a blank over {left} bytes",
            data.hex(),
        )


def _check_tail(view: StoreView, engine: LiveStore, segments: Segments) -> None:
    def read(offset: int, size: int) -> tuple[int, bytes]:
        with engine.wheel.lock:  # nothing is appended while it is held
            return segments.read_data(max(offset, engine.timer_log.end), size)

    check_zeros(view.findings, "timer log", read, lambda at: place(segments, at))
