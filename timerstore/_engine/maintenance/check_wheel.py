"""Check the wheel: its file, slots and chains, and that they lead to all pending timers."""

from typing import Any

import numpy as np

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import timer_unit, wheel_checks, wheel_slot
from timerstore._engine.maintenance import id_states
from timerstore._engine.maintenance.findings import at_offset, place
from timerstore._engine.maintenance.store_view import StoreView, WheelCopy
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer.timer_arrays import CHAINED
from timerstore.errors import TimerStoreError

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


class _ChainCheck(Owner):
    """Checks the slots of a copied wheel, and walks their chains."""

    def __init__(self, view: StoreView, segments: Segments, copy: WheelCopy) -> None:
        self._findings = view.findings
        self._path = view.tree.timer_wheel
        self._segments = segments
        self._hint = view.derived("opening makes it again once the watermark is removed")
        self._slots = wheel_slot.read(copy.slots.tobytes())
        self._end = copy.timer_end.end
        self._native = ffi.new("ts_wheel *")
        self._view = ffi.from_buffer("uint8_t[]", copy.slots)
        self._native.slots = self._view
        self._native.slot_count = copy.slot_count
        self._native.precision_ms = copy.precision_ms
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
                self._segments.serve(view, got, "check")
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
    for ids in id_states.pending(memory.states):
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
