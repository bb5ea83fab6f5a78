"""Consume queues at rest: each record's unit is in its queue's file, as dispatch would write it.

Known:    of a fixed level's unit the due time is compared only where the configuration is given,
          since no file says which delays the store had.
"""

from pathlib import Path

import numpy as np

from timerstore._engine.base.owner import Owner
from timerstore._engine.format.queue_unit import UNIT_BYTES, read, text
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, Tree, segment_name
from timerstore._engine.maintenance.findings import Findings, at_offset
from timerstore._engine.maintenance.log_units import Run, Units
from timerstore._engine.queues.routes import Route
from timerstore._engine.storage.disk import Disk, File
from timerstore.config import StoreConfig


class QueueCheck(Owner):
    """Compares the queues' files with the records, run after run of units."""

    def __init__(
        self,
        findings: Findings,
        disk: Disk,
        tree: Tree,
        queue_segment_bytes: int,
        config: StoreConfig | None,
    ) -> None:
        self._findings = findings
        self._disk = disk
        self._tree = tree
        self._size = queue_segment_bytes
        self._knows_levels = config is not None
        self._open: tuple[Path, File | None] = (Path(), None)
        self._missing: set[Path] = set()

    def add(self, run: Run) -> None:
        """Compare what a run of units should be."""
        route, offset, wanted = run
        self._findings.count("queue units", len(wanted))
        got = self._read(self._tree.queue(route.topic, route.queue_id), offset, len(wanted))
        if got is None:
            return
        compared = UNIT_BYTES
        if route.topic == SCHEDULE_TOPIC and not self._knows_levels:
            compared = 12
        differs = (wanted[:, :compared] != got[:, :compared]).any(axis=1)
        for row in np.flatnonzero(differs).tolist():
            path, at = self._place(route, offset + row)
            self._findings.add(
                "a queue unit that is not its record's (derived: remove the queue's folder, and "
                "opening makes it anew)",
                at_offset(path, at),
                text(read(wanted[row].tobytes())[0]),
                text(read(got[row].tobytes())[0]),
            )

    def _place(self, route: Route, offset: int) -> tuple[Path, int]:
        begin, at = divmod(offset * UNIT_BYTES, self._size)
        folder = self._tree.queue(route.topic, route.queue_id)
        return folder / segment_name(begin * self._size), at

    def _read(self, folder: Path, offset: int, count: int) -> Units | None:
        """The units as they are there; None where a file is missing, which is told once."""
        parts = []
        at, end = offset * UNIT_BYTES, (offset + count) * UNIT_BYTES
        while at < end:
            begin = at - at % self._size
            size = min(end, begin + self._size) - at
            path = folder / segment_name(begin)
            buffer = bytearray(size)
            file = self._file(path)
            if file is None:
                return None
            if file.read_into(memoryview(buffer), at - begin) < size:
                self._lost(path, "a file that is whole", f"{file.size()} bytes")
                return None
            parts.append(np.frombuffer(buffer, np.uint8))
            at += size
        return np.concatenate(parts).reshape(count, UNIT_BYTES)

    def _file(self, path: Path) -> File | None:
        if self._open[0] != path:
            there = self._disk.file_bytes(path) is not None
            self._open = (path, self._disk.open(path, read_only=True) if there else None)
            if not there:
                self._lost(path, "a file", "none")
        return self._open[1]

    def _lost(self, path: Path, wanted: str, got: str) -> None:
        if path not in self._missing:
            self._missing.add(path)
            self._findings.add("a queue's file (derived: opening makes it anew)", path, wanted, got)
