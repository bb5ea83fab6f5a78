"""Transactions: EndTransaction, and the checks of half messages without an end.

    SendMessage TRANSACTION -> put(check_after=) -> a transaction id, which is the handle
    EndTransaction          -> commit or rollback of that id
    neither                 -> %HALF%<topic> -> a lease -> a command to a live producer of the topic
    its EndTransaction      -> commit or rollback of the lease
    no answer               -> the lease ends, and the next producer is asked
    after 15 checks         -> the dead letters of CHECK_GROUP

A producer is live while its Telemetry stream is open. Without one nothing is leased: checks wait.
No client says whether it can answer checks. One can that has sent a transaction, or ended one, as
its library demands a checker for that. It is asked before the others, of which an attempt does not
count.

Thread safety: the server's loop only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import half_topic, topic_of_half
from timerstore._engine.leases import AckResult, LeasedMessage
from timerstore._engine.leases.half_messages import half_of
from timerstore.aio import AsyncTimerStore
from timerstore.errors import ClosedError, CorruptError, FailedError, MessageError, TimerStoreError
from timerstore.rocketmq.byte_budget import ByteBudget, answer_bytes
from timerstore.rocketmq.client_names import resource_name
from timerstore.rocketmq.codes import RejectedError, status
from timerstore.rocketmq.definitions import Code, MessageType, TransactionResolution, messages
from timerstore.rocketmq.known_clients import remember
from timerstore.rocketmq.message_views import milliseconds, view
from timerstore.rocketmq.rocketmq_limits import PRODUCER_TOPICS_MAX, RocketmqLimits
from timerstore.rocketmq.settling import Settling

_log = logging.getLogger(__name__)

CHECK_GROUP = "CID_SYS_RMQ_TRANS"
"""The group that leases checks, as a broker names it."""
CHECKS_MAX = 15
_CHECK_AFTER_S = 30.0
"""Until the first check, unless the message says otherwise. As a broker's interval of checks."""
_CHECK_LEASE_S = 30.0
"""Until the next check, if no producer has answered."""
_UNCOUNTED_S = _CHECK_LEASE_S - 1
"""After this a check is given back that no producer has taken of which it is known that it can
answer."""
_WAIT_S = 600.0
_WRITE_S = 1.0
"""After this a producer that has not taken a check is passed over, until it has taken it."""
_PAUSE_S = 1.0  # after an error that can pass
_DONE = {
    TransactionResolution.COMMIT: AckResult.COMMITTED,
    TransactionResolution.ROLLBACK: AckResult.ROLLED_BACK,
}

Send = Callable[[Any], Awaitable[None]]


def check_after_s(system: Any) -> float:
    """Return the seconds until the first check of a message."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return _CHECK_AFTER_S
    return milliseconds(system.orphaned_transaction_recovery_duration) / 1000


class Producer:
    """The Telemetry stream of a producer, and the topics that it names."""

    def __init__(self, client_id: str, send: Send) -> None:
        self.client_id = client_id
        self.send = send
        self.topics: dict[str, Any] = {}  # by name, the Resource by which the client names it
        self.is_passed_over = False  # it does not read a check that is being written, or is gone


class Transactions(NotCopyable):
    """The transactions of a server."""

    def __init__(
        self,
        store: AsyncTimerStore,
        settling: Settling,
        unsent: ByteBudget,
        limits: RocketmqLimits,
    ) -> None:
        self._store = store
        self._settling = settling
        self._unsent = unsent
        self._limits = limits
        self._producers: dict[str, list[Producer]] = {}  # by topic; the next one to ask is first
        self._checks: dict[str, asyncio.Task[None]] = {}  # by topic
        self._able: dict[str, None] = {}  # ids of the latest clients with transactions

    async def end(self, client_id: str, request: Any) -> Any:
        """Answer EndTransaction."""
        topic, wanted = resource_name(request.topic), _DONE.get(request.resolution)
        if wanted is None:
            raise RejectedError(
                Code.BAD_REQUEST, f"resolution: wanted COMMIT or ROLLBACK, got {request.resolution}"
            )
        try:
            found = topic_of_half(half_of(request.transaction_id).topic)
        except MessageError as error:
            raise RejectedError(Code.INVALID_TRANSACTION_ID, f"transaction_id: {error}") from error
        if found != topic:
            raise RejectedError(
                Code.ILLEGAL_TOPIC,
                f"topic: wanted that of the transaction, {found!r}, got {topic!r}",
            )
        end = self._store.commit if wanted is AckResult.COMMITTED else self._store.rollback
        result = await end(request.transaction_id)
        is_done = result is wanted
        self._can_answer(client_id)
        return messages.EndTransactionResponse(
            status=status() if is_done else status(Code.INVALID_TRANSACTION_ID, result)
        )

    # --- live producers ---

    @contextmanager
    def stream(self, client_id: str, send: Send) -> Iterator[Producer]:
        """Return the producer of a Telemetry stream, which is live while the block runs."""
        one = Producer(client_id, send)
        try:
            yield one
        finally:
            self._leave(one)

    async def publish(self, producer: Producer, topics: Sequence[Any]) -> None:
        """Let a producer be asked about its topics, the first ones if there are too many."""
        if len(topics) > PRODUCER_TOPICS_MAX:
            _log.warning(
                "a producer has %s topics; it is asked about half messages of the first %s",
                len(topics), PRODUCER_TOPICS_MAX,
            )  # fmt: skip
        self._leave(producer)
        producer.topics = {resource_name(one): one for one in topics[:PRODUCER_TOPICS_MAX]}
        for topic in producer.topics:
            self._producers.setdefault(topic, []).append(producer)
        known = await self._store.topics()
        for topic in producer.topics:
            if half_topic(topic) in known:
                self.begin(topic)

    def _leave(self, producer: Producer) -> None:
        for topic in producer.topics:
            left = self._producers.get(topic, [])
            if producer in left:
                left.remove(producer)
            if not left:
                self._producers.pop(topic, None)
                if (task := self._checks.get(topic)) is not None:
                    task.cancel()
        producer.topics = {}

    def sent(self, client_id: str, topic: str) -> None:
        """Check the half messages of a topic, as a client has sent one."""
        self._can_answer(client_id)
        self.begin(topic)

    def _can_answer(self, client_id: str) -> None:
        """Remember that a client has transactions, which its library demands a checker for."""
        remember(self._able, client_id, self._limits.clients_max)

    # --- checks ---

    def begin(self, topic: str) -> None:
        """Check the half messages of a topic, as long as it has a live producer."""
        if topic in self._producers and topic not in self._checks:
            self._checks[topic] = task = asyncio.ensure_future(self._check_all(topic))
            # Not in the task: one that is cancelled before its first step runs no `finally`.
            task.add_done_callback(partial(self._checks_ended, topic))

    def _checks_ended(self, topic: str, _task: object) -> None:
        del self._checks[topic]
        self.begin(topic)  # a producer may have come while the task was being cancelled

    async def _check_all(self, topic: str) -> None:
        while topic in self._producers:
            try:
                if not (self._next(topic) and await self._check_one(topic)):
                    await asyncio.sleep(_PAUSE_S)
            except (ClosedError, FailedError):  # the server ends
                self._producers.clear()
            except Exception as error:  # noqa: BLE001 - logged; a loop without a pause is worse
                is_known = isinstance(error, TimerStoreError)
                _log.warning(
                    "half messages of %s are checked later: %r", topic, error, exc_info=not is_known
                )
                await asyncio.sleep(_PAUSE_S)

    def _next(self, topic: str) -> list[Producer]:
        """Return the producers to ask, in this order: first those that can answer."""
        found = [one for one in self._producers.get(topic, ()) if not one.is_passed_over]
        return sorted(found, key=lambda one: one.client_id not in self._able)

    async def _check_one(self, topic: str) -> bool:
        """Ask about the next half message. Return False if no producer has taken the check."""
        found = await self._store.receive(
            half_topic(topic), CHECK_GROUP, lease=_CHECK_LEASE_S, wait=_WAIT_S,
            max_attempts=CHECKS_MAX,
        )  # fmt: skip
        return not found or await self._ask(topic, found[0])

    async def _ask(self, topic: str, message: LeasedMessage) -> bool:
        loop, receipts = asyncio.get_running_loop(), [message.receipt]
        # Also if this is cancelled, as the producer may have the check.
        uncounted = loop.call_later(_UNCOUNTED_S, self._settling.give_back, receipts)
        size = min(answer_bytes([message]), self._limits.unsent_bytes_max)
        is_begun = False
        for one in self._next(topic):
            live = self._producers.get(topic, [])
            if size > self._unsent.left_bytes or one not in live:
                continue
            live.remove(one)
            live.append(one)
            try:
                command = _command(message, one.topics[topic])
            except (CorruptError, MessageError) as error:  # no client can read it
                await self._settling.bury(message.receipt, str(error))
                return True
            self._unsent.take(size)
            writing = asyncio.ensure_future(one.send(command))
            writing.add_done_callback(partial(self._written, one, size))
            await asyncio.wait([writing], timeout=_WRITE_S)
            if not writing.done():
                is_begun = one.is_passed_over = True
            elif not one.is_passed_over:
                if one.client_id in self._able:
                    uncounted.cancel()
                return True
            _log.info("a producer of %s does not read checks, or is gone", topic)
        if not is_begun:
            uncounted.cancel()
            self._settling.give_back(receipts)
        return False

    def _written(self, producer: Producer, size: int, writing: asyncio.Future[None]) -> None:
        self._unsent.release(size)
        producer.is_passed_over = writing.cancelled() or writing.exception() is not None

    def close(self) -> None:
        """End the checks. Messages that are leased and not answered are checked again later."""
        self._producers.clear()
        for task in list(self._checks.values()):
            task.cancel()


def _command(message: LeasedMessage, topic: Any) -> Any:
    """Return a check as a producer gets it."""
    shown = view(message, topic, round(_CHECK_LEASE_S * 1000))
    shown.system_properties.message_type = MessageType.TRANSACTION
    check = messages.RecoverOrphanedTransactionCommand(
        message=shown, transaction_id=message.receipt
    )
    return messages.TelemetryCommand(status=status(), recover_orphaned_transaction_command=check)
