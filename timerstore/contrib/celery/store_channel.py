"""A channel of kombu on a store.

    queue               a topic; the workers are one group of it
    broadcast queue     one that is auto-delete or exclusive: reads the topics of its exchanges
    binding             a message in a topic of its own (bindings.py)

Thread safety: as kombu's channels, one thread at a time; any thread may settle messages.
Raises: MessageError for a queue name or an `eta` that is invalid. What calls of a store raise.
"""

import logging
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual

from timerstore.contrib.celery.bindings import BROADCAST, Binding
from timerstore.contrib.celery.broadcasts import ROUTING_KEY_PROPERTY, BroadcastQueue, tag_of
from timerstore.contrib.celery.broker import Broker
from timerstore.contrib.celery.consuming import Consuming
from timerstore.contrib.celery.held_leases import LEASE_S
from timerstore.contrib.celery.not_offered import NOT_OFFERED
from timerstore.contrib.celery.prefetch import Prefetch, broadcast_tag
from timerstore.contrib.celery.wire import (
    GROUP,
    pack,
    priority_of,
    put_options,
    queue_of,
    topic_of,
    topic_of_exchange,
    unpack,
)

_MAX_ATTEMPTS = 16
_PAGE = 500

_log = logging.getLogger(__name__)


class StoreChannel(virtual.Channel):
    """kombu's channel."""

    QoS = Prefetch
    supports_fanout = True
    do_restore = False  # the leases are returned by Prefetch
    max_attempts = _MAX_ATTEMPTS
    from_transport_options = (*virtual.Channel.from_transport_options, "max_attempts")

    def __init__(self, connection: Any, **options: Any) -> None:
        self.broker: Broker = connection.broker
        super().__init__(connection, **options)
        self._no_ack: set[str] = set()
        self.consuming = Consuming(self.broker, self.max_attempts)

    # --- exchanges and queues ---

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        **options: Any,
    ) -> None:
        """Declare an exchange. It is stored with its first binding."""
        if type and type not in self.exchange_types:
            reason = NOT_OFFERED.get(f"{type} exchanges", "wanted direct, topic or fanout")
            raise ChannelError(f"exchange {exchange!r}: type {type!r} is not offered: {reason}")
        super().exchange_declare(exchange, type, **options)

    def exchange_delete(self, exchange: str, **_options: Any) -> None:
        """Remove the bindings of an exchange."""
        for one in self.broker.bindings.of(exchange):
            self.broker.bindings.remove(one)
        self.state.exchanges.pop(exchange, None)

    def _new_queue(self, queue: str, **options: Any) -> None:
        if options.get("auto_delete") or options.get("exclusive"):
            self._broadcasts.setdefault(queue, BroadcastQueue(queue, self.broker))
        else:
            topic_of(queue)  # raises for an invalid name

    def _has_queue(self, queue: str, **_options: Any) -> bool:
        return (
            queue in self._broadcasts
            or topic_of(queue) in self.broker.store.topics()
            or bool(self.broker.bindings.of_queue(queue))
        )

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: object = None,
        **_options: Any,
    ) -> None:
        """Bind a queue to an exchange, for all processes."""
        exchange = exchange or "amq.direct"
        kind = self._type_of(exchange)
        if (broadcast := self._broadcasts.get(queue)) is not None:
            broadcast.bind(exchange, kind, routing_key)
        else:
            self.broker.bindings.add(Binding(exchange, kind, routing_key, queue))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: object = None,
        **_options: Any,
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        if (broadcast := self._broadcasts.get(queue)) is not None:
            broadcast.unbind(exchange)
        else:
            kind = self._type_of(exchange)
            self.broker.bindings.remove(Binding(exchange, kind, routing_key, queue))

    def queue_delete(
        self,
        queue: str,
        if_unused: bool = False,
        if_empty: bool = False,
        **_options: Any,
    ) -> None:
        """Remove a queue: its topic with all messages, and its bindings."""
        if self._broadcasts.pop(queue, None) is not None or (if_empty and self._size(queue)):
            return
        for one in self.broker.bindings.of_queue(queue):
            self.broker.bindings.remove(one)
        self.broker.store.delete_topic(topic_of(queue))

    def _size(self, queue: str) -> int:
        if queue in self._broadcasts:
            return 0
        ready: int = self.broker.store.backlog(topic_of(queue), GROUP).ready
        return ready

    def _purge(self, queue: str) -> int:
        """Remove the messages of a queue, those that are not due included. Return their number."""
        if queue in self._broadcasts:
            return 0
        store, topic = self.broker.store, topic_of(queue)
        handles = [one.handle for one in store.pending(topic=topic)]
        count = sum(str(one) == "CANCELLED" for one in store.cancel_many(handles))
        while found := store.receive(topic, GROUP, max_count=_PAGE, lease=LEASE_S):
            store.ack_many(found)
            count += len(found)
        return count

    def get_table(self, exchange: str) -> list[Any]:
        """Return the bindings of an exchange, in kombu's form."""
        prepare = self.typeof(exchange).prepare_bind
        return [
            prepare(one.queue, exchange, one.routing_key, {})
            for one in self.broker.bindings.of(exchange)
            if one.queue != BROADCAST
        ]

    def _type_of(self, exchange: str) -> str:
        """Return the type of an exchange: as declared here, or as it was bound elsewhere."""
        if (declared := self.state.exchanges.get(exchange)) is not None:
            return str(declared["type"])
        found = self.broker.bindings.of(exchange)
        return found[0].type if found else "direct"

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """Return kombu's object for the type of an exchange."""
        return self.exchange_types[self._type_of(exchange)]

    @property
    def _broadcasts(self) -> dict[str, BroadcastQueue]:
        found: dict[str, BroadcastQueue] = self.connection.broadcasts
        return found

    # --- publishing ---

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **_options: Any
    ) -> None:
        """Store a message for each queue that gets it. It is durable on return, for broadcast
        queues soon after.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        for queue in self._lookup(exchange, routing_key):
            self._put(queue, message)
        if any(one.queue == BROADCAST for one in self.broker.bindings.of(exchange)):
            self._put_broadcast(exchange, routing_key, message)

    def _put_broadcast(self, exchange: str, routing_key: str, message: dict[str, Any]) -> None:
        self.broker.store.put(
            topic_of_exchange(exchange),
            pack(message),
            queue_id=0,
            tags=tag_of(routing_key),
            properties={ROUTING_KEY_PROPERTY: routing_key} if routing_key else None,
            flush="async",
        )

    def _put(self, queue: str, message: dict[str, Any], **_options: Any) -> None:
        self.broker.store.put(topic_of(queue), pack(message), **put_options(message))

    # --- consuming ---

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Any,
        consumer_tag: str,
        **options: Any,
    ) -> None:
        """Consume from a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self._no_ack.add(queue)
        else:
            self._no_ack.discard(queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Messages that are on their way go to others."""
        super().basic_cancel(consumer_tag)
        if not self.closed:  # else all are cancelled
            self._want(0)

    def begin(self) -> None:
        """Begin to wait for messages, as far as the consumers take more."""
        self._want(self.qos.free_count)

    def _want(self, free_count: int) -> None:
        queues = list(dict.fromkeys(self._active_queues))
        self.consuming.want(
            [topic_of(one) for one in queues if one not in self._broadcasts],
            free_count,
            [self._broadcasts[one] for one in queues if one in self._broadcasts],
        )

    def take_tasks(self) -> int:
        """Deliver the tasks that have come; return their number."""
        found = self.consuming.take_tasks()
        left = {one.receipt: queue_of(one.topic) for one in found}
        if no_ack := [receipt for receipt, queue in left.items() if queue in self._no_ack]:
            self.broker.store.ack_many(no_ack)
        if len(left) > len(no_ack):
            self.broker.leases.add(left.keys() - set(no_ack))
        try:
            for one in found:
                queue = left.pop(one.receipt)
                if (message := self._unpacked(one)) is not None:
                    self.connection._deliver(message, queue)
        finally:
            if left:  # a consumer raised an error, so the others do not get theirs
                self.broker.leases.give_back(left.keys() - set(no_ack))
        return len(found)

    def _unpacked(self, found: Any) -> dict[str, Any] | None:
        """Return a task. A message of another program becomes a dead letter."""
        try:
            return unpack(found, found.receipt, is_redelivered=found.attempt > 1)
        except ValueError as error:
            reason = f"not a message of kombu: {error}"
        _log.error("topic %s: a message is now a dead letter: %s", found.topic, reason)
        self.broker.leases.settle(
            found.receipt, lambda receipt: self.broker.store.bury(receipt, error=reason)
        )
        return None

    def take_broadcasts(self) -> int:
        """Deliver the broadcast messages that have come; return their number."""
        count = 0
        for queue, found in self.consuming.take_broadcasts():
            messages = [unpack(one, broadcast_tag(), is_redelivered=False) for one in found]
            for message in sorted(messages, key=priority_of, reverse=True):
                self.connection._deliver(message, queue.name)
            count += len(found)
        return count

    def basic_get(self, queue: str, no_ack: bool = False, **_options: Any) -> Any:
        """Return the next message of a queue, or None."""
        raw = (
            self._next_broadcast(queue)
            if queue in self._broadcasts
            else self._next_task(queue, no_ack)
        )
        if raw is None:
            return None
        message = self.Message(raw, channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def _next_task(self, queue: str, no_ack: bool) -> dict[str, Any] | None:
        store = self.broker.store
        found = store.receive(topic_of(queue), GROUP, lease=LEASE_S, max_attempts=self.max_attempts)
        if not found:
            return None
        if no_ack:
            store.ack(found[0])
        else:
            self.broker.leases.add([found[0].receipt])
        return self._unpacked(found[0])

    def _next_broadcast(self, queue: str) -> dict[str, Any] | None:
        for source in self._broadcasts[queue].sources:
            for one in source.pull():
                return unpack(one, broadcast_tag(), is_redelivered=False)
        return None

    def close(self) -> None:
        """End the consumers and return the messages that they have not settled."""
        if not self.closed:
            self.consuming.cancel()
        super().close()
