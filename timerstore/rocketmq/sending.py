"""SendMessage and RecallMessage.

A message that a client sends again, with the same id, is stored once. A recall is `cancel`: it says
the truth, also the second time.

Thread safety: the server's loop only.
"""

from typing import Any

from timerstore._engine.format import handle
from timerstore.aio import AsyncTimerStore
from timerstore.errors import TimerStoreError
from timerstore.rocketmq.byte_budget import ByteBudget
from timerstore.rocketmq.client_names import ClientNames, resource_name
from timerstore.rocketmq.codes import RejectedError, joint, recalled, status, status_of
from timerstore.rocketmq.definitions import Code, MessageType, messages
from timerstore.rocketmq.message_views import body_of, milliseconds, type_name
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits
from timerstore.rocketmq.transactions import Transactions, check_after_s

_NOT_YET = frozenset({MessageType.LITE})
_FIELD_OF = {
    "delivery_timestamp": MessageType.DELAY,
    "priority": MessageType.PRIORITY,
    "message_group": MessageType.FIFO,
    "orphaned_transaction_recovery_duration": MessageType.TRANSACTION,
}
"""The fields that a message of one type has, and no other."""


class Sending:
    """The calls of producers."""

    def __init__(
        self,
        store: AsyncTimerStore,
        names: ClientNames,
        limits: RocketmqLimits,
        requests: ByteBudget,
        transactions: Transactions,
    ) -> None:
        self._store = store
        self._requests = requests
        self._names = names
        self._limits = limits
        self._transactions = transactions

    async def send(self, client_id: str, request: Any) -> Any:
        """Answer SendMessage, with an entry for each message."""
        count = len(request.messages)
        if not 1 <= count <= self._limits.entries_max:
            raise RejectedError(
                Code.BAD_REQUEST,
                f"messages: wanted 1 to {self._limits.entries_max}, got {count}",
            )
        # One after the other: a call has one inflated body in memory, and sees its own topics. The
        # official clients send one message in a call.
        entries = [await self._entry(client_id, one) for one in request.messages]
        return messages.SendMessageResponse(status=joint(entries), entries=entries)

    async def _entry(self, client_id: str, message: Any) -> Any:
        message_id = message.system_properties.message_id
        try:
            return await self._put(client_id, message, message_id)
        except (TimerStoreError, RejectedError) as error:
            found = status_of(error)
            if found is None:
                raise
            return messages.SendResultEntry(status=found, message_id=message_id)

    async def _put(self, client_id: str, message: Any, message_id: str) -> Any:
        topic, system = resource_name(message.topic), message.system_properties
        options = _options_of(system)
        bytes_max = self._store.config.message_bytes_max
        body = body_of(message, bytes_max, self._requests.left_bytes)
        with self._requests.hold(len(body)):
            await self._names.check_topic(topic, is_put=True)
            receipt = await self._store.put(
                topic,
                body,
                message_id=message_id or None,
                tags=system.tag or None,
                keys=list(system.keys),
                properties=dict(message.user_properties),
                **options,
            )
        if "check_after" in options:
            self._transactions.sent(client_id, topic)
            return messages.SendResultEntry(
                status=status(), message_id=receipt.message_id, transaction_id=receipt.handle
            )
        return messages.SendResultEntry(
            status=status(),
            message_id=receipt.message_id,
            offset=receipt.queue_offset or 0,
            recall_handle=receipt.handle if receipt.queue_offset is None else "",
        )

    async def recall(self, request: Any) -> Any:
        """Answer RecallMessage."""
        topic = resource_name(request.topic)
        found = handle.decode(request.recall_handle)
        if found.topic != topic:
            raise RejectedError(
                Code.ILLEGAL_TOPIC,
                f"topic: wanted that of the recall handle, {found.topic!r}, got {topic!r}",
            )
        result = await self._store.cancel(request.recall_handle)
        return messages.RecallMessageResponse(status=recalled(result), message_id=found.message_id)


def _options_of(system: Any) -> dict[str, Any]:
    """Return the arguments of `put` that the type of a message stands for."""
    kind = system.message_type
    if kind in _NOT_YET:
        raise RejectedError(
            Code.UNSUPPORTED,
            f"message_type: {type_name(kind)} messages are not supported yet; wanted NORMAL, "
            "FIFO, DELAY, PRIORITY or TRANSACTION",
        )
    for name, wanted in _FIELD_OF.items():
        if kind != wanted and system.HasField(name):
            raise RejectedError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"{name}: wanted none in a {type_name(kind)} message, as it makes it a "
                f"{wanted.name} one",
            )
    if kind == MessageType.NORMAL:
        return {}
    if kind == MessageType.TRANSACTION:
        return {"check_after": check_after_s(system)}
    if kind == MessageType.PRIORITY:
        return {"priority": system.priority}
    if kind == MessageType.DELAY:
        return {"deliver_ms": _deliver_ms(system)}
    if kind == MessageType.FIFO:
        return {"message_group": system.message_group}
    raise RejectedError(
        Code.BAD_REQUEST,
        f"message_type: wanted NORMAL, FIFO, DELAY, PRIORITY or TRANSACTION, got {type_name(kind)}",
    )


def _deliver_ms(system: Any) -> int:
    if not system.HasField("delivery_timestamp") or system.delivery_timestamp.seconds <= 0:
        raise RejectedError(
            Code.ILLEGAL_DELIVERY_TIME,
            "delivery_timestamp: wanted seconds since 1970 in a DELAY message, got "
            f"{system.delivery_timestamp.seconds}",
        )
    return milliseconds(system.delivery_timestamp)
