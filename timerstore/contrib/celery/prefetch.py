"""The messages that the consumers of a channel have, and how many more they take (kombu's QoS).

The delivery tag of a task is the receipt of its lease. So a task can be acknowledged after its
channel was closed, as Celery does after it has connected again.

Thread safety: any thread may settle a message; one consumes.
"""

import logging
import uuid
from typing import Any

from kombu.message import Message

from timerstore.contrib.celery.broker import Broker

UNLIMITED = 100
"""Messages for one `receive` of consumers without a limit."""
_BROADCAST_TAG = "broadcast-"

_log = logging.getLogger(__name__)


def broadcast_tag() -> str:
    """Return a delivery tag for a message without a lease."""
    return f"{_BROADCAST_TAG}{uuid.uuid4()}"


class Prefetch:
    """kombu's QoS, on leases."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        self.prefetch_count = prefetch_count
        self._broker: Broker = channel.broker
        self._delivered: dict[str, Message] = {}

    @property
    def free_count(self) -> int:
        """How many more messages the consumers take now."""
        if not self.prefetch_count:
            return UNLIMITED
        return max(self.prefetch_count - len(self._delivered), 0)

    def can_consume(self) -> bool:
        """Return whether the consumers take more messages."""
        return self.free_count > 0

    def append(self, message: Message, delivery_tag: str) -> None:
        """Keep a message until it is settled."""
        self._delivered[delivery_tag] = message

    def get(self, delivery_tag: str) -> Message:
        """Return a message that is not settled."""
        return self._delivered[delivery_tag]

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self._settle(delivery_tag, "ack")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Deliver a message again at once, or make it a dead letter."""
        if requeue:
            self._settle(delivery_tag, "nack", delay=0)
        else:
            self._settle(delivery_tag, "bury", error="rejected by its consumer")

    def _settle(self, tag: str, name: str, **options: Any) -> None:
        self._delivered.pop(tag, None)
        if tag.startswith(_BROADCAST_TAG):
            if name == "nack":
                _log.warning("a broadcast message has no lease, so it cannot be requeued")
            return
        broker = self._broker.reopened()
        try:
            store = broker.store
            broker.leases.settle(tag, lambda receipt: getattr(store, name)(receipt, **options))
        finally:
            broker.release()

    def restore_unacked(self) -> None:
        """Return the messages that were not settled: other workers get them."""
        tags = [one for one in list(self._delivered) if not one.startswith(_BROADCAST_TAG)]
        self._delivered.clear()
        self._broker.leases.give_back(tags)

    restore_unacked_once = restore_unacked
