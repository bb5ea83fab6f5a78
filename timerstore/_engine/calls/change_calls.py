"""Change messages that have not been delivered yet: cancel, reschedule, rate limits."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from timerstore._engine.base import argument_types, due_times, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.calls.open_store import OpenStore, counted
from timerstore._engine.format.handle import Handle, check_receipt, decode, of_receipt
from timerstore.errors import MessageError
from timerstore.receipts import PutReceipt
from timerstore.reports import CancelResult


class ChangeCalls(OpenStore):
    """The calls of a store that change pending messages."""

    @counted
    def _do_cancel(self, receipt_or_handle: PutReceipt | str) -> CancelResult:
        result, end = self._engine.canceller.cancel(handle_of(receipt_or_handle))
        self._sync_cancels(end)
        return result

    def _sync_cancels(self, end: int) -> None:
        reach("cancel_appended")
        if end:
            self._log.sync_through(end)
        self._engine.appender.appended()

    @counted
    def _do_cancel_many(
        self, receipts_or_handles: Iterable[PutReceipt | str]
    ) -> list[CancelResult]:
        name = "receipts_or_handles"
        given = list(argument_types.several(name, receipts_or_handles))

        def read(at: int) -> Handle:
            return argument_types.read_of(name, at, given[at], handle_of)

        results, end = self._engine.many_canceller.cancel(given, read)
        self._sync_cancels(end)
        return results

    @counted
    def _do_reschedule(
        self,
        receipt_or_handle: PutReceipt | str,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
    ) -> PutReceipt:
        receipt = self._engine.rescheduler.reschedule(
            handle_of(receipt_or_handle), delay, deliver_at, deliver_ms
        )
        self._engine.appender.appended()
        return receipt

    @counted
    def _do_pace(self, topic: str, per_second: float | None) -> None:
        self._log.check_alive()
        name = message_fields.check_topic(topic).decode()
        rate = due_times.check_rate(per_second)
        self._engine.fair_queue.set_rate(name, rate)


def handle_of(receipt_or_handle: PutReceipt | str) -> Handle:
    """Return the handle of a receipt or of a text. MessageError if no timer can have it."""
    if isinstance(receipt_or_handle, PutReceipt):
        check_receipt(receipt_or_handle)
        if receipt_or_handle.waits_for_level:
            raise MessageError(
                "receipt: wanted one of a timer, got one of a message with a fixed level, which "
                "has no handle and stays as it is"
            )
        return of_receipt(receipt_or_handle)
    return decode(receipt_or_handle)
