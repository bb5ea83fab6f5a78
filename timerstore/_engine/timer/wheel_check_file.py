"""Wheel checks: a slot has no checksum, so the file beside the wheel has one for each sector of it.

Data:     format/wheel_checks.py; timerstore/wheel.
Threads:  those of Wheel.write, one at a time.
Holds:    an entry is durable before what it speaks of is written.
Fails:    FullError when the disk is; what is damaged is answered for by `fits`.
Source:   docs/decisions/0003-timing-wheel.md.
"""

from pathlib import Path

import numpy as np

from timerstore._engine.base.owner import Owner
from timerstore._engine.format import wheel_checks
from timerstore._engine.format.wheel_checks import ENTRY_BYTES, SECTOR_BYTES, Checks
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.timer_arrays import Bytes, Int64Array

_ENTRIES_A_SECTOR = SECTOR_BYTES // ENTRY_BYTES


class WheelChecks(Owner):
    """The checks of one wheel's file."""

    def __init__(self, disk: Disk, path: Path, held: Checks) -> None:
        """`held`: of the wheel's file, as it is."""
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
        """Whether every sector holds what it should after so many complete writes; -1: nobody
        counted them.
        """
        if completed < 0:
            return True
        self.completed = max(self.completed, completed)
        return self._is_read and bool(
            wheel_checks.match(self._entries, self._held, completed).all()
        )

    def found(self, held: Checks) -> None:
        """The wheel's file, durably, holds this after a write that failed."""
        self._held = held

    def unfinished(self) -> Int64Array:
        """Sectors that are not as their entry wants them: the next write has to write them."""
        sectors: Int64Array = np.flatnonzero(self._entries["now"] != self._held)
        return sectors

    def begin(self, sectors: Int64Array, data: Bytes) -> Checks:
        """These sectors are about to hold this; durable on return."""
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
        """They hold it durably."""
        self._held[sectors] = new
        self.completed += len(sectors) > 0

    def close(self) -> None:
        """Let go of the file."""
        del self._file
