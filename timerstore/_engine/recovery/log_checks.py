"""Checks of a commit log during recovery: damage that must not be taken for a torn tail.

Raises: CorruptError, naming the segment file and the offset.
"""

import logging
from pathlib import Path

import numpy as np

from timerstore._engine.base.native import FAULTS
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.scanned_records import Scan, has_impossible_offset
from timerstore._engine.log.survey import next_record
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError

_log = logging.getLogger("timerstore.recovery")


class LogChecks:
    """Checks of one store's log while it is opened."""

    def __init__(
        self, disk: Disk, directory: Directory, segments: Segments, precision_ms: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._tree: Tree = directory.tree
        self._segments = segments
        self._precision_ms = precision_ms

    def refuse_damage_below(self, durable_end: int, source: Path, end: int, fault: int) -> None:
        """Raise CorruptError where the log ends before what was durable, as `source` says."""
        if end < durable_end:
            raise CorruptError(
                f"the commit log is damaged: {FAULTS.get(fault, 'unreadable')}",
                where=f"{self._segments.path(end // self._segments.segment_bytes)} offset {end}",
                wanted=f"records up to {durable_end}, which were durable (noted in {source})",
                got="bytes that do not read; `timerstore repair` keeps the rest",
            )

    def report_cut(self, end: int, fault: int) -> None:
        """Log a warning where readable records follow the place at which the log is cut: writes
        that were never synced and reached the disk out of order, or damage among them.
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

    def refuse_wild_place(self, scanned: Scan) -> None:
        """A timer id that no record can have had is damage, not a reason to have memory for it."""
        wild = has_impossible_offset(scanned)
        if wild.any():
            at = int(scanned["log_offset"][np.argmax(wild)])
            raise CorruptError(
                "the commit log is damaged: a record says a timer id that none can have had",
                where=f"{self._segments.path(at // self._segments.segment_bytes)} offset {at}",
            )

    def refuse_lost_front(self, mark: Watermark, end: int, *, is_ours: bool) -> None:
        """Where files are gone from the log's front that we did not remove, and no broker was here,
        who leaves the log longer, somebody else did.
        """
        begin = self._segments.begin
        if begin > mark.log_begin and (is_ours or end <= mark.log_end):
            raise CorruptError(
                "the commit log has lost its first files",
                where=self._segments.path(mark.log_begin // self._segments.segment_bytes),
                wanted=f"records from {mark.log_begin} on",
                got=f"the first file begins at {begin}; if a broker removed what was before, "
                f"remove {self._tree.watermark}",
            )

    def refuse_shorter_log(self, end: int, routes: Routes) -> None:
        """A store that was closed has every unit's record: else its log has lost something."""
        for route in routes.by_index:
            last = route.queue.last_record_end()
            if last > end:
                self._directory.mark_closed()  # else the next opening would cut the log there
                raise CorruptError(
                    "the commit log has lost its end, or a queue is damaged, which points beyond",
                    where=f"{self._segments.path(end // self._segments.segment_bytes)} "
                    f"offset {end}",
                    wanted=f"records up to {last}, as {self._tree.queue(*route[:2])} has it",
                    got=f"an end at {end}; if that is right, remove that folder: it is made anew",
                )
