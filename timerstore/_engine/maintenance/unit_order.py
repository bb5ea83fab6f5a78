"""`UnitOrder`: find the timer unit of each record of the timer topic.

Units that link a message for the first time have the order of the topic's queue. The last of them
belongs to the record before `linked_offset`. Units of messages that were linked again
(docs/decisions/0003-timing-wheel.md) lie between them and are marked. The n-th unit without that
mark belongs to the n-th record.
The units are counted once, piece by piece.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.format import timer_unit
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer.timer_log import pieces


class _Piece(NamedTuple):
    pos: int  # of its first unit
    size: int  # how many units
    first: int  # how many units without the mark lie before it


class UnitOrder:
    """The first units of all messages in a timer log below `end`."""

    def __init__(self, segments: Segments, end: int, linked_offset: int) -> None:
        self._segments = segments
        self._pieces: list[_Piece] = []
        count = 0
        for pos, size in pieces(segments, end):
            self._pieces.append(_Piece(pos, size, count))
            count += int(np.count_nonzero(_is_first(self._read(pos, size))))
        self._counts = np.array([piece.first for piece in self._pieces], np.int64)
        self.begin = linked_offset - count
        """The queue offset of the first record whose unit still exists."""

    def _read(self, pos: int, size: int) -> Any:
        return timer_unit.read(self._segments.read(pos, size * timer_unit.UNIT_BYTES))

    def units(self, begin: int, end: int) -> Iterator[tuple[Any, Any]]:
        """Return positions and units of the records with queue offsets [begin, end)."""
        number, last = begin - self.begin, end - self.begin
        while number < last:
            at = int(np.searchsorted(self._counts, number, side="right")) - 1
            piece = self._pieces[at]
            units = self._read(piece.pos, piece.size)
            rows = np.flatnonzero(_is_first(units))[number - piece.first : last - piece.first]
            yield piece.pos + rows * timer_unit.UNIT_BYTES, units[rows]
            number += len(rows)


def _is_first(units: Any) -> Any:
    return (units["magic"] & timer_unit.MAGIC_AGAIN) == 0
