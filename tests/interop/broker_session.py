"""Open a broker's store on a clock set by hand, and check its deliveries."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import timerstore
from tests.support import disk_reader as disk
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected, Key, as_delivered
from timerstore import Message, StoreConfig, TimerStore
from timerstore.testing import ManualClock, Stepper

REAL_TOPICS = ("orders", "reminders")  # all messages that were sent


def config_of(expected: Expected) -> StoreConfig:
    return StoreConfig(**broker.about(expected.name)["store_config"], flush="async")


class Session:
    """An open store whose clock is set by hand, and its deliveries."""

    def __init__(
        self,
        root: Path,
        expected: Expected,
        *,
        now_ms: int | None = None,
        config: StoreConfig | None = None,
    ) -> None:
        self.expected = expected
        self.clock = ManualClock(expected.now_ms if now_ms is None else now_ms)
        given = config if config is not None else config_of(expected)
        self.store = timerstore.open(root, given, clock=self.clock, threads=False)
        self.stepper = Stepper(self.store)
        self.next: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def turn(self, now_ms: int) -> list[Message]:
        """Set the clock and settle.

        Return the new messages of the real topics since the last call.
        """
        self.clock.set(now_ms)
        self.stepper.settle()
        return self.arrived()

    def arrived(self) -> list[Message]:
        """Return the new messages of the real topics since the last call."""
        return [message for queue in real_queues(self.store) for message in self._new(queue)]

    def _new(self, queue: tuple[str, int]) -> list[Message]:
        found = list(messages_of(self.store, *queue, self.next.get(queue, 0)))
        self.next[queue] = self.next.get(queue, 0) + len(found)
        return found


def real_queues(store: TimerStore) -> list[tuple[str, int]]:
    counts = store.topics()
    return [(topic, q) for topic in REAL_TOPICS for q in range(counts[topic])]


def messages_of(store: TimerStore, topic: str, queue_id: int, begin: int = 0) -> Iterator[Message]:
    while True:
        batch = store.pull_batch(topic, queue_id, begin)
        if not len(batch):
            assert batch.next_offset == begin
            return
        yield from batch
        begin = batch.next_offset


def key_of(message: Message) -> Key:
    return message.properties.get("REAL_TOPIC", message.topic), message.message_id


def out_counts(store: TimerStore) -> Counter[Key]:
    """Return how often each message is in its real topic."""
    queues = real_queues(store)
    return Counter(key_of(m) for queue in queues for m in messages_of(store, *queue))


def keys(messages: list[Message]) -> Counter[Key]:
    return Counter(map(key_of, messages))


def assert_complete(
    store: TimerStore, expected: Expected, cancelled: set[Key] = frozenset()
) -> None:
    """Check that each message was delivered once, and the broker's deliveries are unchanged."""
    assert list(store.pending()) == []
    wanted = expected.out + Counter(expected.left.keys() - cancelled)
    assert out_counts(store) == wanted
    for line in expected.sent:
        count = wanted[line["topic"], line["msg_id"]]
        if line.get("recalled"):
            assert count == 0, line
        elif expected.name != "doubled-by-broker":
            key = line["topic"], line["msg_id"]
            assert count == (0 if key in cancelled else 1), line


def assert_as_sent(message: Message, expected: Expected) -> None:
    """Check that a delivered message equals its source, and is not early."""
    line = expected.left[key_of(message)]
    assert message.store_ms == message.delivered_ms >= expected.due_ms(line)
    assert message.due_ms == expected.due_ms(line)
    for name, value in as_delivered(line).items():
        if name == "properties":
            assert int(message.properties.get("TIMER_ROLL_TIMES", 0)) >= int(
                line["properties"].get("TIMER_ROLL_TIMES", 0)
            )
            assert {name: message.properties.get(name) for name in value} == value
            added = message.properties.keys() - value.keys()
            # Properties like TRACE_CONTEXT: empty values are stored in the record, but not listed.
            assert {k for k in added if message.properties[k]} <= {
                "TIMER_ENQUEUE_MS",
                "TIMER_DEQUEUE_MS",
                "TIMER_ROLL_TIMES",
                "TS_ID",
                "TS_LEVEL",
                "__CRC32#",
            }
            if line["topic"] != disk.LEVEL_TOPIC:
                assert int(message.properties["TIMER_DEQUEUE_MS"]) >= expected.due_ms(line)
        elif name == "sys_flag":
            assert message.sys_flag & ~1 == value & ~1  # bodies in the listing are decompressed
        elif name == "born_host":
            assert message.born_host.rpartition(":")[0] == value
        elif name == "body_bytes":
            assert len(message.body) == value
        elif name == "body_sha256":
            assert hashlib.sha256(message.body).hexdigest() == value
        else:
            assert getattr(message, name) == value, name
