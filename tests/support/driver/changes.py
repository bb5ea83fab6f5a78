"""Cancels and reschedules of a driver."""

from tests.support.driver.ingests import IngestDriver
from tests.support.driver.setup import named
from tests.support.inside import inside
from tests.support.models.messages import Put
from timerstore import (
    CancelResult,
    PutReceipt,
)
from timerstore.errors import FlowControlError, NotPendingError


class ChangeDriver(IngestDriver):
    """Cancel and reschedule messages, and record the results in the model."""

    def cancel(self, one: Put, how: str) -> CancelResult:
        """Cancel a message of the model; `how` is one of HOW."""
        answer = self.store.cancel(named(one, how))
        self.note_cancel(one, answer)
        return answer

    def note_cancel(self, one: Put, answer: CancelResult, *, sure: bool = True) -> None:
        if answer is CancelResult.UNKNOWN and self._is_removed(one):
            may_be_over = one.cancelled or one.maybe_cancelled or one.must_come or not one.sure
            if one.place is None and not may_be_over:  # it was delivered, and not seen yet
                assert self.clock.latest_ms >= one.due_ms, f"unknown, but it waits: {one}"
                one.must_come = sure
            return
        self.model.cancel(one, answer, self.clock.latest_ms, sure=sure)

    def cancel_old(self, one: Put, which: int) -> None:
        """Cancel by the handle of an earlier due time."""
        answer = self.store.cancel(one.old[which % len(one.old)].handle)
        old = one.old[which % len(one.old)].log_offset
        is_removed = old < inside(self.store).log.segments.begin
        assert answer is CancelResult.ALREADY_CANCELLED or is_removed, f"{answer}: {one}"

    def reschedule(self, one: Put, due_ms: int, how: str) -> None:
        """Reschedule a message of the model."""
        receipt = self._reschedule(one, due_ms, how)
        if receipt is not None:
            self.model.moved(one, receipt, receipt.due_ms)

    def _reschedule(self, one: Put, due_ms: int, how: str) -> PutReceipt | None:
        now_ms = self.clock.now_ms
        try:
            receipt = self.store.reschedule(named(one, how), deliver_ms=due_ms)
        except FlowControlError:
            limit, slot = self.config.slot_messages_max, (due_ms - 1) // self.config.precision_ms
            waiting = self.store.congestion().get(slot * self.config.precision_ms, 0)
            assert waiting >= limit or slot == now_ms // self.config.precision_ms
            return None
        except NotPendingError as error:
            refused = error.result  # never CANCELLED, which the model would record as a cancel
        else:
            return self._check_moved(one, receipt, due_ms, now_ms)
        self.note_cancel(one, CancelResult(refused))
        assert refused != CancelResult.CANCELLED
        return None

    def _check_moved(self, one: Put, receipt: PutReceipt, due_ms: int, now_ms: int) -> PutReceipt:
        assert (receipt.queue_offset is None) == (due_ms > now_ms)
        assert receipt.due_ms == max(due_ms, now_ms)
        assert (receipt.topic, receipt.queue_id) == one.queue
        return receipt
