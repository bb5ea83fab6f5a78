"""Keep messages that are due after the roll window in far slots, which are many wheel slots wide.

    put, due in 300 days          a unit of 52 bytes is added here, in the far slot of the due time
    no wheel slot is free         a unit is added to the overflow; the message is in the open slot
    the far slot comes near       the message gets a unit of 52 bytes on the wheel
    due                           delivered: the body is written for the second and last time

Each far slot has a chain of units, linked backwards. The table of chains is in memory, and on disk
as of each checkpoint. The overflow's chain has a far slot below 0. While the store is open, no unit
is taken from that chain, because its messages are in the open slot, or are no longer pending. After
the next opening, the overflow comes down before all other units.

Thread safety: only the linker changes the far wheel; checkpoints copy the table, and any thread
    reads units.
Locking: the wheel's lock protects the table and the unit numbers.
Invariants:
    1. The table, the wheel, `timer_log_end` and `linked_offset` change together under the wheel's
       lock, and a checkpoint copies them together. After any crash, a message that moved down is
       either here or on the wheel, so recovery need not compare it with the read slot.
    2. Units never change. The units of the last completed checkpoint's table stay until another
       checkpoint is completed.
    3. There are two tables on disk. The one that the watermark names is not written to.
Raises: FullError if the disk is full. CorruptError if a unit's CRC is wrong: the store fails, and
    the next opening rebuilds the far wheel from the log.
On-disk format: far_log.py for the units; timerstore/far-0 and far-1 (format/far_table.py)
See also: docs/decisions/0003-timing-wheel.md
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import far_table
from timerstore._engine.format.far_table import ROW, FarTable
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments, View
from timerstore._engine.timer.far_log import Chain, FarLog
from timerstore._engine.timer.timer_arrays import Int64Array, Records
from timerstore._engine.timer.wheel import NO_SLOT
from timerstore.errors import CorruptError

SLOTS_MAX = 16_384
"""Number of far slots past the roll window: 11 years with default sizes.

A later message waits in the last far slot and is linked again when that comes near, every 11 years.
"""
_WIDTH_SHARE = 8  # the roll window is this many far slots long
_BATCH = 8192


class FarWheel(NotCopyable):
    """The far wheel of one store."""

    def __init__(
        self,
        disk: Disk,
        tree: Tree,
        segment_bytes: int,
        reserve_bytes: int,
        segments: Segments | None = None,
    ) -> None:
        self._disk = disk
        self._tree = tree
        self._log = FarLog(disk, tree.far_log, segment_bytes, reserve_bytes, segments)
        self.width = 1  # wheel slots to a far slot
        self._begin_empty()

    def _begin_empty(self) -> None:
        self._chains: dict[int, Chain] = {}  # by far slot
        self._copied: tuple[int, Chain] | None = None  # the chain that `tidy_far` is copying
        self._round_end = 0  # chains with older units than this are copied
        self._lowest: int | None = NO_SLOT  # the lowest used far slot; None if unknown
        self.overflow_slot = -1  # far slot of the overflow's units
        self.begin = 0  # units below are dead, as of the last copy of the table
        self.end = 0  # number of the next unit
        self.count = 0  # units of all chains
        self.number = 0  # of the last completed checkpoint's table
        self._completed_begin = 0
        self.is_dirty = False  # the table has changed since that checkpoint
        self.was_used = False  # since the timer log was last rebuilt
        self.ordered_from = 0  # timer log units from this position on are in queue order

    @property
    def segments(self) -> Segments:
        """The files of the far log."""
        return self._log.segments

    # --- opening ---

    def start_over_empty(self) -> None:
        """Remove all units and tables; durable on return."""
        self.segments.close()
        tables = {self._tree.far_table(number) for number in (0, 1)}
        paths = [path for path in sorted(tables) if self._disk.exists(path)]
        paths += [self._tree.far_log / name for name in self._disk.list(self._tree.far_log)]
        for path in paths:
            self._disk.unlink(path)
        for folder in sorted({path.parent for path in paths}):
            self._disk.sync_directory(folder)
        self._log.forget_files()
        self._begin_empty()

    def load(self, number: int) -> bool:
        """Load the table with this number. Return False if it does not match the files."""
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
        self.segments.remove_below(self._log.offset_of(self.begin))
        self.segments.reserve_from(self._log.offset_of(self.end))
        return True

    def _fits(self, table: FarTable) -> bool:
        """Return whether all files of the table's units exist, and its chains name such units."""
        try:
            self.segments.load(needed=self._log.offset_of(table.end), is_derived=True)
        except CorruptError:
            return False
        if self.segments.has_incompatible_files:
            return False
        first, last = (
            table.begin // self._log.units_per_segment,
            (table.end - 1) // self._log.units_per_segment,
        )
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
        """Set the width of far slots for this roll window, unless there are units already."""
        if not self.count:
            self.width = max(1, roll_slots // _WIDTH_SHARE)

    def reserve(self, count: int) -> None:
        """Reserve disk space for `count` more units."""
        self._log.reserve(self.end, count)

    # --- chains, under the wheel's lock ---

    @property
    def lowest(self) -> int:
        """The lowest far slot with units, without the overflow, or NO_SLOT."""
        if self._lowest is None:
            self._lowest = min(self._slots - {self.overflow_slot}, default=NO_SLOT)
        return self._lowest

    @property
    def _slots(self) -> set[int]:
        """Far slots with units."""
        copied = () if self._copied is None else self._copied[:1]
        return self._chains.keys() | copied

    @property
    def first_wheel_slot(self) -> int:
        """The first wheel slot that may have messages here."""
        lowest = self.lowest
        return NO_SLOT if lowest == NO_SLOT else lowest * self.width

    def add(self, units: Records) -> None:
        """Append units, each to the chain of its slot; their space is reserved."""
        slots, first, places = np.unique(units["slot"], return_index=True, return_inverse=True)
        old = [self._chains.get(slot, Chain()) for slot in slots.tolist()]
        heads = np.array([chain.newest for chain in old], np.int64)
        where = np.ascontiguousarray(places.reshape(-1), np.int32)
        self._log.append(self.end, units, where, heads)
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
        """Return the chain of a slot from which units are taken."""
        if self._copied is not None and self._copied[0] == slot:
            return self._copied[1]
        return self._chains[slot]

    def take_off(self, slot: int, units: Records) -> None:
        """Remove the newest units from the chain that `chain_of` returns."""
        chain = self.chain_of(slot)
        left = Chain(int(units["previous"][-1]), chain.oldest, chain.size - len(units))
        assert (left.newest < 0) == (left.size == 0), "a far slot's count is wrong"
        self._set(slot, left if left.size else None)
        self.count -= len(units)
        self.is_dirty = True

    @property
    def has_far(self) -> bool:
        """Whether any far slot has units; the overflow does not count."""
        return max(self._slots, default=-1) >= 0

    @property
    def has_overflow(self) -> bool:
        """Whether the overflow has units."""
        is_copied = self._copied is not None and self._copied[0] == self.overflow_slot
        return is_copied or self.overflow_slot in self._chains

    def drop_overflow(self) -> None:
        """Drop the overflow's chain; none of its messages is pending."""
        while self.has_overflow:  # there are two chains while one is being copied
            self.count -= self.chain_of(self.overflow_slot).size
            self._set(self.overflow_slot, None)
            self.is_dirty = True

    def note_linked_again(self, timer_log_end: int) -> None:
        """Note that a message got a second unit in the timer log, which now ends here."""
        self.ordered_from = timer_log_end
        self.is_dirty = self.was_used = True

    def release_overflow(self) -> None:
        """Let the overflow come down before all other units, as its messages may not be in memory.

        The overflow gets a new, lower far slot for later messages.
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

    def table(self) -> FarTable:
        """Copy the table, as the next checkpoint would write it."""
        chains = sorted(self._chains.items())
        if self._copied is not None:
            chains = sorted([self._copied, *chains], key=lambda one: one[0])
        rows = np.array([(slot, *chain) for slot, chain in chains], ROW)
        self.begin = int(rows["oldest"].min(initial=self.end))
        return FarTable(self.number + 1, self.begin, self.end, self.width, self.ordered_from, rows)

    # --- reading units, without a lock ---

    def view(self) -> View:
        """Return a view of all units for `walk`; it keeps files that are removed later."""
        return self._log.view(self.end)

    def walk(self, view: Any, slot: int, newest: int) -> Iterator[Records]:
        """Yield the units of a chain, newest first, in parts."""
        return self._log.walk(view, slot, newest, _BATCH)

    def count_pending(self, states: Any, log_begin: int) -> int:
        """Count the units of pending messages.

        Raises:
            CorruptError: a unit is damaged.
        """
        found = 0
        rows = self.table().rows.tolist()
        with self.view() as view:
            for slot, newest, *_ in rows:
                for part in self.walk(view, slot, newest):
                    units = ffi.from_buffer("ts_far_unit[]", part)
                    found += int(lib.ts_far_pending(states, log_begin, units, len(part)))
        return found

    def first_of(self, slot: int) -> Records:
        """Read the newest units of the chain that `chain_of` returns."""
        try:
            with self.view() as view:
                return next(self.walk(view, slot, self.chain_of(slot).newest))
        except CorruptError:
            # Without its table, the next opening rebuilds the far wheel from the log.
            path = self._tree.far_table(self.number)
            if self.number and self._disk.exists(path):
                self._disk.remove(path)
            raise

    def overflow_offsets(self, view: Any, rows: Records) -> Int64Array:
        """Return the log offsets of the messages that a table has in the overflow."""
        parts = [np.empty(0, np.int64)]
        for slot, newest, *_ in rows[rows["slot"] < 0].tolist():
            parts += [part["log_offset"].copy() for part in self.walk(view, slot, newest)]
        return np.concatenate(parts)

    # --- checkpoints ---

    def take(self) -> FarTable | None:
        """Copy the table if it has changed. The caller holds the wheel's lock."""
        if not self.is_dirty:
            return None
        self.is_dirty = False
        return self.table()

    def give_back(self, taken: FarTable | None) -> None:
        """Count the table as changed, because its copy could not be written."""
        self.is_dirty |= taken is not None

    def write(self, taken: FarTable | None) -> int:
        """Write units and table, durably. Return the table's number for the watermark."""
        self.segments.sync()
        if taken is None:
            return self.number
        self._disk.write_small(self._tree.far_table(taken.number), far_table.write(taken))
        return taken.number

    def completed(self, taken: FarTable | None, number: int) -> None:
        """Note that the watermark which names this table is durable."""
        self.number = number
        if taken is not None:
            self._completed_begin = taken.begin

    # --- space ---

    def next_to_copy(self, overflow_count: int) -> int | None:
        """Return the slot whose chain should be copied to the end of the far log, or None.

        Copying lets old files be removed. It begins when the dead units outnumber the living by two
        files, and continues until every chain was copied. At most one unit is copied for each unit
        that dies. The caller holds the wheel's lock.

        overflow_count: how many messages of the overflow are pending.
        """
        if self._copied is not None:
            return self._copied[0]
        size = self._chains.get(self.overflow_slot, Chain()).size
        if size > 2 * overflow_count + 2 * self._log.units_per_segment:
            return self._begin_copy(self.overflow_slot)
        if self._round_end == 0:
            if self.end - self.begin <= 2 * self.count + 2 * self._log.units_per_segment:
                return None
            self._round_end = self.end
        slot = min(self._chains, key=lambda one: self._chains[one].oldest, default=None)
        if slot is None or self._chains[slot].oldest >= self._round_end:
            self._round_end = 0
            self.table()  # updates `begin`
            return None
        return self._begin_copy(slot)

    def _begin_copy(self, slot: int) -> int:
        self._copied = slot, self._chains.pop(slot)
        self.is_dirty = True
        return slot

    def unlink(self) -> bool:
        """Remove one file that the last completed checkpoint does not need, if there is one."""
        self.segments.retire(self._log.offset_of(self._completed_begin))
        return self.segments.unlink_retired()

    def close(self) -> None:
        """Release files and maps."""
        self.segments.close()
