"""Wheel: the ring of slots, and how far it has been read.

Data:     native/format/wheel_slot.h; `timerwheel`, mapped privately: memory changes at once, the
          file at checkpoints, by pages. While a store is open the file is 32 bytes longer, so that
          a broker refuses it.
Threads:  enqueue-put links, dequeue-get loads, checkpoints copy: each under `lock`.
Locks:    lock, then the open slot's.
Holds:    (1) slots below `frontier` have been read, and it is one ahead of the present at most, or
          of a slot that was begun before its time (`read_ahead`); (2) a slot is overwritten for a
          later lap only where nothing in it is needed, now or after a crash: below the completed
          read slot; and where the last completed checkpoint found it read and not outstanding, and
          nothing late was linked in it since (`reading`).
Fails:    ConfigError on a file of another size; FullError where its blocks cannot be had;
          CorruptError where its slots are counted, and one holds noise.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import timer_unit, wheel_checks, wheel_slot
from timerstore._engine.format.wheel_checks import SECTOR_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.guarded_map import TruncationWatch
from timerstore._engine.timer.timer_arrays import Bytes, Int64Array
from timerstore._engine.timer.wheel_check_file import WheelChecks
from timerstore.errors import ConfigError, CorruptError

SLOT_BYTES = wheel_slot.SLOT_BYTES
UNIT_BYTES = timer_unit.UNIT_BYTES
PAGE_BYTES = 4096
OPEN_EXTRA_BYTES = 32
NO_SLOT = 2**62
"""Beyond every slot. The slots in use may span more than a lap where the clock was turned."""


def is_left_open(disk: Disk, path: Path, slot_count: int) -> bool:
    """Whether the file is as we have it while a store is open: nobody else has opened it since."""
    return disk.file_bytes(path) == slot_count * SLOT_BYTES + OPEN_EXTRA_BYTES


def has_length(disk: Disk, path: Path, slot_count: int) -> bool:
    """Whether the file is as long as so many slots are; an open store's, or a closed one's."""
    size = slot_count * SLOT_BYTES
    return disk.file_bytes(path) in (size, size + OPEN_EXTRA_BYTES)


class DirtyPages(NamedTuple):
    """Copies of the pages that changed since the last checkpoint."""

    pages: Int64Array
    data: Bytes


class Reading(NamedTuple):
    """What was read when a checkpoint began."""

    frontier: int
    outstanding: Int64Array


class Wheel(Owner):
    """The wheel of one store."""

    def __init__(
        self, disk: Disk, path: Path, checks: Path, slot_count: int, precision_ms: int
    ) -> None:
        """`checks`: the file of its checks."""
        self.path = path
        self.slot_count = slot_count
        self.precision_ms = precision_ms
        self.lock = Lock()
        self.frontier = 0
        self._ahead_slot = 0  # the last that was begun before its time
        self._ahead_from = 0  # unless it is earlier than this slot by now
        self.back_count = 0  # how often `frontier` followed a clock that was set back
        self.completed_read_slot = 0  # R of the last completed checkpoint
        self.reading = Reading(0, np.empty(0, np.int64))  # as that one found it
        self._begun_reading = self.reading  # as the one that is under way did
        self._late: set[int] = set()  # slots that took late units since a checkpoint began
        self._late_before: set[int] = set()  # and before, what no completed one knows of
        self._kept: Int64Array | None = None  # of all that is read what is needed; or unknown
        # Slots of which messages got another place without a record in the log: the wheel alone
        # tells, so that a recovery from the last completed checkpoint needs them as they are.
        self.moved_on: set[int] = set()  # since the last checkpoint began
        self._moved_before: set[int] = set()  # what no completed one covers yet
        self._earliest: int | None = None  # no used slot at or above `frontier` lies below
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
        self._file.reserve(0, size)  # on a full tmpfs a look at a hole is a SIGBUS
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
        self.native: Any = ffi.new("ts_wheel *")
        self.native.slots = self._view
        self.native.dirty_pages = self._dirty_view
        self.native.slot_count = slot_count
        self.native.precision_ms = precision_ms

    def clear_all(self) -> None:
        """Empty every slot; written at the next checkpoint."""
        if self._is_new:
            return
        ffi.memmove(self._view, bytes(self.slot_count * SLOT_BYTES), self.slot_count * SLOT_BYTES)
        self._dirty[:] = 1

    def read_ahead(self, now_slot: int, tolerance_slots: int) -> None:
        """The frontier goes beyond the present on purpose, and stays there, unless the clock is set
        back by more than so many slots; under `lock`.
        """
        self._ahead_slot, self._ahead_from = self.frontier - 1, now_slot - tolerance_slots

    def is_beyond(self, now_slot: int) -> bool:
        """Tell whether what has been read lies ahead again, as the clock was set back."""
        ahead_slot = self._ahead_slot if now_slot >= self._ahead_from else 0
        return self.frontier > max(now_slot, ahead_slot) + 1

    def read_back(self, now_slot: int, outstanding: Callable[[], Int64Array]) -> bool:
        """Have nothing read before its time, as a broker has it that goes on from here; under
        `lock`; as `follow_back`.
        """
        self._ahead_slot = 0
        return self.follow_back(now_slot, outstanding)

    def follow_back(self, now_slot: int, outstanding: Callable[[], Int64Array]) -> bool:
        """Where the clock was set back, what has been read already lies ahead again; under `lock`;
        whether it was: then the open slot has to hear of it.

        What is put from now on gets the slot of its time there, as if nothing had been read. A slot
        of which nothing is `outstanding` is emptied: its messages are in the log, or had another
        place at the last completed checkpoint, and nobody needs its units again. The others keep
        theirs for a recovery; they are read twice, and a message that is loaded twice is handed
        over once, by its state.
        """
        if not self.is_beyond(now_slot):
            return False
        moved = np.array(sorted(self.moved_on | self._moved_before), np.int64)
        kept = np.union1d(outstanding(), moved)
        lib.ts_wheel_empty(
            self.native,
            now_slot + 1,
            self.frontier,
            ffi.from_buffer("int64_t[]", kept),
            len(kept),
        )
        self.frontier = now_slot + 1
        self._ahead_slot = 0
        # What is read a second time is needed again.
        self.reading = self.reading._replace(frontier=min(self.reading.frontier, self.frontier))
        begun = self._begun_reading
        self._begun_reading = begun._replace(frontier=min(begun.frontier, self.frontier))
        self.back_count += 1
        self._earliest = None
        return True

    def start_at(self, read_slot: int) -> None:
        """Read slots from here on, as the last completed checkpoint says."""
        self.frontier = self.completed_read_slot = read_slot
        self.reading = self._begun_reading = Reading(read_slot, np.empty(0, np.int64))

    def read_through(self, slot: int) -> None:
        """Count the slots up to this one as read."""
        self.frontier, self._earliest = slot + 1, None

    def note_used(self, slot: int) -> None:
        """Note that a slot is used, which may be the earliest."""
        if self._earliest is not None:
            self._earliest = min(self._earliest, slot)

    def earliest_used(self) -> int:
        """Return the earliest used slot at or above the frontier, or NO_SLOT."""
        if self._earliest is None:
            found = self.next_used(self.frontier, NO_SLOT)
            self._earliest = NO_SLOT if found is None else found
        return self._earliest

    def checkpoint_begins(self, outstanding: Int64Array) -> None:
        """What moved on so far will be covered by the one that begins; under `lock`."""
        self._moved_before |= self.moved_on
        self.moved_on = set()
        self._late_before |= self._late
        self._late = set()
        self._begun_reading = Reading(self.frontier, outstanding)

    def checkpoint_completed(self, read_slot: int) -> None:
        """It goes on from `read_slot`; no other has begun since."""
        with self.lock:
            self.completed_read_slot = read_slot
            self._moved_before.clear()
            self._late_before.clear()
            self.reading = self._begun_reading
            self._kept = None

    def took_late(self, slots: list[int]) -> None:
        """Slots that were read have units again that are needed; under `lock`."""
        if not self._late.issuperset(slots):  # most often it is the present one, again
            self._late.update(slots)
            self._kept = None

    def kept(self) -> Int64Array:
        """Of the slots below the frontier of `reading`, those that are needed as they are,
        ascending; under `lock`.
        """
        if self._kept is None:
            late = np.array(sorted(self._late | self._late_before), np.int64)
            self._kept = np.union1d(self.reading.outstanding, late)
        return self._kept

    def next_used(self, begin: int, end: int) -> int | None:
        """Give the first used slot in [begin, end)."""
        slot = int(lib.ts_wheel_next(self.native, begin, end))
        self._cuts.check()
        return None if slot < 0 else slot

    def next_used_many(self, begin: int, end: int, count_max: int) -> tuple[Int64Array, Int64Array]:
        """Give the first used slots in [begin, end), at most so many, ascending; and how many units
        each says it holds: a hint.
        """
        slots, units = np.empty(count_max, np.int64), np.empty(count_max, np.int64)
        natives = (ffi.from_buffer("int64_t[]", one) for one in (slots, units))
        count = lib.ts_wheel_next_many(self.native, begin, end, *natives, count_max)
        self._cuts.check()
        return slots[:count], units[:count].clip(0)

    def next_burst(self, begin: int, end: int, count_min: int) -> tuple[int, int] | None:
        """Give the first slot in [begin, end), at most a lap, that says it holds so many units, and
        how many those are.
        """
        count = ffi.new("int32_t *")
        slot = int(lib.ts_wheel_crowd(self.native, begin, end, count_min, count))
        return None if slot < 0 else (slot, int(count[0]))

    def units_from(self, begin: int, timer_log_end: int) -> int:
        """Count the units of slots at or above `begin`, as they say. CorruptError where one has a
        time that its place cannot have, or says what no chain in the timer log can be: noise. Sums
        alone do not tell: what was cancelled may count, and hide as many that are lost.
        """
        slots = wheel_slot.read(ffi.buffer(self._view))
        rows = np.flatnonzero(slots["count"] > 0)
        used = slots[rows]
        time = used["time"]
        end = NO_SLOT // self.precision_ms  # beyond it nobody looks, or its time in ms overflows
        is_bad = (time < 0) | (time >= end) | (time % self.slot_count != rows)
        if is_bad.any():
            row = int(rows[np.argmax(is_bad)])
            raise CorruptError(
                "timer wheel: a slot",
                where=f"{self.path} offset {row * SLOT_BYTES}",
                wanted=f"a time that leaves {row} over {self.slot_count} slots",
                got=int(time[is_bad][0]),
            )
        rows, used = rows[time >= begin], used[time >= begin]
        first, last = (used[name].astype(np.int64) for name in ("first_pos", "last_pos"))
        count = used["count"].astype(np.int64)
        is_in = (last >= 0) & (last <= timer_log_end - UNIT_BYTES) & (first <= last)
        span = last - np.maximum(np.where(is_in, first, last), 0)
        is_bad = ~is_in | (count > span // UNIT_BYTES + 1)
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
        """Copy what changed; under `lock`."""
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
        """Take back copies that could not be written."""
        self._dirty[dirty.pages] = 1

    def write(self, dirty: DirtyPages) -> None:
        """Write copied pages to the file, durably."""
        size = self.slot_count * SLOT_BYTES
        pages = dirty.pages
        per_page = PAGE_BYTES // SECTOR_BYTES
        sectors = (pages[:, np.newaxis] * per_page + np.arange(per_page)).reshape(-1)
        sectors = sectors[sectors * SECTOR_BYTES < size]
        if self._is_torn:  # by a write that failed: who knows how far it came
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
        """Unmap; the file gets the length that a broker takes where it may open it."""
        try:
            if as_broker_wants:
                self._file.resize(self.slot_count * SLOT_BYTES)
                self._file.sync()
        finally:
            ffi.release(self._view)
            self._memory.close()
            self.checks.close()
            del self._file
