"""Commit half messages, or roll them back.

A half message is a timer for the topic %HALF%<topic>, which no consumer of the topic reads. It is
due at its check.

    put(check_after=30)    the timer
    commit                 the timer moves to the topic, due now       delete record | message
    rollback               the timer is cancelled                      delete record
    otherwise              the timer is delivered to %HALF%<topic>: the check. A producer leases it
                           there, and ends it by the receipt of that lease, whose timer moves to the
                           topic or is cancelled in the same way. Without an answer the check comes
                           again, and after the last attempt it is a dead letter of the producer.

Thread safety: any thread.
Invariants:
    1. A half message has one outcome. The state of its timer decides, in the critical section that
       appends the records.
    2. A commit is one atomic group: after any crash the message is half or in its topic.
Raises: MessageError for another message; FullError. Nothing was changed then.
On-disk format: a committed message has the property TIMER_COMMITTED, by which a repeated call
    finds it.
See also: docs/decisions/0022-half-messages.md.
"""

from functools import partial
from typing import Any, Literal

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.handle import Handle, handle_of
from timerstore._engine.format.lease import (
    COMMITTED_PROPERTY,
    Receipt,
    committed_properties,
    is_receipt,
    topic_of_half,
)
from timerstore._engine.leases.leased_message import RESULTS, AckResult, LeasedMessage
from timerstore._engine.leases.leases import Leases
from timerstore._engine.leases.receive_request import receipt_of
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.routes import Route
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import Canceller
from timerstore._engine.write.keyed_put import KeyedRecords
from timerstore._engine.write.reschedule import Rescheduler, Sync
from timerstore.errors import NotPendingError
from timerstore.types.receipts import PutReceipt
from timerstore.types.reports import CancelResult

_DONE = frozenset({AckResult.COMMITTED, AckResult.ROLLED_BACK})


def half_of(target: Any) -> Handle | Receipt:
    """Return what names a half message; for a check its receipt. MessageError for others."""
    is_check = isinstance(target, LeasedMessage) or is_receipt(target)
    return receipt_of(target) if is_check else handle_of(target)


class HalfMessages(NotCopyable):
    """The half messages of one store."""

    def __init__(
        self,
        core: Core,
        leases: Leases,
        canceller: Canceller,
        rescheduler: Rescheduler,
        appender: Appender,
        records: KeyedRecords,
    ) -> None:
        self._log = core.log
        self._has_index = core.config.index_enabled
        self._leases = leases
        self._canceller = canceller
        self._rescheduler = rescheduler
        self._appender = appender
        self._records = records

    def end(
        self, call: Literal["commit", "rollback"], target: Any, sync: Sync | None = None
    ) -> AckResult:
        """Commit or roll back, as TimerStore. `sync`: as for Rescheduler.reschedule."""
        half = half_of(target)
        topic = topic_of_half(half.topic)
        ends: list[int] = []
        try:
            if call == "commit":
                result = self._commit(half, topic, ends.append)
            else:
                result = self._roll_back(half, ends.append)
            if result not in _DONE and self._is_committed(topic, half.message_id):
                result = AckResult.COMMITTED
            reach("half_appended")
        finally:
            (sync or self._log.sync_through)(max(ends, default=0))
        return result

    def _commit(self, half: Handle | Receipt, topic: str, sync: Sync) -> AckResult:
        def committed(kept: bytes) -> tuple[bytes, Route]:
            return committed_properties(kept), self._appender.route_to(topic)

        # 0: now, also if the clock is set back
        if isinstance(half, Receipt):
            moved = self._leases.move(half, 0, sync, committed)
            return AckResult.COMMITTED if isinstance(moved, PutReceipt) else moved
        try:
            self._rescheduler.reschedule(half, None, None, 0, committed, sync)
        except NotPendingError as error:
            return RESULTS[CancelResult(error.result)]
        self._appender.appended()
        return AckResult.COMMITTED

    def _roll_back(self, half: Handle | Receipt, sync: Sync) -> AckResult:
        if isinstance(half, Receipt):
            result, end = self._leases.cancel(half)
        else:
            result, end = self._canceller.cancel(half)
        sync(end)
        self._appender.notify_later()
        return AckResult.ROLLED_BACK if result is CancelResult.CANCELLED else RESULTS[result]

    def _is_committed(self, topic: str, message_id: str) -> bool:
        """Return whether the message is in its topic, by a commit."""
        return self._has_index and self._records.search(partial(self._look, topic, message_id))

    def _look(self, topic: str, message_id: str, end: int) -> bool:
        return any(
            one.properties.get("UNIQ_KEY") == message_id and COMMITTED_PROPERTY in one.properties
            for one in self._records.newest_first(topic, message_id, end)
        )
