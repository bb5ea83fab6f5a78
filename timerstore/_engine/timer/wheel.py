"""The timing wheel: the ring of slots, and the position up to which it has been read.

The file is mapped privately. Memory changes at once; a checkpoint writes changed pages to the file.
While a store is open the file is 32 bytes longer, so that a broker rejects it.

Thread safety: enqueue-put links, dequeue-get reads, and checkpoints copy; each under `lock`.
Locking: `lock`, then the open slot's lock.
Invariants:
    1. Slots below `read_slot` have been read. `read_slot` is at most one slot after the current
       one, or after a slot that was begun before it was due (`read_ahead`).
    2. A slot is reused for a later lap only if nothing in it is needed, now or after a crash. This
       holds for slots below the completed replay slot. It also holds if the last completed
       checkpoint found the slot read, without undelivered messages, and no late message was linked
       into it since (`reading`).
Raises: ConfigError if the file has another size. FullError if its blocks cannot be allocated.
    CorruptError if units are counted and a slot is not valid.
On-disk format: native/format/wheel_slot.h; the file `timerwheel`
See also: docs/decisions/0003-timing-wheel.md
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import timer_unit, wheel_checks, wheel_slot
from timerstore._engine.format.wheel_checks import ENTRY_BYTES, SECTOR_BYTES, Checks
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.guarded_map import TruncationWatch
from timerstore._engine.timer.timer_arrays import Bytes, Int64Array
from timerstore.errors import ConfigError, CorruptError

# --- wheel check file ---
# Keep a checksum for each sector of the wheel's file, because slots have none.
#
# Thread safety: none; `Wheel.write` calls it from one thread at a time.
# Invariants:
#     1. An entry is durable before the sector that it describes is written.
# Raises: FullError if the disk is full. Damage raises no error; `fits` returns False.
# On-disk format: format/wheel_checks.py; the file timerstore/wheel
# See also: docs/decisions/0003-timing-wheel.md


_ENTRIES_A_SECTOR = SECTOR_BYTES // ENTRY_BYTES


class WheelChecks(NotCopyable):
    """The checksums of one wheel's file."""

    def __init__(self, disk: Disk, path: Path, held: Checks) -> None:
        """Read the entries. `held` has the checksums of the wheel's present sectors."""
        self._held = held
        size = wheel_checks.file_bytes(len(held))
        self._file = disk.open(path, create=True)
        entries = None
        if self._file.size() == size:
            entries = wheel_checks.read(self._file.read(0, size), len(held))
        self._is_read = self._is_whole = entries is not None
        if entries is None:
            self._file.resize(size)
            self._file.reserve(0, size)
            self._file.sync()
            disk.sync_directory(path.parent)
            entries = np.zeros(len(held), wheel_checks.ENTRY)
            entries["before"] = entries["now"] = held
        self._entries = entries
        self.completed = int(entries["number"].max(initial=0))
        """Number of the last write."""

    def fits(self, completed: int) -> bool:
        """Return whether every sector matches its entry after this number of complete writes.

        -1 means that the number is unknown; then nothing is compared.
        """
        if completed < 0:
            return True
        self.completed = max(self.completed, completed)
        return self._is_read and bool(
            wheel_checks.match(self._entries, self._held, completed).all()
        )

    def found(self, held: Checks) -> None:
        """Set the checksums of the sectors that are durable after a failed write."""
        self._held = held

    def unfinished(self) -> Int64Array:
        """Return the sectors that do not match their entries; the next write must write them."""
        sectors: Int64Array = np.flatnonzero(self._entries["now"] != self._held)
        return sectors

    def begin(self, sectors: Int64Array, data: Bytes) -> Checks:
        """Record that these sectors are about to be written; durable on return."""
        new = wheel_checks.compute(data.reshape(-1).data)[: len(sectors)]
        if self._is_whole and not len(sectors):
            return new
        entries = self._entries
        entries["before"][sectors] = self._held[sectors]
        entries["now"][sectors] = new
        entries["number"][sectors] = self.completed + 1
        if not self._is_whole:
            self._file.write(wheel_checks.write(entries), 0)
        else:
            blocks = np.unique(sectors // _ENTRIES_A_SECTOR)
            for run in np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1):
                first, last = int(run[0]), int(run[-1]) + 1
                part = entries[first * _ENTRIES_A_SECTOR : last * _ENTRIES_A_SECTOR]
                self._file.write(part.tobytes(), (first + 1) * SECTOR_BYTES)
        self._file.sync()
        self._file.check_in_place(wheel_checks.file_bytes(len(entries)))
        self._is_whole = True
        return new

    def complete(self, sectors: Int64Array, new: Checks) -> None:
        """Record that the sectors are durable."""
        self._held[sectors] = new
        self.completed += len(sectors) > 0

    def close(self) -> None:
        """Release the file."""
        del self._file


# --- wheel ---


SLOT_BYTES = wheel_slot.SLOT_BYTES
PAGE_BYTES = 4096
OPEN_EXTRA_BYTES = 32
NO_SLOT = 2**62
"""After every slot. The used slots may span more than a lap if the clock was set."""


def is_left_open(disk: Disk, path: Path, slot_count: int) -> bool:
    """Return whether the file has the length that it has while a store is open.

    If so, no broker has opened it since.
    """
    return disk.file_bytes(path) == slot_count * SLOT_BYTES + OPEN_EXTRA_BYTES


def has_length(disk: Disk, path: Path, slot_count: int) -> bool:
    """Return whether the file has the length of this many slots, in an open or closed store."""
    size = slot_count * SLOT_BYTES
    return disk.file_bytes(path) in (size, size + OPEN_EXTRA_BYTES)


class DirtyPages(NamedTuple):
    """Copies of the pages that changed since the last checkpoint."""

    pages: Int64Array
    data: Bytes


class ReadAhead(NamedTuple):
    """The slots that were read, and those undelivered, when a checkpoint began."""

    read_slot: int
    outstanding: Int64Array


class Wheel(NotCopyable):
    """The wheel of one store."""

    def __init__(
        self, disk: Disk, path: Path, checks: Path, slot_count: int, precision_ms: int
    ) -> None:
        """Map the wheel's file, and create it if needed. `checks` is the path of its checks."""
        self.path = path
        self.slot_count = slot_count
        self.precision_ms = precision_ms
        self.lock = Lock()
        self._ahead_slot = 0  # the last slot that was begun before it was due;
        self._ahead_from = 0  # it does not count if the current slot is below this one
        self.back_count = 0  # how often `read_slot` followed a clock that was set back
        self.completed_replay_slot = 0  # `replay_slot` of the last completed checkpoint
        self.reading = ReadAhead(0, np.empty(0, np.int64))  # at the last completed checkpoint
        self._begun_reading = self.reading  # at the last checkpoint that was begun
        # Read slots with late units, which the last completed checkpoint may not cover.
        self._late: set[int] = set()  # linked since the last checkpoint began
        self._late_before: set[int] = set()  # linked before that
        self._kept: Int64Array | None = None  # cached result of `kept`
        # Slots with messages that were linked elsewhere without a record in the log. Only the wheel
        # has this information, so recovery from the last completed checkpoint needs them unchanged.
        self.moved_on: set[int] = set()  # since the last checkpoint began
        self._moved_before: set[int] = set()  # before that, not covered by a completed checkpoint
        self._earliest: int | None = None  # cached result of `earliest_used`
        size = slot_count * SLOT_BYTES
        new = not disk.exists(path)
        self._file = disk.open(path, create=True)
        found = self._file.size()
        if found not in (0, size, size + OPEN_EXTRA_BYTES):
            raise ConfigError(
                f"wheel_slot_count: {path} has {found} bytes, wanted {size} for "
                f"{slot_count} slots of {SLOT_BYTES} bytes"
            )
        self._is_new = found == 0  # all zeros: empty slots
        self._file.resize(size + OPEN_EXTRA_BYTES)
        self._file.reserve(0, size)  # on a full tmpfs, reading a hole raises SIGBUS
        self._file.sync()
        if new:
            disk.sync_directory(path.parent)
        self._cuts = TruncationWatch(path)
        self._memory = self._file.map_private(size)
        self._view = ffi.from_buffer("uint8_t[]", self._memory, require_writable=True)
        raw = np.frombuffer(self._memory, np.uint8, size)
        sectors = (size + SECTOR_BYTES - 1) // SECTOR_BYTES
        held = np.zeros(sectors, np.uint32) if self._is_new else wheel_checks.compute(raw.data)
        self.checks = WheelChecks(disk, checks, held)
        self._is_torn = False
        self._dirty = np.zeros((size + PAGE_BYTES - 1) // PAGE_BYTES, np.uint8)
        self._dirty[self.checks.unfinished() * SECTOR_BYTES // PAGE_BYTES] = 1
        self._dirty_view = ffi.from_buffer("uint8_t[]", self._dirty)
        self._used = np.full((slot_count + 63) // 64, ~np.uint64(0), np.uint64)
        self._used_view = ffi.from_buffer("uint64_t[]", self._used)
        self.native: Any = ffi.new(
            "ts_wheel *",
            {
                "slots": self._view,
                "dirty_pages": self._dirty_view,
                "slot_count": slot_count,
                "precision_ms": precision_ms,
                "used": self._used_view,
            },
        )
        self.read_slot = 0

    @property
    def read_slot(self) -> int:
        """The number of the first slot that has not been read."""
        return self._read_slot

    @read_slot.setter
    def read_slot(self, slot: int) -> None:
        if slot < self.native.used_from:  # bits of slots that are needed again may be clear
            self._used[:] = ~np.uint64(0)
        self._read_slot = self.native.used_from = slot

    def clear_all(self) -> None:
        """Empty every slot; the next checkpoint writes the file."""
        if self._is_new:
            return
        ffi.memmove(self._view, bytes(self.slot_count * SLOT_BYTES), self.slot_count * SLOT_BYTES)
        self._dirty[:] = 1

    def read_ahead(self, now_slot: int, tolerance_slots: int) -> None:
        """Allow `read_slot` to be ahead of the current slot, after slots were read early.

        It stays ahead unless the clock is set back by more than `tolerance_slots`. The caller holds
        `lock`.
        """
        self._ahead_slot, self._ahead_from = self.read_slot - 1, now_slot - tolerance_slots

    def is_beyond(self, now_slot: int) -> bool:
        """Return whether read slots are in the future again, because the clock was set back."""
        ahead_slot = self._ahead_slot if now_slot >= self._ahead_from else 0
        return self.read_slot > max(now_slot, ahead_slot) + 1

    def read_back(self, now_slot: int, outstanding: Callable[[], Int64Array]) -> bool:
        """Set `read_slot` back to the current slot, as a broker that continues from here needs it.

        Otherwise this is the same as `follow_back`. The caller holds `lock`.
        """
        self._ahead_slot = 0
        return self.follow_back(now_slot, outstanding)

    def follow_back(self, now_slot: int, outstanding: Callable[[], Int64Array]) -> bool:
        """If the clock was set back, set `read_slot` back to the slot after the current one.

        Return whether it was set back; then the open slot must follow, too. The caller holds
        `lock`.

        Messages that are put from now on get the slots of their due times, as if these had not been
        read. A slot without `outstanding` messages is emptied: its messages are in the log, or had
        another place at the last completed checkpoint. The other slots keep their units for a
        recovery and are read a second time. A message that is loaded twice is delivered once,
        because its state decides.
        """
        if not self.is_beyond(now_slot):
            return False
        moved = np.array(sorted(self.moved_on | self._moved_before), np.int64)
        kept = np.union1d(outstanding(), moved)
        lib.ts_wheel_empty(
            self.native,
            now_slot + 1,
            self.read_slot,
            ffi.from_buffer("int64_t[]", kept),
            len(kept),
        )
        self.read_slot = now_slot + 1
        self._ahead_slot = 0
        # Slots that will be read a second time are needed again.
        self.reading = self.reading._replace(read_slot=min(self.reading.read_slot, self.read_slot))
        begun = self._begun_reading
        self._begun_reading = begun._replace(read_slot=min(begun.read_slot, self.read_slot))
        self.back_count += 1
        self._earliest = None
        return True

    def start_at(self, read_slot: int) -> None:
        """Continue reading from this slot, which is that of the last completed checkpoint."""
        self.read_slot = self.completed_replay_slot = read_slot
        self.reading = self._begun_reading = ReadAhead(read_slot, np.empty(0, np.int64))

    def read_through(self, slot: int) -> None:
        """Mark the slots up to this one as read."""
        self.read_slot, self._earliest = slot + 1, None

    def note_used(self, slot: int) -> None:
        """Note that a slot is used, which may be the earliest."""
        if self._earliest is not None:
            self._earliest = min(self._earliest, slot)

    def earliest_used(self) -> int:
        """Return the earliest used slot at or above the read_slot, or NO_SLOT."""
        if self._earliest is None:
            found = self.next_used(self.read_slot, NO_SLOT)
            self._earliest = NO_SLOT if found is None else found
        return self._earliest

    def checkpoint_begins(self, outstanding: Int64Array) -> None:
        """Note that a checkpoint begins, which covers all changes so far. The caller holds `lock`.

        outstanding: the slots with undelivered messages.
        """
        self._moved_before |= self.moved_on
        self.moved_on = set()
        self._late_before |= self._late
        self._late = set()
        self._begun_reading = ReadAhead(self.read_slot, outstanding)

    def checkpoint_completed(self, replay_slot: int) -> None:
        """Note that the last begun checkpoint is completed; recovery reads from `replay_slot`."""
        with self.lock:
            self.completed_replay_slot = replay_slot
            self._moved_before.clear()
            self._late_before.clear()
            self.reading = self._begun_reading
            self._kept = None

    def note_late(self, slots: list[int]) -> None:
        """Note that late messages were linked into read slots. The caller holds `lock`."""
        if not self._late.issuperset(slots):  # in most cases it is the current slot again
            self._late.update(slots)
            self._kept = None

    def kept(self) -> Int64Array:
        """Return slots below `reading.read_slot` that must not be reused, ascending.

        The caller holds `lock`.
        """
        if self._kept is None:
            late = np.array(sorted(self._late | self._late_before), np.int64)
            self._kept = np.union1d(self.reading.outstanding, late)
        return self._kept

    def next_used(self, begin: int, end: int) -> int | None:
        """Return the first used slot in [begin, end), or None."""
        slot = int(lib.ts_wheel_next(self.native, begin, end))
        self._cuts.check()
        return None if slot < 0 else slot

    def next_used_many(self, begin: int, end: int, count_max: int) -> list[tuple[int, int]]:
        """Return the first used slots in [begin, end), at most `count_max`, ascending.

        Each has the number of units that the slot claims, which is a hint.
        """
        slots, units = ffi.new("int64_t[]", count_max), ffi.new("int64_t[]", count_max)
        count = lib.ts_wheel_next_many(self.native, begin, end, slots, units, count_max)
        self._cuts.check()
        return [(slots[at], max(units[at], 0)) for at in range(count)]

    def next_burst(self, begin: int, end: int, count_min: int) -> tuple[int, int] | None:
        """Return the first slot in [begin, end) that claims at least `count_min` units, or None.

        Return the slot and its claimed number of units. The range is at most one lap.
        """
        count = ffi.new("int32_t *")
        slot = int(lib.ts_wheel_burst(self.native, begin, end, count_min, count))
        return None if slot < 0 else (slot, int(count[0]))

    def units_from(self, begin: int, timer_log_end: int) -> int:
        """Return the number of units that slots at or above `begin` claim.

        The number alone does not prove that no slot was lost, because cancelled messages may make
        up for lost ones. Therefore each slot is checked.

        Raises:
            CorruptError: a slot has a time that does not belong to its index, or claims a chain
                that cannot exist in the timer log.
        """
        slots = wheel_slot.read(ffi.buffer(self._view))
        rows = np.flatnonzero(slots["count"] > 0)
        used = slots[rows]
        time = used["time"]
        end = NO_SLOT // self.precision_ms  # later slots are not read; their ms would overflow
        is_bad = (time < 0) | (time >= end) | (time % self.slot_count != rows)
        if is_bad.any():
            row = int(rows[np.argmax(is_bad)])
            raise CorruptError(
                "timer wheel: a slot",
                where=f"{self.path} offset {row * SLOT_BYTES}",
                wanted=f"a time that is {row} modulo {self.slot_count}",
                got=int(time[is_bad][0]),
            )
        rows, used = rows[time >= begin], used[time >= begin]
        first, last = (used[name].astype(np.int64) for name in ("first_pos", "last_pos"))
        count = used["count"].astype(np.int64)
        is_in = (last >= 0) & (last <= timer_log_end - timer_unit.UNIT_BYTES) & (first <= last)
        span = last - np.maximum(np.where(is_in, first, last), 0)
        is_bad = ~is_in | (count > span // timer_unit.UNIT_BYTES + 1)
        if is_bad.any():
            at = int(rows[np.argmax(is_bad)]) * SLOT_BYTES
            raise CorruptError(
                "timer wheel: a slot",
                where=f"{self.path} offset {at}",
                wanted=f"positions in the {timer_log_end} bytes of the timer log",
                got=f"first {first[is_bad][0]}, last {last[is_bad][0]}, count {count[is_bad][0]}",
            )
        return int(count.sum())

    def copy_dirty(self) -> DirtyPages:
        """Copy the pages that changed. The caller holds `lock`."""
        count = int(np.count_nonzero(self._dirty))
        pages = np.empty(max(1, count), np.int64)
        data = np.zeros((max(1, count), PAGE_BYTES), np.uint8)
        count = lib.ts_wheel_copy_dirty(
            self.native,
            ffi.from_buffer("int64_t[]", pages),
            ffi.from_buffer("uint8_t[]", data),
            count,
        )
        return DirtyPages(pages[:count], data[:count])

    def mark_dirty(self, dirty: DirtyPages) -> None:
        """Mark pages as changed, because their copies could not be written."""
        self._dirty[dirty.pages] = 1

    def write(self, dirty: DirtyPages) -> None:
        """Write copied pages to the file, durably."""
        size = self.slot_count * SLOT_BYTES
        pages = dirty.pages
        per_page = PAGE_BYTES // SECTOR_BYTES
        sectors = (pages[:, np.newaxis] * per_page + np.arange(per_page)).reshape(-1)
        sectors = sectors[sectors * SECTOR_BYTES < size]
        if self._is_torn:  # an earlier write failed at an unknown position
            self._file.sync()
            self.checks.found(wheel_checks.compute(self._file.read(0, size)))
        checks = self.checks.begin(sectors, dirty.data)
        self._is_torn = True
        edges = np.flatnonzero(np.diff(pages) != 1) + 1
        for run in np.split(np.arange(len(pages)), edges) if len(pages) else []:
            begin = int(pages[run[0]]) * PAGE_BYTES
            raw = dirty.data[run[0] : run[-1] + 1].reshape(-1)[: size - begin]
            self._file.write(np.ascontiguousarray(raw).data, begin)
        self._file.sync()
        self._file.check_in_place(size + OPEN_EXTRA_BYTES)
        self.checks.complete(sectors, checks)
        self._is_torn = False

    def close(self, *, as_broker_wants: bool) -> None:
        """Unmap the file. If `as_broker_wants`, give it the length that a broker accepts."""
        try:
            if as_broker_wants:
                self._file.resize(self.slot_count * SLOT_BYTES)
                self._file.sync()
        finally:
            ffi.release(self._view)
            self._memory.close()
            self.checks.close()
            del self._file
