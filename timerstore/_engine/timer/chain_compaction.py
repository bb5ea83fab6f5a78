"""Compact the chains of the wheel before closing, so that it holds what is pending and no more.

What a slot's chain still holds of messages that are out, rolled on, or cancelled does us no harm,
nor does a second unit of one that waits, as a recovery may leave: the states tell. A broker has no
states: it would deliver them again. It also relinks the units of its last two timer-log files when
it loads, by the slot that each says.

Threads:  close, after every service stopped.
Holds:    (1) the evidence that a unit is dead is durable before its chain goes past it: the last
          checkpoint is complete; (2) first the chains, then the wheel, then what dead units say: so
          whatever a kill leaves, the wheel on the disk leads to whole chains of everything that
          waits. Only first positions and counts may be old then: `recount`.
Cost:     one look at every unit that waits; where there are dead ones, also at their messages, and
          16 bytes of memory for each of those that wait.
See also: docs/decisions/0011-broker-interoperability.md.
"""

from collections.abc import Iterator

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_arrays import Bytes, Int64Array, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import NO_SLOT, Wheel

PATCH = np.dtype([("pos", np.int64), ("is_dead", np.int32), ("unit", np.uint8, 52)], align=True)
assert PATCH.itemsize == ffi.sizeof("ts_patch"), "chain_compaction.py and native/api disagree"
_BATCH = 65_536


class ChainCompactor:
    """Takes the dead units of one store out of its chains."""

    def __init__(
        self,
        wheel: Wheel,
        timer_log: TimerLog,
        log: CommitLog,
        states: TimerStates,
        far: FarWheel,
        open_slot: OpenSlot,
        pending: PendingReader,
    ) -> None:
        self._pending = pending
        self._read_slot = open_slot.lowest_slot(wheel.frontier)
        self._dead: list[Records] = []
        self._is_kept: Bytes = np.empty(0, np.uint8)  # of the living
        self._wheel = wheel
        self._timer_log = timer_log
        self._log = log
        self._states = states
        self._far = far

    def relink(self) -> int:
        """Lead every chain past its dead units, durably; how many there were."""
        if not self._has_dead():
            return 0
        living = self._living()
        self._is_kept = np.zeros(len(living), np.uint8)
        wheel, timer_log = self._wheel, self._timer_log
        for slot in _slots(wheel, self._read_slot):
            size = sum(len(part) for part in self._pending.chain(slot))
            patches = self._compact_chains(slot, living, 2 * size + 2)
            _write(timer_log, patches[patches["is_dead"] == 0])
            self._dead.append(patches[patches["is_dead"] != 0])
        timer_log.sync()
        wheel.write(wheel.copy_dirty())
        return sum(map(len, self._dead))

    def bury(self) -> None:
        """Have every unit that no chain holds say a slot that is not read again; durable."""
        wheel, timer_log = self._wheel, self._timer_log
        for dead in self._dead:
            _write(timer_log, dead)
        for loose in _loose(wheel, timer_log, self._read_slot, None):
            _write(timer_log, loose)
        timer_log.sync()

    def _has_dead(self) -> bool:
        """Tell whether there are more units than messages that wait: each has one, if linked."""
        if self._timer_log.linked_offset < int(self._log.native.timer_route.next_offset):
            return True
        states = self._states.native
        waiting = int(states.waiting) - self._far.count_waiting(states, self._log.segments.begin)
        return self._count_units() != waiting

    def _count_units(self) -> int:
        """In one call: there may be a slot for each message."""
        timer_log = self._timer_log
        at, pos = ffi.new("int64_t *", self._read_slot), ffi.new("int64_t *", -1)
        units = ffi.new("int64_t *", 0)
        with timer_log.segments.view(timer_log.end) as view:
            while True:
                got = lib.ts_wheel_count(view, self._wheel.native, at, pos, NO_SLOT, units)
                if got >= 0:
                    return int(units[0])
                timer_log.segments.serve(view, got, "timer log")

    def _living(self) -> Int64Array:
        """Log offsets, ascending, of the newest copy of each message that waits."""
        ids, offsets = [], []
        for part in self._pending.parts():
            ids.append(part["id"].copy())
            offsets.append(part["log_offset"].copy())
        if not ids:
            return np.empty(0, np.int64)
        each, offset = np.concatenate(ids), np.concatenate(offsets)
        order = np.lexsort((offset, each))
        each, offset = each[order], offset[order]
        newest = np.append(np.diff(each) != 0, True)[: len(each)]
        living: Int64Array = np.sort(offset[newest])
        return living

    def _compact_chains(self, slot: int, living: Int64Array, capacity: int) -> Records:
        patches = np.empty(capacity, PATCH)
        timer_log = self._timer_log
        walk = ffi.new("ts_chain_walk *")
        with timer_log.segments.view(timer_log.end) as view:
            while True:
                got = lib.ts_wheel_compact_chain(
                    view,
                    self._wheel.native,
                    slot,
                    self._read_slot,
                    ffi.from_buffer("int64_t[]", living),
                    ffi.from_buffer("uint8_t[]", self._is_kept),
                    len(living),
                    ffi.from_buffer("ts_patch[]", patches),
                    capacity,
                    walk,
                )
                if got >= 0:
                    return patches[:got]
                timer_log.segments.serve(view, got, "timer log")


def settle(wheel: Wheel, timer_log: TimerLog, read_slot: int, end: int) -> None:
    """Where closing was cut short: recount, and bury what chains lead past already, which no later
    closing tells from what they hold.
    """
    recount(wheel, timer_log, read_slot, end)
    held = _held(wheel, timer_log, read_slot)
    for loose in _loose(wheel, timer_log, read_slot, held):
        _write(timer_log, loose)


def recount(wheel: Wheel, timer_log: TimerLog, read_slot: int, end: int) -> None:
    """Where closing was cut short: have each slot that is still to be read agree with its chain."""
    timer_log.load(end)
    with timer_log.segments.view(end) as view:
        for slot in _slots(wheel, read_slot):
            walk = ffi.new("ts_chain_walk *")
            while (status := lib.ts_wheel_recount(view, wheel.native, slot, walk)) < 0:
                timer_log.segments.serve(view, status, "timer log")


def _slots(wheel: Wheel, read_slot: int) -> Iterator[int]:
    at = read_slot
    while (slot := wheel.next_used(at, NO_SLOT)) is not None:
        yield slot
        at = slot + 1


def _relinked_from(timer_log: TimerLog) -> int:
    """Where the files begin that a broker relinks."""
    size = timer_log.segments.segment_bytes
    return max(timer_log.segments.begin, (timer_log.end - size) // size * size)


def _held(wheel: Wheel, timer_log: TimerLog, read_slot: int) -> Int64Array:
    """Positions, ascending, in the files that a broker relinks of all units that a chain holds."""
    begin = _relinked_from(timer_log)
    found = [np.empty(0, np.int64)]
    positions = np.empty(_BATCH, np.int64)
    with timer_log.segments.view(timer_log.end) as view:
        for slot in _slots(wheel, read_slot):
            walk, got = ffi.new("ts_chain_walk *"), 1
            while got:
                got = lib.ts_wheel_chain_positions(
                    view,
                    wheel.native,
                    slot,
                    begin,
                    ffi.from_buffer("int64_t[]", positions),
                    _BATCH,
                    walk,
                )
                if got < 0:
                    timer_log.segments.serve(view, got, "timer log")
                else:
                    found.append(positions[:got].copy())
    return np.sort(np.concatenate(found))


def _loose(
    wheel: Wheel, timer_log: TimerLog, read_slot: int, held: Int64Array | None
) -> Iterator[Records]:
    """Units that no chain holds, in the files that a broker relinks; `held`: all that one does."""
    at, following = _relinked_from(timer_log), ffi.new("int64_t *")
    with timer_log.segments.view(timer_log.end) as view:
        while at < timer_log.end:
            patches = np.empty(_BATCH, PATCH)
            got = lib.ts_timer_log_unchained(
                view,
                wheel.native,
                at,
                following,
                read_slot,
                ffi.NULL if held is None else ffi.from_buffer("int64_t[]", held),
                0 if held is None else len(held),
                ffi.from_buffer("ts_patch[]", patches),
                _BATCH,
            )
            if got < 0:
                timer_log.segments.serve(view, got, "timer log")
                continue
            at = int(following[0])
            yield patches[:got]


def _write(timer_log: TimerLog, patches: Records) -> None:
    for one in patches:
        timer_log.segments.write(int(one["pos"]), one["unit"].tobytes())
