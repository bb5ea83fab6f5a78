"""Keep a checksum for each sector of the wheel's file, because slots have none.

Thread safety: none; `Wheel.write` calls it from one thread at a time.
Invariants:
    1. An entry is durable before the sector that it describes is written.
Raises: FullError if the disk is full. Damage raises no error; `fits` returns False.
On-disk format: format/wheel_checks.py; the file timerstore/wheel
See also: docs/decisions/0003-timing-wheel.md
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
