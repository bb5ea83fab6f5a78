"""The child that gets killed: works on a store with real threads and says what was acknowledged.

Threads:  the store's own; here two that put, one that ingests, one that cancels and flushes, one
          that pulls, one that reads as a group. The main thread closes and opens the store again
          when the others are through.
Fails:    an error that it does not expect is written to `trouble`, and it leaves with status 3.
"""

import faulthandler
import itertools
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import timerstore
from tests.crash.report import (
    ANSWERS,
    CHOSEN,
    GROUP,
    QUEUES,
    SOURCE,
    Kind,
    Line,
    Reporter,
    given_id,
    ingest_batches,
    key_of,
    make_body,
    read_body,
)
from tests.support.inside import inside, keep_log_from, sizes
from timerstore import (
    CancelResult,
    Consumer,
    Message,
    NotPendingError,
    PutReceipt,
    StoreConfig,
    TimerStore,
)
from timerstore._engine.base import failpoints
from timerstore._engine.format.handle import Handle, decode, encode
from timerstore._engine.log.retention import Retention
from timerstore._engine.maintenance.backup import MANIFEST
from timerstore.receipts import out_ms

STATUS_TROUBLE = 3
_leaving = threading.Lock()
_OF_MANY = 1 << 62
LEVEL_DELAYS_MS = (1000, 2000)
SAVED = "backup"
"""Folder of the backup, beside the store."""


@dataclass(slots=True)
class Known:
    """What rounds before this one left behind, for the child to go on from."""

    seen: dict[int, int] = field(default_factory=dict)  # queue -> messages pulled
    cancellable: list[tuple[int, int, str]] = field(default_factory=list)  # id, queue, handle
    moved: set[int] = field(default_factory=set)  # ids whose body may name another time
    retries: list[tuple[int, int, int]] = field(default_factory=list)  # id, queue, due: no answer
    versions: list[int] = field(default_factory=list)  # that were begun to be ingested


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One round: how the child works and when it dies."""

    seed: int
    round: int
    config: dict[str, Any]
    point: str | None = None  # None: the parent kills
    nth: int = 1
    calls: int = 60  # of each putting thread, between opening and closing
    sessions: int = 3
    step_ms: float = 1.0  # pause between two calls, at most
    is_stopped: bool = False  # at its point it waits for the end, else it brings it about
    only_durable: bool = False  # nothing is acknowledged that a power cut may take back
    backup_share: float = 0.01  # of the calls that cancel, flush and back up


def handle_of(queue: int, config: StoreConfig, line: Line) -> str:
    """Give the handle of a message that was put, from its line."""
    stamp = out_ms(line.due, config.precision_ms) + 1
    return encode(
        Handle(QUEUES[queue][0], config.broker_name, stamp, line.message_id.decode(), line.a)
    )


def run(directory: Path, trouble: Path, plan: Plan, known: Known, pipe: int) -> None:
    """Work until killed or done; never returns."""
    run_guarded(trouble, _Child(directory, trouble, plan, known, pipe).work)


def run_guarded(trouble: Path, work: Callable[[], None]) -> None:
    """Work, then leave the process; what goes wrong is written to `trouble`."""
    status = STATUS_TROUBLE
    try:
        with trouble.with_suffix(".stacks").open("w") as stacks:
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
            faulthandler.enable(file=stacks)
            work()
        status = 0
    except BaseException:  # noqa: BLE001 - the last door before _exit
        _leave_in(trouble)
    finally:
        os._exit(status)


def _leave_in(trouble: Path) -> None:
    """Say what the present exception is, and leave the process; the first who comes."""
    with _leaving:
        trouble.write_text(traceback.format_exc())
        os._exit(STATUS_TROUBLE)


class _Child:
    def __init__(self, directory: Path, trouble: Path, plan: Plan, known: Known, pipe: int) -> None:
        self._directory = directory
        self._saved = directory.with_name(SAVED)
        self._restored = directory.with_name("restored")
        self._trouble = trouble
        self._plan = plan
        self._config = StoreConfig(**plan.config)
        self._report = Reporter(pipe, plan.round)
        self._seen = dict.fromkeys(range(len(QUEUES)), 0) | known.seen
        self._cancellable = list(known.cancellable)
        self._seen_by_id: set[int] = set()
        self._cancelled: set[int] = set()
        self._moved = set(known.moved)
        self._versions = list(known.versions)
        self._retries = list(known.retries)
        self._numbers = itertools.count(plan.round << 32)
        self._stop = threading.Event()
        self._store: TimerStore | None = None
        sizes.replace(sizes.SMALL_CHUNKS)
        self._guard_every_store()
        if plan.point is not None:
            failpoints.hook = self._make_hook(plan.point, plan.nth)

    def _make_hook(self, point: str, nth: int) -> Any:
        passes = itertools.count(1)
        which = failpoints.NAMES.index(point)

        def hook(name: str) -> None:
            if name == point and next(passes) == nth:
                self._report.say(Kind.REACHED, a=which)
                if self._plan.is_stopped:
                    threading.Event().wait()  # for the worker, which cuts the power
                os.kill(os.getpid(), signal.SIGKILL)

        return hook

    def work(self) -> None:
        """Open, work, close; so often."""
        for session in range(self._plan.sessions):
            self._store = store = timerstore.open(self._directory, self._config)
            self._report.say(Kind.OPENED)
            self._session(store, Random(f"{self._plan.seed} {session}"))
            store.close()
            self._store = None
            self._restore()
        self._report.say(Kind.FINISHED)

    def _guard_every_store(self) -> None:
        """From its opening on: its services run before it is in our hands."""
        make = Retention.__init__

        def make_guarded(one: Retention, *args: Any) -> None:
            make(one, *args)
            keep_log_from(one, self._lowest_unseen)

        Retention.__init__ = make_guarded  # type: ignore[assignment]

    def _lowest_unseen(self) -> int:
        """What was not pulled stays, so that the parent knows of all that went."""
        store, found = self._store, 2**62
        if store is None:
            return 0  # it is being opened, or closed
        for queue, (topic, queue_id) in enumerate(QUEUES):
            route = inside(store).routes.get(topic, queue_id)
            unit = b"" if route is None else route.queue.read(self._seen[queue], 1)
            if unit:
                found = min(found, int.from_bytes(unit[:8], "big"))
        return found

    def _restore(self) -> None:
        """Make a store of the backup; the worker compares what there is, this may die in it."""
        if (self._saved / MANIFEST).exists():
            shutil.rmtree(self._restored, ignore_errors=True)
            timerstore.restore(self._saved, self._restored)

    def _session(self, store: TimerStore, random: Random) -> None:
        self._stop.clear()
        puts = [self._start(self._put_calls, store, random.random()) for _ in range(2)]
        others = [
            self._start(one, store, random.random())
            for one in (self._ingests, self._cancel_calls, self._pulls, self._reads)
        ]
        for thread in puts:
            thread.join()
        self._stop.set()
        for thread in others:
            thread.join()

    def _start(self, calls: Any, store: TimerStore, seed: float) -> threading.Thread:
        def guarded() -> None:
            try:
                calls(store, Random(seed))
            except BaseException:  # noqa: BLE001 - the whole child fails
                _leave_in(self._trouble)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    # --- putting ---

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
        """Give 0 for now, else up to some laps of the wheel."""
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
            due_ms = time.time_ns() // 1_000_000 + LEVEL_DELAYS_MS[level - 1]  # not after its own
            options.pop("deliver_ms", None)
            body = make_body(number, due_ms, len(body))
        if random.random() < 0.3:
            options["keys"] = key_of(number)
        if random.random() < 0.1 and not self._plan.only_durable:
            options["flush"] = random.choice(("sync", "async"))
        if random.random() < 0.2:
            options["message_id"] = given_id(number)
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
        """What was put with an id, perhaps: it is put now, or the answer is the first one's."""
        topic, queue_id = QUEUES[queue]
        body = make_body(number, due_ms, 50)
        again = store.put(
            topic, body, deliver_ms=due_ms, queue_id=queue_id, message_id=given_id(number)
        )
        if first is None:
            self._put_answered(queue, number, again)
        else:
            assert again.duplicate, again
            is_moved = number in self._moved
            assert is_moved or again._replace(duplicate=False, cancelled=False) == first, again

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
            dues = [now_ms + LEVEL_DELAYS_MS[level - 1]] * count  # not after their own
        first = _OF_MANY + (next(self._numbers) << 10)  # room for the batch's own
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
        """Versions that others left first, then new ones; at times one again."""
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

    # --- the others ---

    def _cancel_calls(self, store: TimerStore, random: Random) -> None:
        while not self._stop.is_set():
            if random.random() < 0.1:
                store.flush()
            elif random.random() < self._plan.backup_share:
                store.backup(self._saved)
            elif self._cancellable:
                at = random.randrange(len(self._cancellable))
                number, queue, handle = self._cancellable[at]
                if random.random() < 0.2:
                    self._query(store, number, queue, handle)
                    continue
                if random.random() < 0.5:
                    self._reschedule(store, at, random)
                    continue
                if random.random() < 0.9:  # else a second time
                    del self._cancellable[at]
                self._report.say(Kind.CANCEL_BEGUN, queue=queue, id=number)
                self._cancelled.add(number)
                answer = store.cancel(handle)
                self._report.say(
                    Kind.CANCELLED, queue=queue, id=number, answer=ANSWERS.index(answer)
                )
            time.sleep(random.random() * 4 * self._plan.step_ms / 1000)

    def _query(self, store: TimerStore, number: int, queue: int, handle: str) -> None:
        """It is found once, by its id; never before it is visible, and from then on always, or
        until retention takes what was delivered. Nobody but this thread moves or cancels it.
        """
        known = decode(handle)
        found = store.query(QUEUES[queue][0], known.message_id)
        surely_waits = (
            time.time_ns() // 1_000_000 < known.out_ms
        )  # before that nothing is delivered
        stays = surely_waits or not store.config.retention_ms
        least = number in self._seen_by_id and number not in self._cancelled and stays
        if not least <= len(found) <= 1:
            self._report.say(Kind.QUERIED, queue=queue, id=number, a=len(found), b=least)
        elif found:
            self._seen_by_id.add(number)

    def _reschedule(self, store: TimerStore, at: int, random: Random) -> None:
        number, queue, handle = self._cancellable.pop(at)
        delay_ms = self._delay_ms(random)
        due_ms = time.time_ns() // 1_000_000 + delay_ms if delay_ms else 0
        self._moved.add(number)
        self._report.say(Kind.MOVE_BEGUN, queue=queue, id=number, due=due_ms)
        try:
            receipt = store.reschedule(handle, deliver_ms=due_ms)
        except NotPendingError as error:
            answer = ANSWERS.index(CancelResult(error.result))
            self._report.say(Kind.CANCELLED, queue=queue, id=number, answer=answer)
            return
        waits = receipt.queue_offset is None
        self._report.say(
            Kind.MOVED,
            queue=QUEUES.index((receipt.topic, receipt.queue_id)),
            id=number,
            due=receipt.due_ms,
            a=receipt.timer_id if waits else -1,
            b=-1 if receipt.queue_offset is None else receipt.queue_offset,
            message_id=receipt.message_id.encode(),
        )
        if waits:
            self._cancellable.append((number, queue, receipt.handle))

    def _pulls(self, store: TimerStore, random: Random) -> None:
        while not self._stop.is_set():
            for queue in range(len(QUEUES)):
                self._pull(store, queue, random)
            time.sleep(random.random() * 2 * self._plan.step_ms / 1000)

    def _pull(self, store: TimerStore, queue: int, random: Random) -> None:
        topic, queue_id = QUEUES[queue]
        at = self._seen[queue]
        if store.topics().get(topic, 0) <= queue_id:
            if at:
                self._report.say(Kind.REWOUND, queue=queue, a=at, b=-1)
            return
        how = store.pull_batch if random.random() < 0.5 else store.pull
        wait = random.choice((0.0, 0.002))
        result = how(topic, queue_id, at, max_count=random.randint(1, 64), wait=wait)
        now_ms = time.time_ns() // 1_000_000
        if result.max_offset < at:
            self._report.say(Kind.REWOUND, queue=queue, a=at, b=result.max_offset)
        messages = result.messages if isinstance(result, timerstore.PullResult) else list(result)
        lines = []
        for message in messages:
            number, due_ms = read_body(message.body)
            if now_ms < due_ms and number not in self._moved:
                lines.append(Line(Kind.EARLY, queue=queue, id=number, due=due_ms, a=now_ms))
            lines.append(
                Line(
                    Kind.PULLED,
                    queue=queue,
                    id=number,
                    due=message.due_ms,
                    a=message.queue_offset,
                    b=message.delivered_ms,
                )
            )
        self._report.say_all(lines)
        self._seen[queue] = at + len(messages)

    def _reads(self, store: TimerStore, random: Random) -> None:
        topics = sorted({topic for topic, _ in QUEUES})
        readers = [(store.consumer(topic, GROUP), dict[int, int]()) for topic in topics]
        while not self._stop.is_set():
            for consumer, ends in readers:
                messages = consumer.poll(random.randint(1, 40), random.choice((0.0, 0.002)))
                lines = []
                for message in messages:
                    queue = QUEUES.index((message.topic, message.queue_id))
                    lines.append(Line(Kind.HANDED, queue=queue, a=message.queue_offset))
                    ends[queue] = message.queue_offset + 1
                self._report.say_all(lines)
                if random.random() < 0.05:
                    self._go_back(store, consumer, ends)
                elif messages and random.random() < 0.5:
                    self._commit(consumer, ends, messages[-1] if random.random() < 0.3 else None)
            time.sleep(random.random() * 2 * self._plan.step_ms / 1000)

    def _go_back(self, store: TimerStore, consumer: Consumer, ends: dict[int, int]) -> None:
        """To where the group has committed: what was handed out since comes again."""
        committed = store.committed(consumer.topic, GROUP)
        for queue_id in consumer.queues:
            queue = QUEUES.index((consumer.topic, queue_id))
            for at in consumer.seek(committed.get(queue_id, 0), queue_id=queue_id).values():
                self._report.say(Kind.SOUGHT, queue=queue, a=at)
        ends.clear()

    def _commit(self, consumer: Consumer, ends: dict[int, int], through: Message | None) -> None:
        """All that was handed out and not committed (`ends`), or one queue alone."""
        begun = dict(ends)
        if through is not None:
            queue = QUEUES.index((through.topic, through.queue_id))
            begun = {queue: through.queue_offset + 1}
        for queue, end in begun.items():
            self._report.say(Kind.COMMIT_BEGUN, queue=queue, a=end)
        for queue_id, end in consumer.commit(through).items():
            queue = QUEUES.index((consumer.topic, queue_id))
            self._report.say(Kind.COMMITTED, queue=queue, a=end)
        for queue in begun:
            del ends[queue]
