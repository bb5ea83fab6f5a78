"""Find the end of the commit log after a crash, and make the log durable up to it.

Invariants:
    1. Bytes that are accepted past the known durable end are written again and synced. After a
       failed sync the page cache may show bytes that the disk does not have.
    2. Before the end is used, only zeros follow it, and no later file exists.
    3. Recovery is idempotent.
Raises: CorruptError on damage that is not a torn tail.
See also: docs/exactly-once.md.
"""

from typing import NamedTuple

import numpy as np

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.log.scanned_records import IN_TIMER_TOPIC, Scan
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError


def restore_staged(segments: Segments, base: int, data: bytes, log_end: int) -> bool:
    """Write the part of a staged piece that lies past the log's valid end.

    Returns whether there is such a part; the caller must then scan it. The piece counts only if it
    continues the log: it begins at or before `log_end`, equals the log up to there, and its
    segments exist. Otherwise it is older or newer than the log. The pages of the staging file are
    never synced, so a power cut or a remounted file system can bring back any mix of them.
    """
    end = base + len(data)
    if not base <= log_end < end:
        return False
    segment_bytes = segments.segment_bytes
    if {base // segment_bytes, (end - 1) // segment_bytes} - set(segments.numbers):
        return False
    if segments.read(base, log_end - base) != data[: log_end - base]:
        return False
    segments.write(log_end, data[log_end - base :])
    return True


def refuse_damage_inside(segments: Segments, end: int, fault: int) -> None:
    """Raise CorruptError if a later segment has a record: then `end` is damage, not a torn tail."""
    for number in segments.numbers:
        begin = number * segments.segment_bytes
        if begin > end and _starts_validly(segments, begin):
            raise CorruptError(
                f"the commit log is damaged: {FAULTS.get(fault, 'unreadable')}",
                where=f"{segments.path(end // segments.segment_bytes)} offset {end}",
                wanted=f"a record, because {segments.path(number).name} starts with one",
            )


def _starts_validly(segments: Segments, begin: int) -> bool:
    out = ffi.new("int64_t[2]")
    sizes = ffi.new("int32_t[4]")
    with segments.view(segments.extent) as view:
        while True:
            status = lib.ts_record_at(
                view, begin, out, sizes, out + 1, sizes + 1, sizes + 2, sizes + 3
            )
            if status != lib.TS_NEED_SEGMENT:
                return bool(status == 0)
            segments.provide(view, status, "recovery")


def settle_end(segments: Segments, trusted: int, end: int) -> None:
    """Write [trusted, end) again, sync it, and truncate the log at `end`. Durable on return."""
    segments.rewrite(trusted, end)
    segments.sync()
    segments.cut(end)


class FirstOffsets(NamedTuple):
    """The first queue offset of each queue in a part of the log."""

    by_route: dict[int, int]
    """Of the queues of real topics, by route index."""
    by_level: dict[int, int]
    """Of the level topic, by queue number. The records' routes are those of the real topics."""
    timer: int | None
    """Of the timer topic's queue."""


def first_offsets(scanned: Scan) -> FirstOffsets:
    """Return the first queue offset of each queue that has a record in the scan."""
    is_timer = np.isin(scanned["kind"], IN_TIMER_TOPIC)
    is_level = np.isin(scanned["kind"], (lib.TS_KIND_LEVEL, lib.TS_KIND_LEVEL_UNUSABLE))
    others = scanned[~is_timer & ~is_level & (scanned["route"] >= 0)]
    timers = scanned["queue_offset"][is_timer]
    return FirstOffsets(
        _first_by(others, "route"),
        _first_by(scanned[is_level & (scanned["route"] >= 0)], "queue_id"),
        int(timers[0]) if len(timers) else None,
    )


def _first_by(rows: Scan, name: str) -> dict[int, int]:
    """First queue offset of the rows, by the value of a field."""
    numbers, first = np.unique(rows[name], return_index=True)
    offsets = rows["queue_offset"][first]
    return dict(zip(numbers.tolist(), offsets.tolist(), strict=True))
