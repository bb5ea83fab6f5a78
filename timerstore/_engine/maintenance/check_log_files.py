"""A commit log at rest: where it ends, which ranges are damaged, and which are a torn tail.

Invariant: below the end that is known to be durable every byte must read; past it, bytes that do
not read are a tail that was not durable. Without a watermark (a broker's store) bytes that whole
records follow are damage.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.scanned_records import SCAN_DTYPE, Scan
from timerstore._engine.log.survey import Files, Gap, Records, survey
from timerstore._engine.storage.disk import Disk

Progress = Callable[[int, int], None]
"""Told how many bytes are read, and of how many."""


@dataclass
class LogState:
    """What a survey found."""

    files: Files
    damaged: list[Gap]
    tail: list[Gap]
    begin: int
    end: int
    """Behind the last record that counts."""
    rows: Scan = field(default_factory=lambda: np.empty(0, SCAN_DTYPE))


def read_log(
    disk: Disk,
    files: Files,
    mark: Watermark | None,
    durable_end: int | None,
    precision_ms: int,
    *,
    on_records: Callable[[Records], None] | None = None,
    progress: Progress | None = None,
) -> LogState:
    """Survey a log; every record's row is kept, 96 bytes each."""
    parts: list[Scan] = [np.empty(0, SCAN_DTYPE)]
    gaps: list[Gap] = []
    end = files.begin
    durable = durable_end or 0
    if mark is not None and mark.log_begin < files.begin:
        gaps.append(Gap(mark.log_begin, files.begin, "the file is missing", is_zero=False))
    for piece in survey(disk, files, precision_ms):
        if isinstance(piece, Gap):
            gaps.append(piece)
        elif mark is None or piece.begin < durable or not _broken(gaps, durable):
            parts.append(piece.rows)
            end = piece.end
            if on_records is not None:
                on_records(piece)
        if progress is not None:
            progress(min(piece.end, files.end) - files.begin, files.end - files.begin)
    if durable > files.end:
        gaps.append(Gap(max(files.end, end), durable, "the file is missing", is_zero=False))
    damaged = [gap for gap in gaps if gap.begin < max(end, durable)]
    tail = [gap for gap in gaps if gap.begin >= max(end, durable)]
    damaged = [_clipped(gap, end, durable) for gap in damaged]
    return LogState(files, damaged, tail, files.begin, end, np.concatenate(parts))


def _broken(gaps: list[Gap], durable: int) -> bool:
    """Whether the log has ended behind what was durable: records that follow are none of it."""
    return any(gap.end > durable for gap in gaps)


def _clipped(gap: Gap, end: int, durable: int) -> Gap:
    """The part of a gap that must read: nothing follows it, and behind `durable` is the tail."""
    return gap._replace(end=durable) if gap.begin >= end and gap.end > durable else gap
