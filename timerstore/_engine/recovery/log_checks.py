"""Scan a store's commit log, and check it before recovery changes it.

Damage of the log must not be taken for a torn tail, which is truncated.

Raises: CorruptError, naming the segment file and the offset.
"""

import logging
from pathlib import Path

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import FAULTS
from timerstore._engine.format.store_paths import BACKUP_JSON, Tree
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.log_recovery import restore_staged
from timerstore._engine.log.scanned_records import SCAN_DTYPE, Scan, has_impossible_offset
from timerstore._engine.log.staging import StagedBytes
from timerstore._engine.log.survey import next_record
from timerstore._engine.queues.record_lookup import scan_batches
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import ConfigError, CorruptError
from timerstore.types.clock import Clock

_log = logging.getLogger("timerstore.recovery")


def refuse_backup(disk: Disk, tree: Tree) -> None:
    """Raise ConfigError if the directory is a backup.

    A backup has a log too, but the next backup would overwrite messages that were put there.
    """
    path = tree.root / BACKUP_JSON
    if not disk.exists(path):
        return
    problem = f"{tree.root}: wanted a store's folder, got a backup; restore it into another folder"
    if disk.exists(tree.timer_wheel):  # an older version has opened it
        problem += f"; it was opened as a store before: to keep using it as one, remove {path}"
    raise ConfigError(problem)


class LogChecks:
    """Scans one store's log while it is opened, and checks it."""

    def __init__(
        self,
        disk: Disk,
        directory: Directory,
        segments: Segments,
        routes: Routes,
        clock: Clock,
        precision_ms: int,
    ) -> None:
        self._disk = disk
        self._routes = routes
        self._clock = clock
        self._directory = directory
        self._tree: Tree = directory.tree
        self._segments = segments
        self._precision_ms = precision_ms

    def refuse_damage_below(self, durable_end: int, source: Path, end: int, fault: int) -> None:
        """Raise CorruptError if the log ends before the durable end that `source` names."""
        if end < durable_end:
            raise CorruptError(
                f"the commit log is damaged: {FAULTS.get(fault, 'unreadable')}",
                where=f"{self._segments.path(end // self._segments.segment_bytes)} offset {end}",
                wanted=f"records up to {durable_end}, which were durable (noted in {source})",
                got="unreadable bytes; `timerstore repair` keeps the rest",
            )

    def report_cut(self, end: int, fault: int) -> None:
        """Log a warning if readable records follow the place at which the log is truncated.

        These are unsynced writes that reached the disk out of order, or records after damage in
        unsynced writes.
        """
        follows = next_record(self._disk, self._tree.commit_log, end, self._precision_ms)
        if follows is not None:
            _log.warning(
                "the commit log ends at %s offset %d (%s) and is cut there; a record at log offset "
                "%d, which was not known to be durable, is dropped",
                self._segments.path(end // self._segments.segment_bytes),
                end,
                FAULTS.get(fault, "unreadable"),
                follows,
            )

    def refuse_impossible_offset(self, scanned: Scan) -> None:
        """Raise CorruptError if a timer record has an impossible queue offset.

        It would make recovery allocate memory for all ids up to it.
        """
        impossible = has_impossible_offset(scanned)
        if impossible.any():
            at = int(scanned["log_offset"][np.argmax(impossible)])
            raise CorruptError(
                "the commit log is damaged: a record has an impossible timer id",
                where=f"{self._segments.path(at // self._segments.segment_bytes)} offset {at}",
            )

    def refuse_lost_front(self, mark: Watermark, end: int, *, is_ours: bool) -> None:
        """Raise CorruptError if first files of the log are missing that retention did not remove.

        A broker may have removed them, but it also leaves the log longer than at the watermark.
        """
        begin = self._segments.begin
        if begin > mark.log_begin and (is_ours or end <= mark.log_end):
            raise CorruptError(
                "the commit log has lost its first files",
                where=self._segments.path(mark.log_begin // self._segments.segment_bytes),
                wanted=f"records from {mark.log_begin} on",
                got=f"the first file begins at {begin}; if a broker removed the files before it, "
                f"remove {self._tree.watermark}",
            )

    def refuse_shorter_log(self, end: int) -> None:
        """Raise CorruptError if a queue of a closed store points past the end of its log."""
        for route in self._routes.by_index:
            last = route.queue.last_record_end()
            if last > end:
                self._directory.mark_closed()  # else the next opening would truncate the log there
                raise CorruptError(
                    "the commit log has lost its end, or a queue is damaged and points past it",
                    where=f"{self._segments.path(end // self._segments.segment_bytes)} "
                    f"offset {end}",
                    wanted=f"records up to {last}, according to {self._tree.queue(*route[:2])}",
                    got=f"an end at {end}; if that is right, remove that folder: it will be "
                    "rebuilt",
                )

    # --- scan ---

    def scan_with_staged(self, begin: int, staged: StagedBytes) -> tuple[Scan, int, int]:
        """Scan the log from `begin`, and write and scan the staged bytes that continue it.

        Returns the records, their end, and the reason for the end (enum ts_fault).
        """
        scanned, end, fault = self._scan(begin)
        for base, data in staged.pieces:
            if restore_staged(self._segments, base, data, end):
                more, end, fault = self._scan(end)
                scanned = np.concatenate([scanned, more])
        reach("recover_staged_restored")
        return scanned, end, fault

    def _scan(self, begin: int) -> tuple[Scan, int, int]:
        """Read every record from `begin` on; include an atomic group as a whole or not at all."""
        self._segments.reserve_edges(begin)
        parts: list[Scan] = [np.empty(0, SCAN_DTYPE)]
        end, fault = begin, 0
        for part, end, fault in scan_batches(  # noqa: B007 - the last values are used
            self._segments,
            self._routes,
            self._clock,
            self._precision_ms,
            begin,
            self._segments.extent,
            whole_groups=True,
        ):
            parts.append(part.copy())
        found = np.concatenate(parts)
        return found[found["log_offset"] < end], end, fault
