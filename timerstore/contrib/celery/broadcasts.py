"""Queues that belong to one consumer: remote control, events, replies.

Such a queue is no topic. It reads the topic of each exchange that it is bound to, from the end that
the topic had when it was bound, and keeps the messages that its bindings match. Nothing in the
store belongs to it, so nothing is left when its process ends.

Thread safety: one thread at a time.
"""

import re
from collections.abc import Iterator
from typing import Any

from kombu.transport.virtual.exchange import TopicExchange

from timerstore.contrib.celery.bindings import BROADCAST, Binding
from timerstore.contrib.celery.broker import Broker
from timerstore.contrib.celery.wire import escaped, pack, topic_of_exchange

ROUTING_KEY_PROPERTY = "celery_routing_key"
_END = 1 << 62  # an offset after every message
_CREATED_TAG = "%created"  # no escaped routing key
_PAGE = 100
_topics = TopicExchange(None)


def tag_of(routing_key: str) -> str:
    """Return the tag of the messages with a routing key, by which a direct exchange is read."""
    return f"k{escaped(routing_key)}"


class ExchangeSource:
    """The topic of an exchange, from an offset on."""

    def __init__(self, broker: Broker, exchange: str, kind: str) -> None:
        self.topic = topic_of_exchange(exchange)
        self._store = broker.store
        self._kind = kind
        self._keys: dict[str, re.Pattern[str]] = {}
        broker.bindings.add(Binding(exchange, kind, "", BROADCAST))
        if self.topic not in self._store.topics():
            self._store.put(self.topic, pack({}), queue_id=0, tags=_CREATED_TAG, flush="async")
        self.offset: int = self._store.pull(self.topic, 0, _END).next_offset

    def bind(self, routing_key: str) -> None:
        """Read also the messages with this routing key, or of this pattern."""
        self._keys[routing_key] = re.compile(_topics.key_to_pattern(routing_key))

    @property
    def filter(self) -> dict[str, str]:
        """The options of `pull` that leave out messages of others, where the store can."""
        if self._kind != "direct":
            return {}
        return {"tags": " || ".join(tag_of(one) for one in sorted(self._keys))}

    def begin(self, wait_s: float) -> Any:
        """Begin to wait for the next messages."""
        return self._store.begin_pull(
            self.topic, 0, self.offset, max_count=_PAGE, wait=wait_s, **self.filter
        )

    def taken(self, result: Any) -> list[Any]:
        """Return the messages of a pull that are for this queue; the next one begins after it."""
        self.offset = result.next_offset
        return [one for one in result.messages if self._matches(one)]

    def pull(self) -> Iterator[Any]:
        """Yield the messages that are there. One that was yielded does not come again."""
        while True:
            result = self._store.pull(self.topic, 0, self.offset, max_count=1, **self.filter)
            yield from self.taken(result)
            if not result.messages and result.next_offset >= result.max_offset:
                return

    def _matches(self, found: Any) -> bool:
        if found.tags == _CREATED_TAG:
            return False
        if self._kind != "topic":
            return True  # direct: filtered by the store
        key = found.properties.get(ROUTING_KEY_PROPERTY, "")
        return any(one.match(key) for one in self._keys.values())


class BroadcastQueue:
    """A queue that reads the topics of exchanges."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self._broker = broker
        self._sources: dict[str, ExchangeSource] = {}

    @property
    def sources(self) -> list[ExchangeSource]:
        """What it reads."""
        return list(self._sources.values())

    def bind(self, exchange: str, kind: str, routing_key: str) -> None:
        """Read the messages that an exchange gets from now on."""
        if exchange not in self._sources:
            self._sources[exchange] = ExchangeSource(self._broker, exchange, kind)
        self._sources[exchange].bind(routing_key)

    def unbind(self, exchange: str) -> None:
        """Read an exchange no more."""
        self._sources.pop(exchange, None)
