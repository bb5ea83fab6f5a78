"""Far wheel: slots of many wheel slots, for what waits beyond the roll window.

    put, due in 300 days          a unit of 52 bytes here, in the far slot of its time
    no slot of the wheel is free  a unit here, parked; the message waits in the open slot
    its far slot comes near       its unit moves down: another of 52 bytes, on the wheel
    due                           handed over: the body is written the second time, and the last

Data:     units in timerstore/far/ (native/format/far_unit.h), chained backwards per slot; the slots
          in a table in memory, and as of each checkpoint in timerstore/far-0 or far-1
          (format/far_table.py).
Threads:  the Linker alone changes it; checkpoints copy the table; anybody reads units.
Locks:    the table and its numbers: the wheel's lock.
Holds:    (1) table, wheel, timer log's end and what was enqueued belong together, as all of them
          change in holds of the wheel's lock, and checkpoints copy them in one: so a message that
          moved down is there or here, after whatever crash, and needs no look at the wheel's
          frontier; (2) units are never changed; those of the last completed checkpoint's table
          stay until another is completed; (3) of two tables on disk the one that the watermark
          names is not written to; (4) the chain of what is parked has a far slot below 0, and is
          not taken from while the store is open: all of it is in the open slot, or dead. It is what
          comes down first when the store is opened again.
Fails:    CorruptError where a unit's CRC does not hold: the store stops, and its next opening makes
          the far wheel anew from the log; FullError when the disk is.
Source:   docs/decisions/0003-timing-wheel.md.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import far_table
from timerstore._engine.format.far_table import ROW, UNIT_BYTES, FarTable
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments, View
from timerstore._engine.timer.timer_arrays import FAR, Int64Array, Records
from timerstore._engine.timer.wheel import NO_SLOT
from timerstore.errors import CorruptError

SLOTS_MAX = 16_384
"""Far slots beyond the roll window: with default sizes 11 years. What is later waits in the last of
them, and gets another one when that comes near: it is looked at once in 11 years."""
_WIDTH_SHARE = 8  # of the roll window that a far slot is wide
_BATCH = 8192


class Chain(NamedTuple):
    """A far slot's units: each leads to the one before it, down to the oldest, whose previous one
    is -1. Units are added in front, and taken from there.
    """

    newest: int = -1
    oldest: int = -1
    size: int = 0


class Chains(NamedTuple):
    """The table at one moment."""

    rows: Records
    begin: int
    end: int
    ordered_from: int


class FarWheel(Owner):
    """The far wheel of one store."""

    def __init__(self, disk: Disk, tree: Tree, segment_bytes: int, reserve_bytes: int) -> None:
        self._disk = disk
        self._tree = tree
        self._reserve_bytes = reserve_bytes
        self.segments = Segments(disk, tree.far_log, segment_bytes, reserve_bytes)
        self._per_segment = segment_bytes // UNIT_BYTES
        self._chains: dict[int, Chain] = {}  # by far slot
        self._copied: tuple[int, Chain] | None = None  # the one that `tidy` copies to its slot's
        self._round_end = 0  # chains with older units than this are to be copied
        self._lowest: int | None = NO_SLOT  # far slot of all; None: to be looked for
        self.overflow_slot = -1  # far slot of the units that are parked
        self.begin = 0  # units below are dead, as of the last look
        self.end = 0  # number of the next unit
        self.width = 1  # wheel slots to a far slot
        self.count = 0  # units of all chains
        self.number = 0  # of the last completed checkpoint's table
        self._completed_begin = 0
        self.is_dirty = False  # the table is not what that one says
        self.was_used = False  # since the timer log was begun anew
        self.ordered_from = 0  # of the timer log: from here on units stand in their queue's order

    # --- opening ---

    def start_over_empty(self) -> None:
        """Empty; durable."""
        self.segments.close()
        tables = {self._tree.far_table(number) for number in (0, 1)}
        paths = [path for path in sorted(tables) if self._disk.exists(path)]
        paths += [self._tree.far_log / name for name in self._disk.list(self._tree.far_log)]
        for path in paths:
            self._disk.unlink(path)
        for folder in sorted({path.parent for path in paths}):
            self._disk.sync_directory(folder)
        # What was looked at may be mapped: nothing of it counts for files of the same names.
        size, reserve_bytes = self.segments.segment_bytes, self._reserve_bytes
        self.segments = Segments(self._disk, self._tree.far_log, size, reserve_bytes)
        self._chains, self._copied, self._lowest = {}, None, NO_SLOT
        self.overflow_slot = -1
        self.begin = self.end = self.count = self.number = 0
        self._completed_begin = self._round_end = 0
        self.is_dirty = self.was_used = False
        self.ordered_from = 0

    def load(self, number: int) -> bool:
        """Be what the table with this number says; False where it does not fit the files."""
        if number == 0:
            self.start_over_empty()
            return True
        raw = self._disk.read_small(self._tree.far_table(number))
        table = far_table.read(raw, number)
        if table is None or not self._fits(table):
            return False
        self._chains, self._copied, self._lowest = {}, None, None
        for slot, *chain in table.rows.tolist():
            if slot in self._chains:
                self._copied = slot, self._chains[slot]
            self._chains[slot] = Chain(*chain)
        self.release_overflow()
        self.begin, self.end, self.width = table.begin, table.end, table.width
        self.ordered_from = table.ordered_from
        self._completed_begin = table.begin
        self.count = int(table.rows["count"].sum())
        self.number, self.is_dirty, self.was_used = number, False, True
        self.segments.remove_below(self._offset(self.begin))
        self.segments.reserve_from(self._offset(self.end))
        return True

    def _fits(self, table: FarTable) -> bool:
        """Whether the files of all its units are there, and slots name units of them."""
        try:
            self.segments.load(needed=self._offset(table.end), is_derived=True)
        except CorruptError:
            return False
        if self.segments.has_incompatible_files:
            return False
        first, last = table.begin // self._per_segment, (table.end - 1) // self._per_segment
        needed = set(range(first, last + 1)) if table.begin < table.end else set()
        rows = table.rows
        return (
            needed <= set(self.segments.numbers)
            and 0 <= table.begin <= table.end
            and table.width > 0
            and bool(((rows["oldest"] >= table.begin) & (rows["newest"] < table.end)).all())
            and bool(((rows["count"] > 0) & (rows["oldest"] <= rows["newest"])).all())
            and len(rows) <= len(set(rows["slot"].tolist())) + 1
        )

    def fit_window(self, roll_slots: int) -> None:
        """Have the width that suits the roll window, where nothing waits at another."""
        if not self.count:
            self.width = max(1, roll_slots // _WIDTH_SHARE)

    # --- where units are ---

    def _offset(self, number: int) -> int:
        segment, at = divmod(number, self._per_segment)
        return segment * self.segments.segment_bytes + at * UNIT_BYTES

    def reserve(self, count: int) -> None:
        """Take the space of so many more units."""
        number, last = self.end, self.end + count
        while number < last:
            upto = min(last, (number // self._per_segment + 1) * self._per_segment)
            self.segments.reserve(self._offset(upto - 1) + UNIT_BYTES)
            number = upto

    def _write(self, number: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            left = self._per_segment - number % self._per_segment
            part = data[done : done + left * UNIT_BYTES]
            self.segments.write(self._offset(number), part)
            number += len(part) // UNIT_BYTES
            done += len(part)

    # --- chains, under the wheel's lock ---

    @property
    def lowest(self) -> int:
        """The lowest far slot that holds something; NO_SLOT: none does."""
        if self._lowest is None:
            self._lowest = min(self._slots - {self.overflow_slot}, default=NO_SLOT)
        return self._lowest

    @property
    def _slots(self) -> set[int]:
        """Far slots that hold something."""
        copied = () if self._copied is None else self._copied[:1]
        return self._chains.keys() | copied

    @property
    def first_wheel_slot(self) -> int:
        """Below this slot of the wheel nothing waits here."""
        lowest = self.lowest
        return NO_SLOT if lowest == NO_SLOT else lowest * self.width

    def add(self, units: Records) -> None:
        """Append units, each to its slot's chain; their space is reserved."""
        slots, first, places = np.unique(units["slot"], return_index=True, return_inverse=True)
        old = [self._chains.get(slot, Chain()) for slot in slots.tolist()]
        heads = np.array([chain.newest for chain in old], np.int64)
        data = np.empty(len(units) * UNIT_BYTES, np.uint8)
        where = np.ascontiguousarray(places.reshape(-1), np.int32)
        lib.ts_far_link(
            ffi.from_buffer("ts_far_unit[]", units),
            ffi.from_buffer("int32_t[]", where),
            len(units),
            self.end,
            ffi.from_buffer("int64_t[]", heads),
            ffi.from_buffer("uint8_t[]", data),
        )
        self._write(self.end, data.data)
        counts = np.bincount(where, minlength=len(old)).tolist()
        for at, (slot, chain) in enumerate(zip(slots.tolist(), old, strict=True)):
            oldest = chain.oldest if chain.size else self.end + int(first[at])
            self._chains[slot] = Chain(int(heads[at]), oldest, chain.size + counts[at])
        own = slots[slots != self.overflow_slot]
        if self._lowest is not None and len(own):
            self._lowest = min(self._lowest, int(own[0]))
        self.end += len(units)
        self.count += len(units)
        self.is_dirty = self.was_used = True

    def chain_of(self, slot: int) -> Chain:
        """Give the chain of a slot to be taken from."""
        if self._copied is not None and self._copied[0] == slot:
            return self._copied[1]
        return self._chains[slot]

    def take_off(self, slot: int, units: Records) -> None:
        """Take the newest units off the chain that `chain_of` gives."""
        chain = self.chain_of(slot)
        left = Chain(int(units["previous"][-1]), chain.oldest, chain.size - len(units))
        assert (left.newest < 0) == (left.size == 0), "a far slot's count is wrong"
        self._set(slot, left if left.size else None)
        self.count -= len(units)
        self.is_dirty = True

    @property
    def has_far(self) -> bool:
        """Whether anything waits for its far slot to come near."""
        return max(self._slots, default=-1) >= 0

    @property
    def has_overflow(self) -> bool:
        """Whether there are units of what was parked."""
        is_copied = self._copied is not None and self._copied[0] == self.overflow_slot
        return is_copied or self.overflow_slot in self._chains

    def drop_overflow(self) -> None:
        """Nothing of what was parked waits any more."""
        while self.has_overflow:  # and where it is being copied, both
            self.count -= self.chain_of(self.overflow_slot).size
            self._set(self.overflow_slot, None)
            self.is_dirty = True

    def note_linked_again(self, timer_log_end: int) -> None:
        """A message has a second unit in the timer log, which ends there now."""
        self.ordered_from = timer_log_end
        self.is_dirty = self.was_used = True

    def release_overflow(self) -> None:
        """Have what was parked come down before all else: it is not in the open slot, as far as
        anybody knows. What is parked from now on has a chain of its own.
        """
        self.overflow_slot = min(self._slots | {0}) - 1
        self._lowest = None

    def _set(self, slot: int, chain: Chain | None) -> None:
        is_copied = self._copied is not None and self._copied[0] == slot
        if chain is None:
            self._lowest = None
        if is_copied:
            self._copied = None if chain is None else (slot, chain)
        elif chain is None:
            del self._chains[slot]
        else:
            self._chains[slot] = chain

    def table(self) -> Chains:
        """Copy the table."""
        chains = sorted(self._chains.items())
        if self._copied is not None:
            chains = sorted([self._copied, *chains], key=lambda one: one[0])
        rows = np.array([(slot, *chain) for slot, chain in chains], ROW)
        self.begin = int(rows["oldest"].min(initial=self.end))
        return Chains(rows, self.begin, self.end, self.ordered_from)

    # --- reading units, without a lock ---

    def view(self) -> View:
        """Give a view of all units, for `walk`; files of chains that were copied stay meanwhile."""
        return self.segments.view(self._offset(self.end))

    def walk(self, view: Any, slot: int, newest: int) -> Iterator[Records]:
        """Give a chain's units, newest first, in parts."""
        number = ffi.new("int64_t *", newest)
        while number[0] >= 0:
            part = np.empty(_BATCH, FAR)
            got = lib.ts_far_walk(
                view, slot, number, _BATCH, ffi.from_buffer("ts_far_unit[]", part)
            )
            if got < 0:
                self.segments.serve(view, got, "far wheel")
            else:
                yield part[:got]

    def count_waiting(self, states: Any, log_begin: int) -> int:
        """How many units are of messages that still wait; CorruptError where one is damaged."""
        found = 0
        rows = self.table().rows.tolist()
        with self.view() as view:
            for slot, newest, *_ in rows:
                for part in self.walk(view, slot, newest):
                    units = ffi.from_buffer("ts_far_unit[]", part)
                    found += int(lib.ts_far_waiting(states, log_begin, units, len(part)))
        return found

    def first_of(self, slot: int) -> Records:
        """Read the first part of the chain that `chain_of` gives."""
        try:
            with self.view() as view:
                return next(self.walk(view, slot, self.chain_of(slot).newest))
        except CorruptError:
            self._distrust()
            raise

    def _distrust(self) -> None:
        """A unit is damaged: have the next opening make all this anew from the log, which has it
        all. Durable.
        """
        path = self._tree.far_table(self.number)
        if self.number and self._disk.exists(path):
            self._disk.unlink(path)
            self._disk.sync_directory(path.parent)

    def overflow_offsets(self, view: Any, rows: Records) -> Int64Array:
        """Where in the commit log that lies what a table calls parked."""
        parts = [np.empty(0, np.int64)]
        for slot, newest, *_ in rows[rows["slot"] < 0].tolist():
            parts += [part["log_offset"].copy() for part in self.walk(view, slot, newest)]
        return np.concatenate(parts)

    def scan(self, begin: int, end: int) -> Records:
        """Read units that follow each other."""
        units = np.empty(end - begin, FAR)
        done = 0
        with self.segments.view(self._offset(end)) as view:
            while done < len(units):
                out = ffi.from_buffer("ts_far_unit[]", units) + done
                got = lib.ts_far_scan(view, begin + done, len(units) - done, out)
                if got < 0:
                    self.segments.serve(view, got, "far wheel")
                else:
                    done += got
        return units

    # --- checkpoints ---

    def take(self) -> Chains | None:
        """Copy the table where it changed; under the wheel's lock."""
        if not self.is_dirty:
            return None
        self.is_dirty = False
        return self.table()

    def give_back(self, taken: Chains | None) -> None:
        """It could not be written."""
        self.is_dirty |= taken is not None

    def write(self, taken: Chains | None) -> int:
        """Write units and table, durably; the table's number for the watermark."""
        self.segments.sync()
        if taken is None:
            return self.number
        number = self.number + 1
        table = FarTable(number, taken.begin, taken.end, self.width, taken.ordered_from, taken.rows)
        self._disk.write_small(self._tree.far_table(number), far_table.write(table))
        return number

    def completed(self, taken: Chains | None, number: int) -> None:
        """The watermark names it now."""
        self.number = number
        if taken is not None:
            self._completed_begin = taken.begin

    # --- space ---

    def next_to_copy(self, overflow_count: int) -> int | None:
        """Give the slot whose chain is to be copied to the far log's end, so that what lies before
        it can go; None where that is not worth it. Under the wheel's lock. `parked`: how many of
        those that are parked still wait.

        It begins when more units are dead than alive, by two files, and goes on until every chain
        was: so each unit that dies has one copied.
        """
        if self._copied is not None:
            return self._copied[0]
        size = self._chains.get(self.overflow_slot, Chain()).size
        if size > 2 * overflow_count + 2 * self._per_segment:
            return self._begin_copy(self.overflow_slot)
        if self._round_end == 0:
            if self.end - self.begin <= 2 * self.count + 2 * self._per_segment:
                return None
            self._round_end = self.end
        slot = min(self._chains, key=lambda one: self._chains[one].oldest, default=None)
        if slot is None or self._chains[slot].oldest >= self._round_end:
            self._round_end = 0
            self.table()  # for where it begins now
            return None
        return self._begin_copy(slot)

    def _begin_copy(self, slot: int) -> int:
        self._copied = slot, self._chains.pop(slot)
        self.is_dirty = True
        return slot

    def unlink(self) -> bool:
        """Remove one file that the last completed checkpoint needs no more; whether there was."""
        self.segments.retire(self._offset(self._completed_begin))
        return self.segments.unlink_retired()

    def close(self) -> None:
        """Let go of files and maps."""
        self.segments.close()
