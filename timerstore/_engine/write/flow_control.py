"""Flow control: putting into a store whose slots have a limit (`slot_messages_max`).

Threads:  any.
Holds:    what is refused leaves nothing, no topic either; nothing acknowledged is lost for it: the
          limit says no before a record is appended, never after; what is due at once has none.
Fails:    FlowControlError, before anything is stored; works again when messages of the slot were
          cancelled, and at once for another slot.
"""

from typing import Any

import numpy as np

from timerstore._engine.base.column_batch import Part, Rows
from timerstore._engine.dedupe import Once
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer.slot_counts import SlotCounts
from timerstore._engine.write.put_many import ManyPutting, Places, Way
from timerstore.errors import BusyError, FullError


class LimitedPutting(ManyPutting):
    """The way in, where slots have a limit."""

    def __init__(self, slot_counts: SlotCounts, **given: Any) -> None:
        """`given`: as for ManyPutting."""
        super().__init__(**given)
        self._counts = slot_counts

    @property
    def is_quick(self) -> bool:
        """Never: the quick way counts nothing."""
        return False

    def _admit(self, due_ms: Any) -> None:
        self._counts.check(due_ms)

    def _append(
        self, route: Any, body: Any, size: int, due_ms: int, text: bytes, now_ms: int
    ) -> tuple[int, int, int]:
        self._counts.add(due_ms)
        try:
            return super()._append(route, body, size, due_ms, text, now_ms)
        except BaseException:
            self._counts.remove(due_ms)
            raise

    def _append_many(
        self,
        way: Way,
        rows: Rows,
        due: Any,
        now_ms: int,
        places: Places,
        once: Once | None,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        mine = slice(begin, end)
        self._counts.add(due[mine])
        try:
            super()._append_many(way, rows, due, now_ms, places, once, begin=begin, end=end)
        except BaseException as error:
            stored = error.stored_count if isinstance(error, (FullError, BusyError)) else begin
            self._counts.remove(due[stored:end])
            self._counts.remove(due[begin:stored][places.duplicate[begin:stored]])
            raise
        self._counts.remove(due[mine][places.duplicate[mine]])

    def append_group(
        self, way: Way | Route, rows: Rows, part: Part, due_ms: Any, *rest: Any, **named: Any
    ) -> int:
        """As Putting.append_group."""
        due = due_ms[part.begin : part.begin + part.row_count]
        due = np.where(due > part.now_ms, due, 0)
        self._counts.add(due)
        try:
            end = super().append_group(way, rows, part, due_ms, *rest, **named)
        except BaseException:
            self._counts.remove(due)
            raise
        if not end:  # they were put before
            self._counts.remove(due)
        return end
