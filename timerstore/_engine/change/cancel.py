"""Cancel a pending message by a delete record, which a RocketMQ broker understands too.

Thread safety: any thread.
Locking: the append lock, for one record.
Invariants:
    1. A result is returned to the caller only once the record that it depends on is durable.
Raises: MessageError for a malformed handle; FullError, before anything is changed.
See also: docs/exactly-once.md, docs/file-format.md, and
docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable
from typing import Any

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.handle import Handle
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.pending_removals import Removals
from timerstore._engine.timer.handle_lookup import FoundTimer, HandleLookup
from timerstore._engine.timer.slot_counts import SlotCounts
from timerstore.clock import Clock
from timerstore.reports import CancelResult

ANSWERS = {
    lib.TS_NONE: CancelResult.UNKNOWN,
    lib.TS_PENDING: CancelResult.CANCELLED,
    lib.TS_DELIVERED: CancelResult.ALREADY_DELIVERED,
    lib.TS_CANCELLED: CancelResult.ALREADY_CANCELLED,
}
"""The result by the state of the timer id."""


def delete_properties(one: FoundTimer) -> bytes:
    """Return the properties of the delete record that a broker writes too."""
    topic, key = one.real.topic.encode("ascii"), one.message_id.encode()
    size_max = 2 * (len(topic) + len(key)) + lib.TS_DELETE_TEXT_BYTES
    text = ffi.new("uint8_t[]", size_max)
    size = lib.ts_delete_text(
        text, size_max, topic, len(topic), key, len(key), one.real.queue_id, one.out_ms
    )
    assert size > 0, "the buffer is large enough"
    return bytes(ffi.buffer(text, size))


def leaving(call: Callable[..., int], one: FoundTimer, due_ms: int = 0) -> Callable[..., int]:
    """Wrap a C call that ends a pending timer, or moves it to `due_ms`.

    The wrapper updates the calendar in the same critical section.
    """

    def counted(native: Any, *arguments: Any) -> int:
        if not lib.ts_calendar_fits(native, 2):
            native.need = 0
            return int(lib.TS_NEED_STATES)
        state = call(native, *arguments)
        if state == lib.TS_PENDING:
            lib.ts_calendar_leave(native, one.real.native, one.timer_id, one.due_ms)
            if due_ms:
                lib.ts_calendar_count(native, one.real.native, due_ms, 1)
        return state

    return counted


class Canceller:
    """Cancels pending messages of one store."""

    def __init__(
        self,
        clock: Clock,
        log: CommitLog,
        finder: HandleLookup,
        removals: Removals,
        slot_counts: SlotCounts | None,
    ) -> None:
        """`slot_counts`: None without flow control."""
        self._clock = clock
        self._log = log
        self._finder = finder
        self._removals = removals
        self.slot_counts = slot_counts

    def cancel(self, handle: Handle) -> tuple[CancelResult, int]:
        """Return the result, and the log offset that must be durable before it may be returned.

        If a broker's handle names several messages, cancel all of them, as a broker does.
        """
        if handle.timer_id == -1:  # it was due when it was put
            return CancelResult.ALREADY_DELIVERED, 0
        answer, end = CancelResult.UNKNOWN, 0
        for one in self._finder.find(handle):
            found, end = self.cancel_handle(one)
            if answer is not CancelResult.CANCELLED:
                answer = found
        return answer, end

    def cancel_handle(self, one: FoundTimer) -> tuple[CancelResult, int]:
        """Cancel a message that was found already; return as `cancel` does."""
        text = delete_properties(one)
        state, _, end = self._log.append(
            "cancel",
            leaving(self._removals.noting(lib.ts_cancel, one.timer_id), one),
            one.real.native,
            one.timer_id,
            text,
            len(text),
            self._clock.now_ms,
        )
        if state == lib.TS_PENDING and self.slot_counts is not None:
            self.slot_counts.remove(one.out_ms + 1)
        return ANSWERS[state], end
