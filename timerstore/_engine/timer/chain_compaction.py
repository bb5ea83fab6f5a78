"""Compact the wheel's chains before closing, so that they hold only pending messages.

A slot's chain may still hold units of messages that were delivered, rolled or cancelled. It may
also hold a second unit of a pending message, left by a recovery. Neither harms us, because the
timer states say which messages are pending. A broker has no such states and would deliver those
messages again. On loading, a broker also relinks the units of its last two timer log files, each
into the slot that the unit names.

Every pending unit is read once. If there are dead units, their messages are read too, and each
pending message needs 16 bytes of memory.

Thread safety: called while closing, after every service has stopped.
Invariants:
    1. The evidence that a unit is dead is durable before its chain skips the unit, because the last
       checkpoint is complete.
    2. The chains are written first, then the wheel, then the dead units. After a crash at any
       point, the wheel on disk leads to complete chains of all pending messages. Only the first
       positions and counts of slots may be out of date then; `recount` corrects them.
See also: docs/decisions/0011-broker-interoperability.md
"""

from collections.abc import Iterator

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.queues.core import Core
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.pending import WheelPending
from timerstore._engine.timer.timer_arrays import Bytes, Int64Array, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import NO_SLOT, Wheel

PATCH = np.dtype([("pos", np.int64), ("is_dead", np.int32), ("unit", np.uint8, 52)], align=True)
assert PATCH.itemsize == ffi.sizeof("ts_patch"), "chain_compaction.py and native/api disagree"
_BATCH = 65_536


class ChainCompactor:
    """Removes the dead units of one store from its chains."""

    def __init__(
        self,
        core: Core,
        wheel: Wheel,
        timer_log: TimerLog,
        far: FarWheel,
        open_slot: OpenSlot,
        pending: WheelPending,
    ) -> None:
        self._pending = pending
        self._replay_slot = open_slot.replay_slot(wheel.read_slot)
        self._dead: list[Records] = []
        self._is_kept: Bytes = np.empty(0, np.uint8)  # by index of the pending copies
        self._wheel = wheel
        self._timer_log = timer_log
        self._log = core.log
        self._states = core.states
        self._far = far

    def relink(self) -> int:
        """Make every chain skip its dead units, and return how many there were.

        The chains and the wheel are durable on return.
        """
        if not self._has_dead():
            return 0
        living = self._living()
        self._is_kept = np.zeros(len(living), np.uint8)
        wheel, timer_log = self._wheel, self._timer_log
        for slot in _slots(wheel, self._replay_slot):
            size = sum(len(part) for part in self._pending.chain(slot))
            patches = self._compact_chains(slot, living, 2 * size + 2)
            _write(timer_log, patches[patches["is_dead"] == 0])
            self._dead.append(patches[patches["is_dead"] != 0])
        timer_log.sync()
        wheel.write(wheel.copy_dirty())
        return sum(map(len, self._dead))

    def bury(self) -> None:
        """Rewrite every unit outside the chains to name a slot that is not read again.

        The units are durable on return.
        """
        wheel, timer_log = self._wheel, self._timer_log
        for dead in self._dead:
            _write(timer_log, dead)
        for loose in _loose(wheel, timer_log, self._replay_slot, None):
            _write(timer_log, loose)
        timer_log.sync()

    def _has_dead(self) -> bool:
        """Return whether the chains have more units than there are pending messages."""
        if self._timer_log.linked_offset < int(self._log.native.timer_route.next_offset):
            return True
        states = self._states.native
        waiting = int(states.pending) - self._far.count_pending(states, self._log.segments.begin)
        return self._count_units() != waiting

    def _count_units(self) -> int:
        """Count the units of all chains in one call, as there may be one slot for each message."""
        timer_log = self._timer_log
        at, pos = ffi.new("int64_t *", self._replay_slot), ffi.new("int64_t *", -1)
        units = ffi.new("int64_t *", 0)
        with timer_log.segments.view(timer_log.end) as view:
            timer_log.segments.call(
                view, "timer log", lib.ts_wheel_count, self._wheel.native, at, pos, NO_SLOT, units
            )
        return int(units[0])

    def _living(self) -> Int64Array:
        """Return the log offset of the newest copy of each pending message, ascending."""
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
            count = timer_log.segments.call(
                view,
                "timer log",
                lib.ts_wheel_compact_chain,
                self._wheel.native,
                slot,
                self._replay_slot,
                ffi.from_buffer("int64_t[]", living),
                ffi.from_buffer("uint8_t[]", self._is_kept),
                len(living),
                ffi.from_buffer("ts_patch[]", patches),
                capacity,
                walk,
            )
        return patches[:count]


def settle(wheel: Wheel, timer_log: TimerLog, replay_slot: int, end: int) -> None:
    """Finish a compaction that a crash interrupted: recount, and rewrite units outside the chains.

    A later closing could not tell those units from the units of the chains.
    """
    recount(wheel, timer_log, replay_slot, end)
    held = _held(wheel, timer_log, replay_slot)
    for loose in _loose(wheel, timer_log, replay_slot, held):
        _write(timer_log, loose)


def recount(wheel: Wheel, timer_log: TimerLog, replay_slot: int, end: int) -> None:
    """Make each unread slot agree with its chain, after a crash interrupted closing."""
    timer_log.load(end)
    with timer_log.segments.view(end) as view:
        for slot in _slots(wheel, replay_slot):
            walk = ffi.new("ts_chain_walk *")
            timer_log.segments.call(
                view, "timer log", lib.ts_wheel_recount, wheel.native, slot, walk
            )


def _slots(wheel: Wheel, replay_slot: int) -> Iterator[int]:
    at = replay_slot
    while (slot := wheel.next_used(at, NO_SLOT)) is not None:
        yield slot
        at = slot + 1


def _relinked_from(timer_log: TimerLog) -> int:
    """Return the position from which a broker relinks units: the last two files."""
    size = timer_log.segments.segment_bytes
    return max(timer_log.segments.begin, (timer_log.end - size) // size * size)


def _held(wheel: Wheel, timer_log: TimerLog, replay_slot: int) -> Int64Array:
    """Return the positions of all chained units in the files that a broker relinks, ascending."""
    begin = _relinked_from(timer_log)
    found = [np.empty(0, np.int64)]
    positions = np.empty(_BATCH, np.int64)
    with timer_log.segments.view(timer_log.end) as view:
        for slot in _slots(wheel, replay_slot):
            walk, got = ffi.new("ts_chain_walk *"), 1
            while got:
                got = timer_log.segments.call(
                    view,
                    "timer log",
                    lib.ts_wheel_chain_positions,
                    wheel.native,
                    slot,
                    begin,
                    ffi.from_buffer("int64_t[]", positions),
                    _BATCH,
                    walk,
                )
                found.append(positions[:got].copy())
    return np.sort(np.concatenate(found))


def _loose(
    wheel: Wheel, timer_log: TimerLog, replay_slot: int, held: Int64Array | None
) -> Iterator[Records]:
    """Yield the units outside the chains in the files that a broker relinks.

    `held` is the result of `_held`; without it C looks the units up in their slots.
    """
    at, following = _relinked_from(timer_log), ffi.new("int64_t *")
    with timer_log.segments.view(timer_log.end) as view:
        while at < timer_log.end:
            patches = np.empty(_BATCH, PATCH)
            count = timer_log.segments.call(
                view,
                "timer log",
                lib.ts_timer_log_unchained,
                wheel.native,
                at,
                following,
                replay_slot,
                ffi.NULL if held is None else ffi.from_buffer("int64_t[]", held),
                0 if held is None else len(held),
                ffi.from_buffer("ts_patch[]", patches),
                _BATCH,
            )
            at = int(following[0])
            yield patches[:count]


def _write(timer_log: TimerLog, patches: Records) -> None:
    for one in patches:
        timer_log.segments.write(int(one["pos"]), one["unit"].tobytes())
