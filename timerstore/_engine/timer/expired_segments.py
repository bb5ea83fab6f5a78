"""Find timer log files that can be removed, because all of their slots have been read.

Thread safety: runs on the retention thread only.
Invariants:
    1. A file is removed if the slots of all its units are below the replay slot, both of the last
       completed checkpoint and of now. Files are removed oldest first, and never the last one.
    2. A chain has only units of its own slot, so no chain that is read again leads into a removed
       file.
See also: docs/decisions/0012-snapshots-and-retention.md
"""

import numpy as np

from timerstore._engine.format import timer_unit
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import Wheel

_PIECE_UNITS = 16_384


class ExpiredSegments:
    """Checks and retires the first timer log file of one store."""

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
        self._at = 0  # units of the file that were checked
        self._highest = 0  # the highest slot of these
        self._timer_log = timer_log
        self._wheel = wheel
        self._open_slot = open_slot

    def retire(self) -> bool:
        """Retire the first file if it has expired, or check a part of it.

        Return whether there may be more to do.
        """
        segments = self._timer_log.segments
        if len(segments.numbers) < 2:
            return False
        number = segments.numbers[0]
        end = (number + 1) * segments.segment_bytes
        mark = self._checkpoint.completed
        if mark is None or mark.timer_log_end <= end:  # the last file must stay
            return False
        if self._number != number:
            self._number, self._at, self._highest = number, 0, 0
        limit = min(mark.replay_slot, self._lowest())
        if self._highest >= limit:
            return False
        count = timer_unit.units_per_segment(segments.segment_bytes)
        if self._at < count:
            self._look(number * segments.segment_bytes, count)
            return self._highest < limit
        return segments.retire(end)

    def _lowest(self) -> int:
        with self._wheel.lock:
            return self._open_slot.replay_slot(self._wheel.read_slot)

    def _look(self, begin: int, count: int) -> None:
        size = min(_PIECE_UNITS, count - self._at)
        units = self._timer_log.units(begin + self._at * timer_unit.UNIT_BYTES, size)
        slots = (units["write_ms"] + units["delay_ms"]) // self._precision_ms
        self._highest = max(self._highest, int(np.max(slots, initial=0)))
        self._at += size
