"""Receive messages under leases; acknowledge, extend or give back a lease.

Thread safety: any thread.
Locking: `_lock` for the table of readers, then the lock of Groups; each reader has its own lock.
Invariants:
    1. Like a put, each call returns when its result is durable (`flush="sync"`), or survives a
       crash of the process (`flush="async"`).
    2. A lease has one outcome: its receipt settles it, or its message is delivered again. The state
       of its timer decides, in the critical section that appends the record.
    3. A message that no consumer saw is given back: its attempt does not count, and the next
       `receive` gets it. Its record is in the log, so no crash makes it a dead letter.
Raises: MessageError on a text that is not a receipt; LeaseLostError; what reads and puts raise.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from timerstore._engine.base import argument_types
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import (
    BACKOFF_PROPERTY,
    Receipt,
    dead_letter_topic,
    not_renewed,
    renewed,
    retry_topic,
    uncounted_properties,
    with_error,
    write_receipt,
)
from timerstore._engine.leases.backoff import delay_ms
from timerstore._engine.leases.lease_appender import LeaseAppender
from timerstore._engine.leases.lease_reader import (
    LeaseReader,
    MakeConsumer,
    TopicTurns,
    WaitingReceive,
    recalled,
)
from timerstore._engine.leases.lease_timers import LeaseKinds, LeaseTimers
from timerstore._engine.leases.leased_message import (
    RESULTS,
    AckResult,
    LeasedMessage,
    UnclaimedLeases,
    lost,
)
from timerstore._engine.leases.message_order import MessageOrder
from timerstore._engine.leases.receive_request import (
    LeaseCall,
    ReceiptOrMessage,
    ReceiveChecks,
    ReceiveRequest,
    ReceiveTerms,
    Settled,
    Topics,
    check_error,
    check_lease,
    check_topics,
    receipt_of,
)
from timerstore._engine.leases.shared_receive import BegunReceive, Source, receive_together
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.consumer_offsets import LeaseProgress
from timerstore._engine.read.filter import make_filter
from timerstore._engine.read.groups import Filters, Groups
from timerstore._engine.read.waiting import wait_in_thread
from timerstore._engine.timer.handle_lookup import HandleLookup
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import Canceller
from timerstore._engine.write.reschedule import Rescheduler, Rewrite, Sync
from timerstore.errors import GoneError, MessageError, NotPendingError, TimerStoreError
from timerstore.types.receipts import PutReceipt
from timerstore.types.reports import CancelResult

_logger = logging.getLogger("timerstore.leases")
Within = Callable[[Callable[[], Any]], Any]
_MAY_BE_RENEWED = (AckResult.SETTLED, AckResult.UNKNOWN)
_IN_BACKOFF = f"{BACKOFF_PROPERTY}\x011\x02".encode()


def _kept(kept: bytes) -> tuple[bytes, None]:
    return kept, None


def _in_backoff(kept: bytes) -> tuple[bytes, None]:
    """Mark a message that `nack` returned."""
    return kept + _IN_BACKOFF, None


class Leases(NotCopyable):
    """The leases of one store."""

    def __init__(
        self,
        core: Core,
        lease_progress: LeaseProgress,
        canceller: Canceller,
        rescheduler: Rescheduler,
        appender: Appender,
        groups: Groups,
        make_consumer: MakeConsumer,
        kinds: LeaseKinds,
        lookup: HandleLookup,
    ) -> None:
        self._clock = core.clock
        self._checks = ReceiveChecks(core.config)
        self._log = core.log
        self._config = core.config
        self._appender = appender
        self._groups = groups
        self._make_consumer = make_consumer
        self._opening = secrets.randbits(32)
        self._leasing = LeaseAppender(
            core.store_id, lease_progress, core.clock, appender, self._opening, kinds
        )
        self._kinds = kinds
        self._lock = Lock()
        self._readers: dict[tuple[str, str], LeaseReader] = {}
        self._turns: dict[tuple[tuple[str, ...], str], TopicTurns] = {}  # by topics and group
        self._routes = core.routes
        self._timer_route = core.timer_route
        self._lease_progress = lease_progress
        self._store_id = core.store_id
        self._canceller = canceller
        self._rescheduler = rescheduler
        self._timers = LeaseTimers(core, self._opening, lookup)
        self._unclaimed = UnclaimedLeases()

    # --- receiving ---

    def receive(self, request: ReceiveRequest) -> list[LeasedMessage]:
        """Lease messages, as TimerStore.receive."""
        source, terms = self._prepare(request)
        acked_end = self._ack_first(request) if request.ack else 0
        leased: list[LeasedMessage] = []
        try:
            found = self._take(source, terms, leased)
            if acked_end and not found:
                self._settle(acked_end)
            if found or terms.wait_s == 0:
                return found
            waiting = source.begin(terms, lambda: self._take(source, terms, leased))
            return wait_in_thread(waiting, found)
        except BaseException:  # also of a signal handler: the caller does not get the messages
            self._return_unseen(leased)
            raise

    def begin(self, request: ReceiveRequest, within: Within) -> WaitingReceive:
        """Begin a `receive` during which the caller waits; `within` runs each look."""
        source, terms = self._prepare(request)
        if request.ack:
            self._settle(self._ack_first(request))
        return source.begin(terms, lambda: within(lambda: self._take(source, terms, [])))

    def make_each(
        self, calls: Sequence[LeaseCall | ReceiveRequest], within: Within
    ) -> list[Settled | BegunReceive | Exception]:
        """Make calls of several callers with one sync, those that settle leases first.

        Messages of a `receive` are unclaimed until `claim`; without one it begins to wait.
        """
        acked, moved = [0], [0]  # the ends of the log that must be durable
        answers: list[Any] = [self._answer(call, acked, moved) for call in calls]
        if len(acked) + len(moved) > 2:
            self._appended()
        receiving = [at for at, one in enumerate(answers) if one is None]
        requests = [one for at in receiving if isinstance(one := calls[at], ReceiveRequest)]
        received = receive_together(
            requests,
            self._prepare,
            lambda source, terms: self._take(source, terms, [], syncs=False),
        )
        self._settle(max(acked))
        if any(isinstance(one, BegunReceive) and one.found for one in received):
            self._settle_received()
        self._log.sync_through(max(moved))  # as each `nack`, `bury` and `extend` does
        for at, got in zip(receiving, received, strict=True):
            answers[at] = self._begun(got, within) if isinstance(got, BegunReceive) else got
        return answers

    def _begun(self, begun: BegunReceive, within: Within) -> BegunReceive | Exception:
        """Begin the wait of a call without a message. Return the call, or the error."""
        source, terms = begun.source, begun.terms  # the wait has no reference to the call

        def take() -> list[LeasedMessage]:
            found = self._take(source, terms, [])
            self._unclaimed.add(found)
            return found

        self._unclaimed.add(begun.found)
        if not begun.found and (terms.wait_s > 0 or begun.is_postponed):
            try:
                begun.waiting = source.begin(terms, lambda: within(take))
            except TimerStoreError as error:
                return error
        return begun

    def claim(self, messages: Sequence[LeasedMessage]) -> list[LeasedMessage]:
        """Return those of unclaimed messages that are now the caller's.

        The others were given back, as the store was being closed.
        """
        return self._unclaimed.claim(messages)

    def _prepare(self, request: ReceiveRequest) -> tuple[Source, ReceiveTerms]:
        terms = self._checks.terms(request)
        self._log.check_alive()
        try:
            return self._readers[request.topic, request.group], terms  # type: ignore[index]
        except (KeyError, TypeError):
            return self._source(request.topic, request.group, terms.filters), terms

    def _source(self, topic: Topics, group: str, filters: Filters) -> Source:
        """Return a new reader of a topic, or the turns of several."""
        topics = check_topics(topic, group)
        make_filter(self._timer_route, *filters)  # raises before the group leases a topic
        readers = [self._reader(one, group) for one in topics]
        if len(readers) == 1:
            return readers[0]
        with self._lock:
            key = tuple(sorted(topics)), group
            return recalled(self._turns, key, TopicTurns(readers))

    def _reader(self, topic: str, group: str) -> LeaseReader:
        with self._lock:
            reader = self._readers.get((topic, group))
            if reader is None:
                # Before the first read, so that no consumer can join the group.
                self._groups.lease(topic, group, retry_topic(topic, group))
                reader = LeaseReader(
                    topic, group, self._leasing, self._make_consumer, self._lease_progress,
                    self._routes, partial(MessageOrder, self._log, self._routes, topic, group),
                )  # fmt: skip
                self._readers[topic, group] = reader
            return reader

    def end_calls(self) -> None:
        """Return when no call leases messages of a topic whose deletion began after it."""
        for one in list(self._readers.values()):
            if self._routes.is_deleting(one.topic):
                one.end_call()

    def _take(
        self,
        source: Source,
        terms: ReceiveTerms,
        leased: list[LeasedMessage],
        *,
        syncs: bool = True,
    ) -> list[LeasedMessage]:
        """Lease messages, durably if it `syncs`; `leased` has each as soon as it is leased."""
        try:
            source.take(terms, leased)
        except BaseException:
            mine = list(leased)
            leased.clear()
            self._return_unseen(mine)
            raise
        if leased and syncs:
            self._settle_received()
        return leased

    def _settle_received(self) -> None:
        if self._config.flush == "sync":
            self._log.sync_through(self._log.end)
        reach("receive_answered")

    def _settle(self, end: int) -> None:
        """Return when all records below `end` are as safe as a put."""
        if self._config.flush == "sync":
            self._log.sync_through(end)

    # --- giving back what no consumer saw ---

    def give_back(self, targets: Iterable[ReceiptOrMessage], sync: Sync | None = None) -> int:
        """Give messages back that no consumer saw; return how many were still leased.

        Their attempts do not count, so a last attempt becomes no dead letter. The next `receive` of
        the group gets them, with any filter. It is durable on return. `sync`: as for
        Rescheduler.reschedule.
        """
        ends: list[int] = []
        count = 0
        try:
            for receipt in argument_types.each_of("receipts", targets, receipt_of):
                moved = self.move(receipt, 0, ends.append, partial(self._uncounted, receipt))
                count += isinstance(moved, PutReceipt)
        finally:
            (sync or self._log.sync_through)(max(ends, default=0))
        return count

    def give_back_unclaimed(self, messages: Sequence[LeasedMessage] | None = None) -> None:
        """Give back unclaimed messages; None: all, as the store is being closed."""
        unclaimed = self._unclaimed
        mine = unclaimed.take_all() if messages is None else unclaimed.claim(messages)
        self._return_unseen(mine)

    def _return_unseen(self, messages: Sequence[LeasedMessage]) -> None:
        """Give messages back after another error, or at the end of the store.

        If this fails, too, as on a full disk, they are delivered again when their leases end.
        """
        try:
            if messages:
                self.give_back(messages)
        except TimerStoreError as error:
            _logger.warning("messages=%d not given back error=%r", len(messages), str(error))

    def _uncounted(self, receipt: Receipt, kept: bytes) -> tuple[bytes, Route]:
        """Return the properties without the attempt, and the queue of the retry topic."""
        properties, queue_id, is_grouped = uncounted_properties(kept)
        topic, group = receipt.topic, receipt.group
        place = self._leasing.retry_place(topic, group, queue_id, is_grouped=is_grouped)
        return properties, place[1]

    # --- settling a lease ---

    def _ack_first(self, request: ReceiveRequest) -> int:
        """Make the acks of a `receive`. Return the log offset that must be durable, or 0."""
        ends = [0]
        self._cancel_each(request.acked(), ends)
        self._appended()
        return max(ends)

    def ack_one(self, target: ReceiptOrMessage) -> AckResult:
        """Acknowledge one lease, as TimerStore.ack."""
        return self._ack([receipt_of(target)])[0]

    def ack(self, targets: Iterable[ReceiptOrMessage]) -> list[AckResult]:
        """Acknowledge many leases, as TimerStore.ack_many."""
        return self._ack(argument_types.each_of("receipts", targets, receipt_of))

    def _ack(self, receipts: Sequence[Receipt]) -> list[AckResult]:
        ends = [0]
        results = self._cancel_each(receipts, ends)
        if end := max(ends):
            self._appended()
            self._settle(end)
        return results

    def _cancel_each(self, receipts: Sequence[Receipt], ends: list[int]) -> list[AckResult]:
        """Cancel the ends of leases. Add the log offsets that must be durable to `ends`."""
        results = []
        for receipt in receipts:
            result, end = self.cancel(receipt)
            results.append(RESULTS[result])
            ends.append(end)
        return results

    def _appended(self) -> None:
        reach("ack_appended")
        self._appender.notify_later()

    def cancel(self, receipt: Receipt) -> tuple[CancelResult, int]:
        if receipt.store_id != self._store_id:
            return CancelResult.UNKNOWN, 0
        present: Receipt | None = self._timers.present(receipt)
        while present is not None:
            tried = present
            result, end = self._cancel_timer(tried)
            present = self._again(receipt, tried) if RESULTS[result] in _MAY_BE_RENEWED else None
        if result is CancelResult.CANCELLED:
            self._timers.remove_renewal(receipt)
            self._message_done(receipt)
        return result, end

    def _message_done(self, receipt: Receipt) -> None:
        """Let the next message of the same message group be received."""
        reader = self._readers.get((receipt.topic, receipt.group))
        if reader is not None:
            reader.message_done(receipt)
        if receipt.is_last:
            self._groups.unblock(receipt.group)

    def _again(self, receipt: Receipt, tried: Receipt) -> Receipt | None:
        with self._timers.lock:
            return self._timers.again(receipt, tried)

    def _cancel_timer(self, receipt: Receipt) -> tuple[CancelResult, int]:
        timer = self._timers.timer_of(receipt)
        if timer is not None:
            return self._canceller.cancel_handle(timer)
        return self._canceller.cancel(self._timers.handle_of(receipt))

    def _answer(
        self, call: LeaseCall | ReceiveRequest, acked: list[int], moved: list[int]
    ) -> Settled | Exception | None:
        """Make a call; of a `receive` only its acks. Add the offset to sync through to a list."""
        try:
            if isinstance(call, ReceiveRequest):
                if call.ack:
                    self._prepare(call)  # a wrong argument raises before a lease is settled
                self._cancel_each(call.acked(), acked)
                return None
            if call.kind == "nack":
                return self.nack(call.target, call.delay, call.error, moved.append)
            if call.kind == "bury":
                return self.bury(call.target, call.error, moved.append)
            if call.kind == "extend":
                return self.extend(call.target, call.lease, moved.append)
            if call.kind == "renew":
                return self.renew(call.target, call.lease, moved.append)
            if call.kind == "give_back":
                return self.give_back(call.target, moved.append)
            if call.kind == "ack":
                return self._cancel_each([receipt_of(call.target)], acked)[0]
            receipts = argument_types.each_of("receipts", call.target, receipt_of)
            return self._cancel_each(receipts, acked)
        except Exception as error:  # noqa: BLE001 - raised to the caller of this call
            return error

    def nack(
        self,
        target: ReceiptOrMessage,
        delay: object,
        error: object,
        sync: Sync | None = None,
    ) -> AckResult:
        """Give a message back, as TimerStore.nack. `sync`: as for Rescheduler.reschedule."""
        receipt, reason = receipt_of(target), check_error(error)
        wait_ms = receipt.backoff_ms if delay is None else delay_ms("delay", delay)
        if wait_ms > self._config.delay_ms_max:
            raise MessageError(
                f"delay: wanted at most {self._config.delay_ms_max} ms, got {wait_ms}"
            )
        if receipt.is_last:  # a dead letter needs no delay
            wait_ms = 0
        deliver_ms = self._clock.now_ms + wait_ms
        rewrite = _kept if receipt.is_last else _in_backoff
        moved = self._move_noted(reason, receipt, deliver_ms, sync, rewrite)
        if isinstance(moved, AckResult):
            return moved
        if receipt.is_last:
            self._message_done(receipt)
        elif moved.timer_id >= 0:
            self._kinds.in_backoff.add(receipt.topic, receipt.group, moved.timer_id)
        return AckResult.NACKED

    def bury(self, target: ReceiptOrMessage, error: object, sync: Sync | None = None) -> AckResult:
        """Make a message a dead letter, as TimerStore.bury. `sync`: as for nack."""
        receipt, reason = receipt_of(target), check_error(error)
        if receipt.store_id != self._store_id:
            return AckResult.UNKNOWN

        def buried(kept: bytes) -> tuple[bytes, Route | None]:
            return kept, self._appender.route_to(dead_letter_topic(receipt.group))

        # 0: now, also if the clock is set back
        moved = self._move_noted(reason, receipt, 0, sync, buried)
        if isinstance(moved, AckResult):
            return moved
        self._message_done(receipt)
        return AckResult.BURIED

    def renew(self, target: ReceiptOrMessage, lease: object, sync: Sync | None = None) -> int:
        """Renew a lease, as TimerStore.renew. `sync`: as for Rescheduler.reschedule."""
        receipt, lease_ms = receipt_of(target), check_lease(self._config, lease)
        ends: list[int] = []
        try:
            return self._renew(receipt, lease_ms, ends.append)
        finally:
            (sync or self._log.sync_through)(max(ends, default=0))

    def _renew(self, receipt: Receipt, lease_ms: int, sync: Sync) -> int:

        def kept(properties: bytes) -> tuple[bytes, Route | None]:
            return renewed(receipt, properties), None

        if receipt.store_id != self._store_id:
            raise lost("renew", AckResult.UNKNOWN)
        with self._timers.lock:
            until_ms = self._clock.now_ms + lease_ms
            present: Receipt | None = self._timers.present(receipt)
            while present is not None:
                tried = present
                moved = self._move_timer(tried, until_ms, sync, kept)
                may_be = moved in _MAY_BE_RENEWED
                present = self._timers.again(receipt, tried) if may_be else None
            if isinstance(moved, AckResult):
                raise lost("renew", moved)
            if moved.timer_id < 0:  # the lease is over already: its message was delivered
                raise lost("renew", AckResult.EXPIRED)
            self._timers.add_renewal(receipt, self._moved(receipt, until_ms, moved))
        return until_ms

    def extend(self, target: ReceiptOrMessage, lease: object, sync: Sync | None = None) -> str:
        """Extend a lease, as TimerStore.extend. `sync`: as for Rescheduler.reschedule."""
        receipt, lease_ms = receipt_of(target), check_lease(self._config, lease)
        until_ms = self._clock.now_ms + lease_ms
        moved = self.move(receipt, until_ms, sync)
        if isinstance(moved, AckResult):
            raise lost("extend", moved)
        if moved.timer_id < 0:  # the new lease is over already: its message was delivered
            raise lost("extend", AckResult.EXPIRED)
        return write_receipt(self._moved(receipt, until_ms, moved))

    def _moved(self, receipt: Receipt, until_ms: int, moved: PutReceipt) -> Receipt:
        """Return the receipt of a lease with another end."""
        if receipt.is_last:
            self._kinds.last_attempts.add(receipt.topic, receipt.group, moved.timer_id)
        return receipt._replace(
            opening=self._opening,
            until_ms=until_ms,
            timer_id=moved.timer_id,
            log_offset=moved.log_offset,
        )

    def _move_noted(
        self,
        reason: str | None,
        receipt: Receipt,
        deliver_ms: int,
        sync: Sync | None,
        rewrite: Rewrite,
    ) -> PutReceipt | AckResult:
        """Move the end of a lease, and store a reason if the record has room for it."""
        if reason is None:
            return self.move(receipt, deliver_ms, sync, rewrite)

        def with_reason(kept: bytes) -> tuple[bytes, Route | None]:
            properties, to = rewrite(kept)
            return with_error(reason, properties), to

        try:
            return self.move(receipt, deliver_ms, sync, with_reason)
        except MessageError:  # nothing was changed
            return self.move(receipt, deliver_ms, sync, rewrite)

    def move(
        self, receipt: Receipt, deliver_ms: int, sync: Sync | None, rewrite: Rewrite | None = None
    ) -> PutReceipt | AckResult:
        """Move the end of a lease; return its outcome instead if it has one."""
        if receipt.store_id != self._store_id:
            return AckResult.UNKNOWN

        def not_kept(kept: bytes) -> tuple[bytes, Route | None]:
            properties = not_renewed(kept)
            return (properties, None) if rewrite is None else rewrite(properties)

        present: Receipt | None = self._timers.present(receipt)
        while present is not None:
            tried = present
            change = rewrite if tried is receipt else not_kept
            moved = self._move_timer(tried, deliver_ms, sync, change)
            present = self._again(receipt, tried) if moved in _MAY_BE_RENEWED else None
        if isinstance(moved, PutReceipt):
            self._timers.remove_renewal(receipt)
            if receipt.is_last:
                self._groups.unblock(receipt.group)
        return moved

    def _move_timer(
        self, receipt: Receipt, deliver_ms: int, sync: Sync | None, rewrite: Rewrite | None
    ) -> PutReceipt | AckResult:
        self._routes.refuse_deleting(receipt.topic)
        rescheduler, timer = self._rescheduler, self._timers.timer_of(receipt)
        try:
            if timer is not None:
                try:
                    moved = rescheduler.reschedule_handle(timer, deliver_ms, rewrite, sync)
                except GoneError:  # retention has moved the record
                    timer = None
            if timer is None:
                handle = self._timers.handle_of(receipt)
                moved = rescheduler.reschedule(handle, None, None, deliver_ms, rewrite, sync)
        except NotPendingError as error:
            return RESULTS[CancelResult(error.result)]
        self._appender.appended()
        return moved
