"""Check of the timer log, of the wheel's slots and their chains, and of who is reached by them.

Holds:    slots are copied, so that services go on while their chains are walked.
Fails:    never on damage: that is named.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import timer_unit, wheel_slot
from timerstore._engine.maintenance import id_states
from timerstore._engine.maintenance.check_log import TimerEnd
from timerstore._engine.maintenance.findings import Findings, at_offset, first_byte, place
from timerstore._engine.maintenance.id_states import Packed
from timerstore._engine.maintenance.live_store import LiveStore
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_arrays import CHAINED
from timerstore.errors import TimerStoreError

_PIECE_UNITS = 16_384
_PIECE_BYTES = 1 << 20
_BATCH = 16_384
_PAGE_BYTES = 4096


class WheelCopy(NamedTuple):
    """The wheel at one moment, with the timer log's end that belongs to it."""

    slots: npt.NDArray[np.uint8]
    dirty: npt.NDArray[np.uint8]
    timer_end: TimerEnd
    read_slot: int


def copy_wheel(store: LiveStore) -> WheelCopy:
    """Copy the slots between two steps of the services."""
    wheel = store.wheel
    size = wheel.slot_count * wheel_slot.SLOT_BYTES
    pages = (size + _PAGE_BYTES - 1) // _PAGE_BYTES
    with wheel.lock:
        return WheelCopy(
            np.frombuffer(ffi.buffer(wheel.native.slots, size), np.uint8).copy(),
            np.frombuffer(ffi.buffer(wheel.native.dirty_pages, pages), np.uint8).copy(),
            TimerEnd(store.timer_log.end, store.timer_log.linked_offset),
            store.open_slot.lowest_slot(wheel.frontier),
        )


def check_wheel_file(
    findings: Findings, store: LiveStore, copy: WheelCopy, raw: bytes | None
) -> None:
    """Pages that no checkpoint has to write are in the file as they are in memory."""
    size = len(copy.slots)
    if raw is None or len(raw) < size:
        got = "no file" if raw is None else f"{len(raw)} bytes"
        findings.add("wheel", store.wheel.path, f"{size} bytes or more", got)
        return
    differs = np.flatnonzero(np.frombuffer(raw, np.uint8, size) != copy.slots)
    for page in np.unique(differs // _PAGE_BYTES).tolist():
        if not copy.dirty[page]:
            at = int(differs[np.searchsorted(differs, page * _PAGE_BYTES)])
            findings.add(
                "wheel: the file is not what the memory is",
                at_offset(store.wheel.path, at),
                copy.slots[at],
                raw[at],
            )


def check_timer_log(findings: Findings, store: LiveStore, end: int, precision_ms: int) -> None:
    """Every unit below `end` is valid, a blank ends each segment, zeros lie behind."""
    segments = store.timer_log.segments
    per_segment = timer_unit.units_per_segment(segments.segment_bytes)
    for number in segments.numbers:
        begin = number * segments.segment_bytes
        count = min(per_segment, max(0, end - begin) // timer_unit.UNIT_BYTES)
        try:
            for at in range(0, count, _PIECE_UNITS):
                _check_units(
                    findings,
                    store,
                    begin + at * timer_unit.UNIT_BYTES,
                    min(_PIECE_UNITS, count - at),
                    precision_ms,
                )
            if begin + segments.segment_bytes <= end:
                _check_blank(findings, store, begin + per_segment * timer_unit.UNIT_BYTES)
        except TimerStoreError as error:
            findings.raised("timer log", place(segments, begin), error)
    _check_tail(findings, store)


def _check_units(
    findings: Findings, store: LiveStore, begin: int, count: int, precision_ms: int
) -> None:
    segments = store.timer_log.segments
    data = segments.read(begin, count * timer_unit.UNIT_BYTES)
    units = timer_unit.read(data)
    findings.count("timer units", count)
    positions = begin + np.arange(count) * timer_unit.UNIT_BYTES
    magic = units["magic"]
    checks = (
        ("size", units["unit_size"] != timer_unit.UNIT_BYTES, "52"),
        ("magic", (magic < 0) | (magic > timer_unit.MAGIC_MAX), "0 to 15"),
        ("previous position", ~_is_before(units["prev_pos"], positions, segments), "-1, or a unit"),
        ("write time", units["write_ms"] % precision_ms != 0, f"whole slots of {precision_ms} ms"),
        ("delay", units["delay_ms"] % precision_ms != 0, f"whole slots of {precision_ms} ms"),
        ("seal", ~timer_unit.are_valid(data, begin), "one that holds, or 0"),
    )
    names = ("unit_size", "magic", "prev_pos", "write_ms", "delay_ms", "seal")
    for (what, wrong, wanted), name in zip(checks, names, strict=True):
        for at in np.flatnonzero(wrong).tolist():
            where = place(segments, int(positions[at]))
            findings.add(f"timer unit: {what}", where, wanted, units[name][at])


def _is_before(prev: Any, positions: Any, segments: Any) -> npt.NDArray[np.bool_]:
    size = segments.segment_bytes
    is_unit = (prev % size % timer_unit.UNIT_BYTES == 0) & (prev >= 0)  # it may be gone
    before: npt.NDArray[np.bool_] = (prev == -1) | (is_unit & (prev < positions))
    return before


def _check_blank(findings: Findings, store: LiveStore, pos: int) -> None:
    segments = store.timer_log.segments
    left = segments.segment_bytes - pos % segments.segment_bytes
    data = segments.read(pos, timer_unit.BLANK_BYTES)
    if not timer_unit.is_blank(data, left):
        findings.add(
            "timer log: no blank at the segment's end",
            place(segments, pos),
            f"a blank over {left} bytes",
            data.hex(),
        )


def _check_tail(findings: Findings, store: LiveStore) -> None:
    segments = store.timer_log.segments
    offset = 0
    while True:
        with store.wheel.lock:  # nothing is appended meanwhile
            try:
                offset, data = segments.read_data(max(offset, store.timer_log.end), _PIECE_BYTES)
            except TimerStoreError as error:
                findings.raised("timer log", place(segments, offset), error)
                return
        if not data:
            return
        if (at := first_byte(data)) is not None:
            findings.add(
                "timer log: bytes behind the end",
                place(segments, offset + at),
                "zeros",
                data[at : at + 16].hex(),
            )
            return
        offset += len(data)


class ChainCheck(Owner):
    """Walks the chains of a copied wheel."""

    def __init__(self, findings: Findings, store: LiveStore, copy: WheelCopy) -> None:
        self._findings = findings
        self._store = store
        self._slots = wheel_slot.read(copy.slots.tobytes())
        self._end = copy.timer_end.end
        self._native = ffi.new("ts_wheel *")
        self._view = ffi.from_buffer("uint8_t[]", copy.slots)
        self._native.slots = self._view
        self._native.slot_count = store.wheel.slot_count
        self._native.precision_ms = store.wheel.precision_ms
        self._chained = np.empty(_BATCH, CHAINED)
        self._out = ffi.from_buffer("ts_chained[]", self._chained)

    def run(self) -> None:
        """Check every slot that was ever used."""
        indexes = np.flatnonzero(self._slots["time"] != 0)
        self._findings.count("used slots", len(indexes))
        timer_log = self._store.timer_log
        with timer_log.segments.view(self._end) as view:
            for index in indexes.tolist():
                if not self._is_gone(index) and self._is_sane(index):
                    self._chain(view, index)

    def _is_gone(self, index: int) -> bool:
        """Whether it was read, and retention removed units of it; a late one may be there since."""
        begin = self._store.timer_log.segments.begin
        return bool(0 <= self._slots[index]["first_pos"] < begin)

    def _where(self, index: int) -> str:
        return at_offset(self._store.wheel.path, index * wheel_slot.SLOT_BYTES)

    def _add(self, index: int, what: str, wanted: object, got: object) -> None:
        slot = int(self._slots[index]["time"])
        self._findings.add(f"slot {slot}: {what}", self._where(index), wanted, got)

    def _is_sane(self, index: int) -> bool:
        slot = self._slots[index]
        time, first, last = (int(slot[name]) for name in ("time", "first_pos", "last_pos"))
        if time < 0 or time % self._native.slot_count != index:
            self._add(index, "its time does not belong here", f"one of slot {index}", time)
            return False
        if slot["magic"] != 0:
            self._add(index, "magic", 0, int(slot["magic"]))
        size = self._store.timer_log.segments.segment_bytes
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
        if tail > 1:  # once more, but for the last one: then `pos` says where that is
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
                    f"slot {time}: {FAULTS.get(int(view.fault), 'damaged')}",
                    place(self._store.timer_log.segments, int(view.fault_offset)),
                    f"a unit of slot {time}, its previous one before it",
                    "another",
                )
                return -1
            try:
                if got == 0:
                    self._add(index, "its chain is empty", "a unit or more", 0)
                    return -1
                self._store.timer_log.segments.serve(view, got, "check")
            except TimerStoreError as error:
                self._findings.raised(f"slot {time}", self._where(index), error)
                return -1


def check_reached(
    findings: Findings, store: LiveStore, pending: PendingReader, packed: Packed, where: object
) -> None:
    """Every id that waited when `packed` was copied, and waits still, is on the wheel at a slot to
    be read, or in a record that the wheel has still to take in.
    """
    found = np.zeros((int(store.states.native.end) >> 3) + 1, np.uint8)
    try:
        for part in pending.parts():
            ids = part["id"]
            if len(ids) and int(ids.max()) >> 3 >= len(found):
                ids = ids[ids >> 3 < len(found)]  # put since
            np.bitwise_or.at(found, ids >> 3, np.uint8(1) << (ids & 7).astype(np.uint8))
    except TimerStoreError as error:
        findings.raised("what waits cannot be read", where, error)
    for ids in id_states.waiting(packed):
        findings.count("waiting", len(ids))
        lost = ids[(found[ids >> 3] >> (ids & 7).astype(np.uint8)) & 1 == 0]
        for timer_id in lost.tolist():
            if store.states.get(timer_id) == lib.TS_WAITING:
                findings.add(
                    f"timer id {timer_id} waits, but nothing leads to it",
                    where,
                    "a slot still to be read, or a record still to be linked",
                    "neither",
                )
