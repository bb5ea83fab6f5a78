"""Find timer log files of which every slot has been read.

Threads:  retention.
Holds:    a file goes when the slots of all its units lie below what the last completed checkpoint,
          and the present, go on from; oldest first, never the last. Chains lead only to units of
          their own slot, so none leads there.
Source:   docs/decisions/0012-snapshots-and-retention.md.
"""

import numpy as np

from timerstore._engine.format import timer_unit
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import Wheel

_PIECE_UNITS = 16_384


class ExpiredSegments:
    """Looks at the first timer log file of one store."""

    def __init__(
        self,
        timer_log: TimerLog,
        wheel: Wheel,
        open_slot: OpenSlot,
        checkpoint: Checkpoint,
        precision_ms: int,
    ) -> None:
        self._checkpoint = checkpoint
        self._precision_ms = precision_ms
        self._number = -1
        self._at = 0  # units of the file that were looked at
        self._highest = 0  # slot of any of them
        self._timer_log = timer_log
        self._wheel = wheel
        self._open_slot = open_slot

    def retire(self) -> bool:
        """Retire the first file where it is past; whether anything was done."""
        segments = self._timer_log.segments
        if len(segments.numbers) < 2:
            return False
        number = segments.numbers[0]
        end = (number + 1) * segments.segment_bytes
        mark = self._checkpoint.completed
        if mark is None or mark.timer_log_end <= end:  # some file has what lies below its end
            return False
        if self._number != number:
            self._number, self._at, self._highest = number, 0, 0
        limit = min(mark.read_slot, self._lowest())
        if self._highest >= limit:
            return False
        count = timer_unit.units_per_segment(segments.segment_bytes)
        if self._at < count:
            self._look(number * segments.segment_bytes, count)
            return self._highest < limit
        return segments.retire(end)

    def _lowest(self) -> int:
        with self._wheel.lock:
            return self._open_slot.lowest_slot(self._wheel.frontier)

    def _look(self, begin: int, count: int) -> None:
        size = min(_PIECE_UNITS, count - self._at)
        units = self._timer_log.units(begin + self._at * timer_unit.UNIT_BYTES, size)
        slots = (units["write_ms"] + units["delay_ms"]) // self._precision_ms
        self._highest = max(self._highest, int(np.max(slots, initial=0)))
        self._at += size
