"""Leases: the calls of one store.

Threads:  any.
Locks:    `_lock` for the readers, then that of Groups; a reader's own.
Holds:    (1) as a put does, each call returns when what it answers is durable (`flush="sync"`) or
          outlives the process (`"async"`); (2) of a lease one thing becomes: it is settled by its
          receipt, or its message comes again; both are decided by the state of the timer that it
          is, in the hold that appends the record.
Fails:    MessageError on what is no receipt; LeaseLostError; what reading and putting raise.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from timerstore._engine.base import argument_types
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.change.cancel import Canceller
from timerstore._engine.change.reschedule import Rescheduler
from timerstore._engine.format.handle import Handle
from timerstore._engine.format.lease import Receipt, read_receipt, retry_topic, write_receipt
from timerstore._engine.leases.backoff import delay_ms
from timerstore._engine.leases.lease_reader import MakeConsumer, Reader, WaitingReceive
from timerstore._engine.leases.lease_request import DEFAULTS, Request, check_lease, check_request
from timerstore._engine.leases.leased_message import RESULTS, AckResult, LeasedMessage
from timerstore._engine.leases.leasing import Leasing
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.read.filter import make_filter
from timerstore._engine.read.groups import Filters, Groups, check_name
from timerstore._engine.read.lease_progress import LeaseProgress
from timerstore._engine.read.waiting_pull import wait_in_thread
from timerstore._engine.timer.handle_lookup import FoundTimer
from timerstore._engine.write.append import Appender
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import (
    GoneError,
    LeaseLostError,
    MessageError,
    NotPendingError,
    TimerStoreError,
)
from timerstore.receipts import PutReceipt, out_ms
from timerstore.reports import CancelResult

Given = str | LeasedMessage
"""A receipt, or the message that came with it."""


class Leases(Owner):
    """Leases of one store."""

    def __init__(
        self,
        routes: Routes,
        timer_route: Route,
        lease_progress: LeaseProgress,
        store_id: int,
        id_prefix: str,
        canceller: Canceller,
        rescheduler: Rescheduler,
        log: CommitLog,
        config: StoreConfig,
        clock: Clock,
        putting: Appender,
        groups: Groups,
        make_consumer: MakeConsumer,
    ) -> None:
        self._clock = clock
        self._log = log
        self._config = config
        self._putting = putting
        self._groups = groups
        self._make_consumer = make_consumer
        self._opening = secrets.randbits(32)
        self._leasing = Leasing(store_id, id_prefix, lease_progress, clock, putting, self._opening)
        self._lock = Lock()
        self._readers: dict[tuple[str, str], Reader] = {}
        self._routes = routes
        self._timer_route = timer_route
        self._lease_progress = lease_progress
        self._store_id = store_id
        self._canceller = canceller
        self._rescheduler = rescheduler

    # --- receiving ---

    def receive(self, topic: str, group: str, asked: dict[str, Any]) -> list[LeasedMessage]:
        """As TimerStore.receive."""
        request = self._request(asked)
        reader = self._reader(topic, group, request.filters)
        found = self._take(reader, request)
        if found or request.wait_s == 0:
            return found
        return wait_in_thread(self._waiting(reader, request), found)

    def begin(
        self,
        topic: str,
        group: str,
        asked: dict[str, Any],
        within: Callable[[Callable[[], Any]], Any],
    ) -> WaitingReceive:
        """Begin a `receive` of which the caller does the waiting; `within`: runs each look."""
        request = self._request(asked)
        reader = self._reader(topic, group, request.filters)
        return self._waiting(reader, request).run_within(within)

    def _request(self, asked: dict[str, Any]) -> Request:
        unknown = sorted(asked.keys() - DEFAULTS.keys())
        if unknown:
            raise MessageError(f"receive: knows no {', '.join(unknown)}")
        given = {**DEFAULTS, **asked}
        filters = Filters(given.pop("tags"), given.pop("sql"))
        request = check_request(self._config, filters=filters, **given)
        self._log.check_alive()
        return request

    def _reader(self, topic: str, group: str, filters: Filters) -> Reader:
        try:
            return self._readers[topic, group]
        except (KeyError, TypeError):
            check_name("topic", topic)
            check_name("group", group)
            again = retry_topic(topic, group)
            make_filter(self._timer_route, *filters)  # raises, before the group leases
        with self._lock:
            reader = self._readers.get((topic, group))
            if reader is None:
                # Before anything reads: no consumer gets in.
                self._groups.lease(topic, group, again)
                commit = self._lease_progress.commit
                reader = Reader(topic, group, self._leasing, self._make_consumer, commit)
                self._readers[topic, group] = reader
            return reader

    def _take(self, reader: Reader, request: Request) -> list[LeasedMessage]:
        found = self._take_unseen(reader, request)
        try:
            if (left := request.max_count - len(found)) > 0:
                found += reader.take(request._replace(max_count=left) if found else request)
        except TimerStoreError as error:
            if not found:
                raise
            if not (error.retryable or isinstance(error, MessageError)):
                reader.give_back(request.filters, found)
                raise
        if found:
            self._settle(self._log.end)
            reach("receive_answered")
        return found

    def _take_unseen(self, reader: Reader, request: Request) -> list[LeasedMessage]:
        """Hand over what was leased to callers that were cancelled, for as long as is asked now."""
        found: list[LeasedMessage] = []
        while len(found) < request.max_count:
            one = reader.next_unseen(request.filters)
            if one is None:
                break
            try:
                longer = self._extend(read_receipt(one.receipt), request.lease_ms)
            except TimerStoreError:
                reader.give_back(request.filters, [one, *found])
                raise
            if isinstance(longer, Receipt):  # else its lease was over, and it comes again
                text = write_receipt(longer)
                found.append(replace(one, receipt=text, lease_until_ms=longer.until_ms))
        return found

    def give_up_unseen(self) -> None:
        """Give back what no caller has seen, before the store is closed: after the next opening it
        comes at once, one attempt later. Of a last attempt nothing is given back: it would be a
        dead letter at once, not when its lease is over.
        """
        for reader in list(self._readers.values()):
            while (one := reader.next_unseen(None)) is not None:
                if not one.is_last_attempt:
                    self.nack(one, 0)

    def _waiting(self, reader: Reader, request: Request) -> WaitingReceive:
        return reader.begin(request, lambda: self._take(reader, request))

    def _settle(self, end: int) -> None:
        """Return when what was appended below is as safe as a put."""
        if self._config.flush == "sync":
            self._log.sync_through(end)

    # --- what becomes of a lease ---

    def ack_one(self, given: Given) -> AckResult:
        """As TimerStore.ack."""
        return self._ack([_receipt_of(given)])[0]

    def ack(self, given: Iterable[Given]) -> list[AckResult]:
        """As TimerStore.ack_many."""
        return self._ack(argument_types.each_of("receipts", given, _receipt_of))

    def _ack(self, receipts: Sequence[Receipt]) -> list[AckResult]:
        end, results = 0, []
        for receipt in receipts:
            result, at = self._cancel(receipt)
            results.append(RESULTS[result])
            end = max(end, at)
        if end:
            reach("ack_appended")
            self._putting.appended()
            self._settle(end)
        return results

    def _cancel(self, receipt: Receipt) -> tuple[CancelResult, int]:
        if receipt.store_id != self._store_id:
            return CancelResult.UNKNOWN, 0
        named = self._named(receipt)
        if named is not None:
            return self._canceller.cancel_handle(named)
        return self._canceller.cancel(self._handle(receipt))

    def nack(self, given: Given, delay: object) -> AckResult:
        """As TimerStore.nack."""
        receipt = _receipt_of(given)
        wait_ms = receipt.backoff_ms if delay is None else delay_ms("delay", delay)
        if wait_ms > self._config.delay_ms_max:
            raise MessageError(
                f"delay: wanted at most {self._config.delay_ms_max} ms, got {wait_ms}"
            )
        if receipt.is_last:  # to the dead letters: there is nothing to wait for
            wait_ms = 0
        moved = self._move(receipt, self._clock.now_ms + wait_ms)
        return AckResult.NACKED if isinstance(moved, PutReceipt) else moved

    def extend(self, given: Given, lease: object) -> str:
        """As TimerStore.extend."""
        longer = self._extend(_receipt_of(given), check_lease(self._config, lease))
        if isinstance(longer, AckResult):
            raise LeaseLostError(
                "extend: the lease is not held any more",
                wanted="one that is neither over nor settled",
                got=longer,
                result=longer,
            )
        return write_receipt(longer)

    def _extend(self, receipt: Receipt, lease_ms: int) -> Receipt | AckResult:
        """Give the receipt of a longer lease; or what became of this one before."""
        until_ms = self._clock.now_ms + lease_ms
        moved = self._move(receipt, until_ms)
        if isinstance(moved, AckResult):
            return moved
        if moved.timer_id < 0:
            return AckResult.EXPIRED  # the new one is over already: its message came again
        return receipt._replace(
            opening=self._opening,
            until_ms=until_ms,
            timer_id=moved.timer_id,
            log_offset=moved.log_offset,
        )

    def _move(self, receipt: Receipt, deliver_ms: int) -> PutReceipt | AckResult:
        """Have its message come at another time; or what became of it before."""
        if receipt.store_id != self._store_id:
            return AckResult.UNKNOWN
        rescheduler, named = self._rescheduler, self._named(receipt)
        try:
            if named is not None:
                try:
                    moved = rescheduler.reschedule_handle(named, deliver_ms)
                except GoneError:  # retention has moved the record
                    named = None
            if named is None:
                handle = self._handle(receipt)
                moved = rescheduler.reschedule(handle, None, None, deliver_ms)
        except NotPendingError as error:
            return RESULTS[CancelResult(error.result)]
        self._putting.appended()
        return moved

    def _named(self, receipt: Receipt) -> FoundTimer | None:
        """What a receipt of this opening names; of another one the timer id may be another's."""
        if receipt.opening != self._opening:
            return None
        route = self._routes.get(receipt.lease_topic, receipt.queue_id)
        if route is None:
            return None
        slot_ms = out_ms(receipt.until_ms, self._config.precision_ms)
        until_ms, at = receipt.until_ms, receipt.log_offset
        return FoundTimer(receipt.timer_id, receipt.message_id, route, slot_ms, until_ms, at)

    def _handle(self, receipt: Receipt) -> Handle:
        return Handle(
            receipt.lease_topic,
            self._config.broker_name,
            out_ms(receipt.until_ms, self._config.precision_ms) + 1,
            receipt.message_id,
            receipt.timer_id,
        )


def _receipt_of(given: object) -> Receipt:
    return read_receipt(given.receipt if isinstance(given, LeasedMessage) else given)
