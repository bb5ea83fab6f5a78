"""A wheel and a timer log in memory, to call the C functions of the wheel one by one."""

from typing import Any

import numpy as np

from tests.support.disk_reader import (
    TIMER_UNIT_BYTES,
    TimerUnit,
    decode_slot,
    decode_timer_unit,
)
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.timer.timer_arrays import CHAINED, DUE, REQUEST, Records

PRECISION_MS = 100
NOW = 10_000  # slot of the present
WINDOW = 48
SEGMENT = 1 << 16


class WheelBench:
    """A wheel, an in-memory timer log of one segment, and the states of a few ids."""

    def __init__(self, slot_count: int = 128, segment_bytes: int = SEGMENT) -> None:
        self.slot_count = slot_count
        self.slots = np.zeros(slot_count * 32, np.uint8)
        self.dirty = np.zeros((slot_count * 32 + 4095) // 4096, np.uint8)
        self.wheel: Any = ffi.new("ts_wheel *")
        self.wheel.slots = ffi.from_buffer("uint8_t[]", self.slots)
        self.wheel.dirty_pages = ffi.from_buffer("uint8_t[]", self.dirty)
        self.wheel.slot_count = slot_count
        self.wheel.precision_ms = PRECISION_MS
        self.link: Any = ffi.new("ts_link *")
        self.link.segment_bytes = segment_bytes
        self.link.write_slot = NOW
        self.link.read_slot = NOW + 1
        self.link.reuse_below = NOW
        self.link.roll_slots = WINDOW
        self.states = TimerStates()
        self.states.ensure(1000)
        self.units = np.zeros(SEGMENT, np.uint8)
        self.log = np.zeros(4 * SEGMENT, np.uint8)
        self._next = 0

    def request(self, due_ms: int, flags: int = 0, *, waits: bool = True) -> Records:
        out = np.zeros(1, REQUEST)
        out["id"], out["due_ms"], out["flags"] = self._next, due_ms, flags
        out["log_offset"], out["size"], out["topic_hash"] = 1000 * self._next, 77, 5
        if waits:
            lib.ts_state_set(self.states.native, self._next, lib.TS_PENDING)
        self._next += 1
        return out

    def put(self, *requests: Records, room: int = SEGMENT) -> tuple[int, Records]:
        """Link requests, and return (count or status, late entries)."""
        each = np.concatenate(requests)
        late = np.zeros(len(each), DUE)
        begin = self.link.pos
        count = lib.ts_timer_link(
            self.wheel, self.link, self.states.native,
            ffi.from_buffer("ts_request[]", each), len(each),
            ffi.from_buffer("uint8_t[]", self.units), room,
            ffi.from_buffer("ts_due[]", late),
        )  # fmt: skip
        self.log[begin : begin + self.link.bytes] = self.units[: self.link.bytes]
        return int(count), late[: self.link.late_count]

    def unit(self, pos: int) -> TimerUnit:
        return decode_timer_unit(self.log[pos : pos + TIMER_UNIT_BYTES].tobytes(), pos)

    def slot(self, number: int) -> tuple[int, int, int, int]:
        """Return (time, first, last, count) at the slot's index."""
        at = number % self.slot_count * 32
        found = decode_slot(self.slots[at : at + 32].tobytes(), 0)
        return found.time, found.first_pos, found.last_pos, found.unit_count

    def view(self) -> Any:
        """Return the log as one mapped segment."""
        self._keep = ffi.from_buffer("uint8_t[]", self.log)
        self._table = ffi.new("const uint8_t *[]", [self._keep])
        view = ffi.new("ts_view *")
        view.segments, view.segment_count = self._table, 1
        view.segment_bytes, view.end = len(self.log), self.link.pos
        return view

    def load(self, slot: int, capacity: int = 100) -> list[int]:
        """Return the log offsets of a slot's chain, newest first, read `capacity` at a time."""
        found: list[int] = []
        pos = ffi.new("int64_t *", -1)
        while True:
            part = np.zeros(capacity, CHAINED)
            got = lib.ts_wheel_load(
                self.view(), self.wheel, slot, pos, capacity, ffi.from_buffer("ts_chained[]", part)
            )
            assert got >= 0, f"status {got}"
            assert (part["slot"][:got] == slot).all()
            found += part["log_offset"][:got].tolist()
            if pos[0] < 0:
                return found

    def next_used(self, begin: int, end: int) -> int:
        return int(lib.ts_wheel_next(self.wheel, begin, end))

    def count(self, begin: int, end: int) -> tuple[int, int, int]:
        """Return (status, units, slot at which the count stopped)."""
        at, pos, units = (ffi.new("int64_t *", value) for value in (begin, -1, 0))
        got = lib.ts_wheel_count(self.view(), self.wheel, at, pos, end, units)
        return int(got), int(units[0]), int(at[0])


def slot_ms(slot: int) -> int:
    return slot * PRECISION_MS
