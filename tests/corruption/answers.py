"""Ask a store all questions, now and when all its timers are due, to compare two stores.

Invariants:
    1. Every call that reads is made. Offsets in the log are left out, because a repaired store may
       have others.
    2. Delivered messages are read at each time, and all of them again at the end, because they name
       their delivery time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timerstore
from tests.corruption.golden import LARGE, NOW_MS, TAGS, Asked
from timerstore import Message
from timerstore.testing import ManualClock, Stepper

Queue = tuple[str, int]

_ON_THE_WAY = {
    "TIMER_ROLL_TIMES",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_OUT_MS",
    "__CRC32#",
}
"""Calls about pending messages: a rebuilt wheel may roll them to other places."""


def _message(one: Message) -> tuple[object, ...]:
    return (
        one.topic, one.queue_id, one.queue_offset, one.message_id, bytes(one.body), one.tags,
        one.keys, tuple(sorted(one.properties.items())), one.born_ms, one.store_ms, one.due_ms,
        one.delivered_ms,
    )  # fmt: skip


def ask(root: Path, asked: Asked = LARGE) -> Iterator[tuple[str, Any]]:
    """Open a store, yield all pairs of question and answer, and close it."""
    clock = ManualClock(NOW_MS)
    with timerstore.open(root, asked.config, clock=clock, threads=False) as store:
        ends: dict[Queue, int] = {}
        yield from _now(store, asked, ends)
        stepper = Stepper(store)
        for ms in asked.later_ms:
            clock.set(NOW_MS + ms)
            stepper.settle()
            for queue in _users(store):
                found, ends[queue] = _read(store, queue, ends.get(queue, 0))
                if found:
                    yield f"{queue} {ms} ms later", [_bare(one) for one in found]
        for queue in _users(store):
            yield f"{queue} at last", [_bare(one) for one in _read(store, queue, 0)[0]]
        yield "topics at last", store.topics()
        yield "pending at last", [one.due_ms for one in store.pending()]
        yield "committed at last", store.committed("orders", "group")


def _now(
    store: timerstore.TimerStore, asked: Asked, ends: dict[Queue, int]
) -> Iterator[tuple[str, Any]]:
    yield "topics", store.topics()
    for queue in _queues(store):
        found, ends[queue] = _read(store, queue, 0)
        yield f"{queue}", found
    for tags in TAGS:
        yield f"tagged {tags}", [_read(store, one, 0, tags)[0] for one in _users(store)]
    yield (
        "pending",
        [
            (one.topic, one.queue_id, one.due_ms, one.timer_id, one.message_id)
            for one in store.pending()
        ],
    )
    stats = store.stats()
    yield "stats", {n: stats[n] for n in ("pending_messages", "pending_by_topic")}
    for topic, key in asked.keys:
        yield f"query {topic} {key}", [_message(one) for one in store.query(topic, key)]
    yield "committed", store.committed("orders", "group")
    yield "ingested", store.ingested("table")
    yield "recurring", store.recurring()
    if asked.once:
        again = store.put("orders", b"now", tags="paid", keys="k-0", message_id=asked.once)
        yield "put again", again.duplicate


def _queues(store: timerstore.TimerStore) -> list[Queue]:
    return [(topic, n) for topic, count in sorted(store.topics().items()) for n in range(count)]


def _users(store: timerstore.TimerStore) -> list[Queue]:
    return [one for one in _queues(store) if not one[0].startswith(("rmq_sys", "SCHEDULE"))]


def _bare(message: tuple[Any, ...]) -> tuple[object, ...]:
    return (
        *message[:7],
        tuple(one for one in message[7] if one[0] not in _ON_THE_WAY),
        *message[8:],
    )


def _read(
    store: timerstore.TimerStore, queue: Queue, offset: int, tags: str | None = None
) -> tuple[list[tuple[object, ...]], int]:
    """Return the messages of a queue from an offset on, and the offset after them."""
    found: list[tuple[object, ...]] = []
    while True:
        part = store.pull(*queue, offset, max_count=100, tags=tags)
        found += [_message(one) for one in part.messages]
        if part.next_offset in {offset, part.max_offset}:
            return found, part.next_offset
        offset = part.next_offset
