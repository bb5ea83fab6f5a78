"""Cancel: the delete record that a broker honours too.

Threads:  any.
Locks:    the append lock for the one record.
Holds:    the answer is given when what it rests on is durable.
Fails:    MessageError on a handle that is none; FullError before anything is changed.
Source:   docs/exactly-once.md, docs/file-format.md;
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
    lib.TS_WAITING: CancelResult.CANCELLED,
    lib.TS_DELIVERED: CancelResult.ALREADY_DELIVERED,
    lib.TS_CANCELLED: CancelResult.ALREADY_CANCELLED,
}
"""By what the id was when it was looked at."""


def delete_properties(one: FoundTimer) -> bytes:
    """Give the properties of the delete record, but for our own: as a broker writes them."""
    topic, key = one.real.topic.encode("ascii"), one.message_id.encode()
    room = 2 * (len(topic) + len(key)) + lib.TS_DELETE_TEXT_BYTES
    text = ffi.new("uint8_t[]", room)
    size = lib.ts_delete_text(
        text, room, topic, len(topic), key, len(key), one.real.queue_id, one.out_ms
    )
    assert size > 0, "there was room"
    return bytes(ffi.buffer(text, size))


def leaving(call: Callable[..., int], one: FoundTimer, due_ms: int = 0) -> Callable[..., int]:
    """The same call of C, which lets a timer wait no more, or until `due_ms`: the calendar follows
    in the same hold.
    """

    def counted(native: Any, *arguments: Any) -> int:
        if not lib.ts_calendar_fits(native, 2):
            native.need = 0
            return int(lib.TS_NEED_STATES)
        state = call(native, *arguments)
        if state == lib.TS_WAITING:
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
        """Give the answer and the log offset that must be durable before it is true.

        Of several messages that a broker's handle names, it cancels all, as a broker does.
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
        """The same of a message that is known to be the one that is meant."""
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
        if state == lib.TS_WAITING and self.slot_counts is not None:
            self.slot_counts.remove(one.out_ms + 1)
        return ANSWERS[state], end
