"""What a store answers, now and when all its timers are due: two stores that are one answer alike.

Holds:    every call that reads is in it; places in the log are not, since a store that was repaired
          may have others.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timerstore
from tests.corruption.golden import CONFIG, NOW_MS, TAGS
from timerstore import Message
from timerstore.testing import ManualClock, Stepper

_LATER_MS = (1000, 4000, 25_000, 120_000, 1_000_000)


_ON_THE_WAY = {
    "TIMER_ROLL_TIMES",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_OUT_MS",
    "__CRC32#",
}
"""Of what is still to be delivered: a wheel that was built anew may have it roll elsewhere."""


def _message(one: Message) -> tuple[object, ...]:
    return (
        one.topic, one.queue_id, one.queue_offset, one.message_id, bytes(one.body), one.tags,
        one.keys, tuple(sorted(one.properties.items())), one.born_ms, one.store_ms, one.due_ms,
        one.delivered_ms,
    )  # fmt: skip


def ask(root: Path) -> Iterator[tuple[str, Any]]:
    """Open it and ask everything: (question, answer), one by one; then close it."""
    clock = ManualClock(NOW_MS)
    with timerstore.open(root, CONFIG, clock=clock, threads=False) as store:
        yield from _now(store)
        stepper = Stepper(store)
        for ms in _LATER_MS:
            clock.set(NOW_MS + ms)
            stepper.settle()
            yield f"queues {ms} ms later", [_bare(store, *one) for one in _users(store)]
        yield "pending at last", [one.due_ms for one in store.pending()]
        yield "committed at last", store.committed("orders", "group")


def _now(store: timerstore.TimerStore) -> Iterator[tuple[str, Any]]:
    yield "topics", store.topics()
    yield "queues", [_queue(store, *one) for one in _queues(store)]
    for tags in TAGS:
        found = [[_message(m) for m in store.pull(*one, 0, tags=tags).messages]
                 for one in _users(store)]  # fmt: skip
        yield f"tagged {tags}", found
    yield (
        "pending",
        [
            (one.topic, one.queue_id, one.due_ms, one.timer_id, one.message_id)
            for one in store.pending()
        ],
    )
    stats = store.stats()
    yield "stats", {n: stats[n] for n in ("pending_messages", "pending_by_topic")}
    for n in (0, 1, 7, 10, 11, "last", "above"):
        topic = "orders" if n in (0, 10) else "mails"
        found = store.query(topic, f"key-{n}")
        yield f"query {topic} key-{n}", [_message(one) for one in found]
    yield "committed", store.committed("orders", "group")
    yield "ingested", store.ingested("table")


def _queues(store: timerstore.TimerStore) -> list[tuple[str, int]]:
    return [(topic, n) for topic, count in sorted(store.topics().items()) for n in range(count)]


def _users(store: timerstore.TimerStore) -> list[tuple[str, int]]:
    return [one for one in _queues(store) if not one[0].startswith(("rmq_sys", "SCHEDULE"))]


def _bare(store: timerstore.TimerStore, topic: str, queue_id: int) -> list[tuple[object, ...]]:
    found = _queue(store, topic, queue_id)
    return [(*m[:7], tuple(p for p in m[7] if p[0] not in _ON_THE_WAY), *m[8:]) for m in found]


def _queue(store: timerstore.TimerStore, topic: str, queue_id: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    offset = 0
    while True:
        part = store.pull(topic, queue_id, offset, max_count=100)
        found += [_message(one) for one in part.messages]
        if part.next_offset <= offset:
            return found
        offset = part.next_offset
