"""Transactions: EndTransaction, and the checks of half messages without an end.

    SendMessage TRANSACTION -> put(check_after=) -> a transaction id, which is the handle
    EndTransaction          -> commit or rollback of that id
    neither                 -> %HALF%<topic> -> a lease -> a command to a live producer of the topic
    its EndTransaction      -> commit or rollback of the lease
    no answer               -> the lease ends, and the next producer is asked
    after 15 checks         -> the dead letters of CHECK_GROUP

A producer is live while its Telemetry stream is open. Without one nothing is leased: checks wait.

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
from timerstore.rocketmq.client_names import resource_name
from timerstore.rocketmq.codes import RejectedError, status
from timerstore.rocketmq.definitions import Code, MessageType, TransactionResolution, messages
from timerstore.rocketmq.message_views import milliseconds, view
from timerstore.rocketmq.rocketmq_limits import PRODUCER_TOPICS_MAX
from timerstore.rocketmq.settling import Settling

_log = logging.getLogger(__name__)

CHECK_GROUP = "CID_SYS_RMQ_TRANS"
"""The group that leases checks, as a broker names it."""
CHECKS_MAX = 15
_CHECK_AFTER_S = 30.0
"""Until the first check, unless the message says otherwise. As a broker's interval of checks."""
_CHECK_LEASE_S = 30.0
"""Until the next check, if no producer has answered."""
_COUNT = 32  # checks that are leased at a time
_WAIT_S = 600.0
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

    def __init__(self, send: Send) -> None:
        self.send = send
        self.topics: dict[str, Any] = {}  # by name, the Resource by which the client names it


class Transactions(NotCopyable):
    """The transactions of a server."""

    def __init__(self, store: AsyncTimerStore, settling: Settling) -> None:
        self._store = store
        self._settling = settling
        self._producers: dict[str, list[Producer]] = {}  # by topic; the next one to ask is first
        self._checks: dict[str, asyncio.Task[None]] = {}  # by topic

    async def end(self, request: Any) -> Any:
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
        return messages.EndTransactionResponse(
            status=status() if is_done else status(Code.INVALID_TRANSACTION_ID, result)
        )

    # --- live producers ---

    @contextmanager
    def stream(self, send: Send) -> Iterator[Producer]:
        """Return the producer of a Telemetry stream, which is live while the block runs."""
        one = Producer(send)
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
                await self._check_some(topic)
            except (ClosedError, FailedError):  # the server ends
                self._producers.clear()
            except Exception as error:  # noqa: BLE001 - logged; a loop without a pause is worse
                is_known = isinstance(error, TimerStoreError)
                _log.warning(
                    "half messages of %s are checked later: %r", topic, error, exc_info=not is_known
                )
                await asyncio.sleep(_PAUSE_S)

    async def _check_some(self, topic: str) -> None:
        found = await self._store.receive(
            half_topic(topic), CHECK_GROUP, lease=_CHECK_LEASE_S, max_count=_COUNT, wait=_WAIT_S,
            max_attempts=CHECKS_MAX,
        )  # fmt: skip
        try:
            while found:
                # If this is cancelled, the producer may have the check: its lease must stay.
                await self._check(topic, found.pop(0))
        finally:
            self._settling.give_back(found)  # those that no producer was asked about

    async def _check(self, topic: str, message: LeasedMessage) -> None:
        """Ask the next live producer about a message; without one, give the message back."""
        while producers := self._producers.get(topic):
            producers.append(one := producers.pop(0))
            try:
                shown = view(message, one.topics[topic], round(_CHECK_LEASE_S * 1000))
            except (CorruptError, MessageError) as error:  # no client can read it
                await self._settling.bury(message.receipt, str(error))
                return
            shown.system_properties.message_type = MessageType.TRANSACTION
            command = messages.RecoverOrphanedTransactionCommand(
                message=shown, transaction_id=message.receipt
            )
            try:
                await one.send(
                    messages.TelemetryCommand(
                        status=status(), recover_orphaned_transaction_command=command
                    )
                )
            except Exception as error:  # noqa: BLE001 - of grpc: the stream has ended
                _log.info("a producer of %s was not asked: %r", topic, error)
                self._leave(one)
                continue
            return
        self._settling.give_back([message])

    def close(self) -> None:
        """End the checks. Messages that are leased and not answered are checked again later."""
        self._producers.clear()
        for task in list(self._checks.values()):
            task.cancel()
