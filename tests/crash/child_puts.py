"""Put messages and ingest versions in a child, and report each call."""

import itertools
import threading
import time
from random import Random
from typing import Any

from tests.crash.plan import Known, Plan
from tests.crash.report import (
    CHOSEN,
    QUEUES,
    SOURCE,
    Kind,
    Line,
    Reporter,
    given_id,
    ingest_batches,
    key_of,
    make_body,
)
from timerstore import ConflictError, PutReceipt, StoreConfig, TimerStore

_OF_MANY = 1 << 62
LEVEL_DELAYS_MS = (1000, 2000)


def _given_size(number: int) -> int:
    return 16 + number * 37 % 300


class ChildPuts:
    """The state of a child's messages, and the calls that put them.

    Thread safety: the methods run in several threads. Lists are shared by atomic operations.
    """

    def __init__(self, plan: Plan, known: Known, report: Reporter) -> None:
        self._plan = plan
        self._config = StoreConfig(**plan.config)
        self._report = report
        self._cancellable = list(known.cancellable)
        self._moved = set(known.moved)
        self._versions = list(known.versions)
        self._retries = list(known.retries)
        self._numbers = itertools.count(plan.round << 32)
        self._stop = threading.Event()

    def _put_calls(self, store: TimerStore, random: Random) -> None:
        while True:
            try:
                self._put_again(store, *self._retries.pop())
            except IndexError:
                break
        for _ in range(self._plan.calls):
            if random.random() < 0.75:
                self._put(store, random)
            else:
                self._put_many(store, random)
            time.sleep(random.random() * self._plan.step_ms / 1000)

    def _delay_ms(self, random: Random) -> int:
        """Return a random delay: 0 for now, or up to some laps of the wheel."""
        if random.random() < 0.2:
            return 0
        window_ms = self._config.precision_ms * self._config.roll_slots
        most = random.choice((3, 50, 2 * self._config.precision_ms, window_ms, 6 * window_ms))
        return random.randint(1, max(1, most))

    def _size(self, random: Random) -> int:
        return random.randint(16, random.choice((40, 300, 300, 2000)))

    def _put(self, store: TimerStore, random: Random) -> None:
        queue = random.randrange(CHOSEN)
        topic, queue_id = QUEUES[queue]
        delay_ms = self._delay_ms(random)
        due_ms = time.time_ns() // 1_000_000 + delay_ms if delay_ms else 0
        number = next(self._numbers)
        body = make_body(number, due_ms, self._size(random))
        options: dict[str, Any] = {}
        if due_ms:
            options["deliver_ms"] = due_ms
        if queue:
            options["queue_id"] = queue_id
        if random.random() < 0.1:
            options["tags"] = "t"
        if random.random() < 0.15:
            level = options["level"] = random.choice((1, 1, 2))
            # the body must not name a later time than the store
            due_ms = time.time_ns() // 1_000_000 + LEVEL_DELAYS_MS[level - 1]
            options.pop("deliver_ms", None)
            body = make_body(number, due_ms, len(body))
        if random.random() < 0.3:
            options["keys"] = key_of(number)
        if random.random() < 0.1 and not self._plan.only_durable:
            options["flush"] = random.choice(("sync", "async"))
        if random.random() < 0.2:
            # A put after a kill must have the same contents, so they depend on the number only.
            options["message_id"] = given_id(number)
            options.pop("tags", None)
            options.pop("keys", None)
            body = make_body(number, due_ms, _given_size(number))
        is_given = "message_id" in options
        self._report.say(Kind.PUT_BEGUN, queue=queue, id=number, due=due_ms, b=is_given)
        receipt = store.put(topic, body, **options)
        self._put_answered(queue, number, receipt)
        if is_given and random.random() < 0.5:
            self._put_again(store, number, queue, due_ms, receipt)

    def _put_again(
        self,
        store: TimerStore,
        number: int,
        queue: int,
        due_ms: int,
        first: PutReceipt | None = None,
    ) -> None:
        """Put a message again by its id. It is stored now, or the answer is the first one's."""
        topic, queue_id = QUEUES[queue]
        body = make_body(number, due_ms, _given_size(number))
        again = store.put(
            topic, body, deliver_ms=due_ms, queue_id=queue_id, message_id=given_id(number)
        )
        self._put_other(store, topic, number, body)
        if first is None:
            self._put_answered(queue, number, again)
        else:
            assert again.duplicate, again
            is_moved = number in self._moved
            assert is_moved or again._replace(duplicate=False, cancelled=False) == first, again

    def _put_other(self, store: TimerStore, topic: str, number: int, body: bytes) -> None:
        """Put another message with a known id: it must be rejected, and not be stored."""
        try:
            receipt = store.put(topic, body + b"\0", message_id=given_id(number))
        except ConflictError:
            return
        # Only retention takes a message away with which a put can be compared.
        assert receipt.duplicate, receipt
        assert self._config.retention_ms, "swallowed"

    def _put_answered(self, queue: int, number: int, receipt: PutReceipt) -> None:
        topic = QUEUES[queue][0]
        waits = receipt.queue_offset is None
        self._report.say(
            Kind.PUT,
            queue=QUEUES.index((topic, receipt.queue_id)),
            id=number,
            due=receipt.due_ms,
            a=-2 if receipt.waits_for_level else receipt.timer_id if waits else -1,
            b=-1 if receipt.queue_offset is None else receipt.queue_offset,
            message_id=receipt.message_id.encode(),
        )
        if waits and not receipt.waits_for_level:
            self._cancellable.append((number, queue, receipt.handle))

    def _put_many(self, store: TimerStore, random: Random) -> None:
        queue = random.randrange(CHOSEN)
        topic, queue_id = QUEUES[queue]
        is_atomic = random.random() < 0.4
        count = random.randint(1, random.choice((5, 20) if is_atomic else (5, 40, 300)))
        now_ms = time.time_ns() // 1_000_000
        level = random.choice((1, 1, 2)) if random.random() < 0.15 else None
        if level is None:
            delays = [self._delay_ms(random) for _ in range(count)]
            dues = [now_ms + delay if delay else 0 for delay in delays]
        else:
            # the bodies must not name a later time than the store
            dues = [now_ms + LEVEL_DELAYS_MS[level - 1]] * count
        # the low bits number the messages of the batch
        first = _OF_MANY + (next(self._numbers) << 10)
        bodies = [make_body(first + k, due, random.randint(16, 120)) for k, due in enumerate(dues)]
        self._report.say(Kind.PUT_MANY_BEGUN, queue=queue, id=first, a=count, b=is_atomic)
        times: dict[str, Any] = {"deliver_ms": dues} if level is None else {"level": level}
        own_queue = queue_id if queue else None
        batch = store.put_many(topic, bodies, queue_id=own_queue, atomic=is_atomic, **times)
        lines, cancellable = [], []
        for k, receipt in enumerate(batch):
            waits = receipt.queue_offset is None
            lines.append(
                Line(
                    Kind.PUT,
                    queue=QUEUES.index((topic, receipt.queue_id)),
                    id=first + k,
                    due=receipt.due_ms,
                    a=-2 if receipt.waits_for_level else receipt.timer_id if waits else -1,
                    b=-1 if receipt.queue_offset is None else receipt.queue_offset,
                    message_id=receipt.message_id.encode(),
                )
            )
            if waits and level is None and random.random() < 0.2:
                cancellable.append((first + k, queue, receipt.handle))
        self._report.say_all(lines)
        self._cancellable += cancellable

    def _ingests(self, store: TimerStore, random: Random) -> None:
        """Ingest the versions that earlier rounds left, then new ones, and sometimes one again."""
        before = list(self._versions)
        while not self._stop.is_set():
            if before:
                version = before.pop()
            elif self._versions and random.random() < 0.2:
                version = random.choice(self._versions[-5:])
            else:
                version = max(time.time_ns() // 1_000_000, *self._versions[-1:], 0) + 1
                self._versions.append(version)
            self._report.say(Kind.INGEST_BEGUN, id=version)
            receipt = store.ingest(SOURCE, version, ingest_batches(version, random))
            self._report.say(Kind.INGESTED, id=version, a=receipt.is_replay)
            time.sleep(random.random() * 30 * self._plan.step_ms / 1000)
