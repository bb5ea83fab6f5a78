"""Flow control: admission of puts where a slot may hold at most `slot_messages_max` messages.

A put reserves its place before its record is appended, and releases it if the append fails.

Thread safety: any thread.
Invariants:
    1. A rejected put leaves nothing, not even a new topic.
    2. A message is rejected before its record is appended, never after: no acknowledged message is
       lost to flow control.
    3. A message without a delay is never rejected.
Raises: FlowControlError, before anything is stored. The same put succeeds again once messages of
the slot were cancelled, and a put for another slot succeeds at once.
"""

from typing import Any

import numpy as np

from timerstore._engine.base.column_batch import BatchPart
from timerstore._engine.timer.slot_counts import Due, SlotCounts
from timerstore._engine.write.appended_rows import AppendedRows
from timerstore.types.messages import Int64Array


class Admission:
    """Decides whether messages with these due times (epoch ms; 0: not a timer) may be appended.

    This one admits every message: the store's slots have no limit.
    """

    is_limited = False

    def check(self, due_ms: Due) -> None:
        """Raise FlowControlError if the messages would be rejected now; reserve nothing."""

    def reserve(self, due_ms: Due) -> None:
        """Reserve places for all messages, or raise FlowControlError and reserve none."""

    def release(self, due_ms: Due) -> None:
        """Release the places of messages that were not appended."""

    def reserve_rows(self, due_ms: Int64Array, begin: int, end: int) -> None:
        """Reserve places for rows [begin, end) of a batch."""

    def settle_rows(
        self, due_ms: Int64Array, places: AppendedRows, begin: int, stored: int, end: int
    ) -> None:
        """Release the places of rows in [begin, end) that were not appended.

        These are the rows from `stored` on, and the duplicates before it.
        """

    def reserve_part(self, due_ms: Int64Array, part: BatchPart) -> Any:  # noqa: ARG002
        """Reserve places for a part of a batch; return the due times for `release`."""
        return 0


class SlotLimit(Admission):
    """Admit messages while their slots are below the limit."""

    is_limited = True

    def __init__(self, slot_counts: SlotCounts) -> None:
        self.slot_counts = slot_counts

    def check(self, due_ms: Due) -> None:
        """As Admission."""
        self.slot_counts.check(due_ms)

    def reserve(self, due_ms: Due) -> None:
        """As Admission."""
        self.slot_counts.add(due_ms)

    def release(self, due_ms: Due) -> None:
        """As Admission."""
        self.slot_counts.remove(due_ms)

    def reserve_rows(self, due_ms: Int64Array, begin: int, end: int) -> None:
        """As Admission."""
        self.slot_counts.add(due_ms[begin:end])

    def settle_rows(
        self, due_ms: Int64Array, places: AppendedRows, begin: int, stored: int, end: int
    ) -> None:
        """As Admission."""
        if stored < end:
            self.slot_counts.remove(due_ms[stored:end])
        self.slot_counts.remove(due_ms[begin:stored][places.duplicate[begin:stored]])

    def reserve_part(self, due_ms: Int64Array, part: BatchPart) -> Any:
        """As Admission."""
        due = due_ms[part.begin : part.begin + part.row_count]
        due = np.where(due > part.now_ms, due, 0)
        self.slot_counts.add(due)
        return due
