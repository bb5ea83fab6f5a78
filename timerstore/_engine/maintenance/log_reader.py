"""`LogReader`: read a commit log at rest past any damage, and separate damage from a torn tail.

Below the end that is known to be durable every byte must read. Bytes past it that do not read are a
tail that was not durable. A broker's store has no watermark: there, bytes that whole records follow
are damage.
"""

from collections.abc import Callable, Iterator

import numpy as np

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.survey import Files, Gap, SurveyedRecords, survey
from timerstore._engine.storage.disk import Disk

Progress = Callable[[int, int], None]
"""Called with the number of bytes that were read, and of all bytes."""


class LogReader:
    """Reads one log. The results are complete when `records` has ended."""

    def __init__(
        self, disk: Disk, files: Files, mark: Watermark | None, durable_end: int | None
    ) -> None:
        self._disk = disk
        self._mark = mark
        self._durable = durable_end or 0
        self.files = files
        self.begin = self.end = files.begin
        self.damaged: list[Gap] = []
        self.tail: list[Gap] = []
        self.offsets: Int64Array = np.empty(0, np.int64)
        """The log offset of every record."""
        self.store_ms: Int64Array = np.empty(0, np.int64)
        """The store time of every record."""

    def records(
        self, precision_ms: int, progress: Progress | None = None
    ) -> Iterator[SurveyedRecords]:
        """Return the records that belong to the log. `end` is then after the last of them."""
        files, mark, durable = self.files, self._mark, self._durable
        offsets, store_ms = [self.offsets], [self.store_ms]
        gaps: list[Gap] = []
        if mark is not None and mark.log_begin < files.begin:
            gaps.append(Gap(mark.log_begin, files.begin, "the file is missing", is_zero=False))
        for piece in survey(self._disk, files, precision_ms):
            if isinstance(piece, Gap):
                gaps.append(piece)
            elif mark is None or piece.begin < durable or not _has_ended(gaps, durable):
                offsets.append(piece.rows["log_offset"].copy())
                store_ms.append(piece.rows["store_ms"].copy())
                self.end = piece.end
                yield piece
            if progress is not None:
                progress(min(piece.end, files.end) - files.begin, files.end - files.begin)
        self.offsets, self.store_ms = np.concatenate(offsets), np.concatenate(store_ms)
        self._judge(gaps)

    def _judge(self, gaps: list[Gap]) -> None:
        end, durable = self.end, self._durable
        if durable > self.files.end:
            begin = max(self.files.end, end)
            gaps.append(Gap(begin, durable, "the file is missing", is_zero=False))
        damaged = [gap for gap in gaps if gap.begin < max(end, durable)]
        self.tail = [gap for gap in gaps if gap.begin >= max(end, durable)]
        self.damaged = [_clipped(gap, end, durable) for gap in damaged]


def _has_ended(gaps: list[Gap], durable: int) -> bool:
    """Return whether the log has ended past its durable end. Records after that do not belong to
    it.
    """
    return any(gap.end > durable for gap in gaps)


def _clipped(gap: Gap, end: int, durable: int) -> Gap:
    """Return the part of a gap that must read. If no record follows, the part past `durable` is the
    tail.
    """
    return gap._replace(end=durable) if gap.begin >= end and gap.end > durable else gap
