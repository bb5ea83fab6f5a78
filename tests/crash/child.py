"""Work on a store with real threads in a child that is killed, and report all answers.

An unexpected error is written to the file `trouble`, and the child exits with status 3.

Thread safety: besides the store's own threads, two threads put, one ingests, one cancels and
flushes, one pulls, and one reads as a group. The main thread closes and opens the store again after
they end.
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
from pathlib import Path
from random import Random
from typing import Any

import timerstore
from tests.crash.child_puts import ChildPuts
from tests.crash.plan import SAVED, Known, Plan
from tests.crash.report import (
    ANSWERS,
    GROUP,
    QUEUES,
    Kind,
    Line,
    Reporter,
    read_body,
)
from tests.support.inside import failpoints, inside, keep_log_from, sizes
from timerstore import (
    CancelResult,
    Consumer,
    Message,
    NotPendingError,
    TimerStore,
)
from timerstore._engine.format.handle import decode
from timerstore._engine.maintenance.backup import MANIFEST
from timerstore._engine.timer.log_retention import Retention

STATUS_TROUBLE = 3
_leaving = threading.Lock()


def run(directory: Path, trouble: Path, plan: Plan, known: Known, pipe: int) -> None:
    """Work until killed or done, and never return."""
    run_guarded(trouble, _Child(directory, trouble, plan, known, pipe).work)


def run_guarded(trouble: Path, work: Callable[[], None]) -> None:
    """Run a function and end the process. Write an error to `trouble`."""
    status = STATUS_TROUBLE
    try:
        with trouble.with_suffix(".stacks").open("w") as stacks:
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
            faulthandler.enable(file=stacks)
            work()
        status = 0
    except BaseException:  # noqa: BLE001 - the error is reported, and the process ends
        _leave_in(trouble)
    finally:
        os._exit(status)


def _leave_in(trouble: Path) -> None:
    """Report the current exception of the first thread that fails, and end the process."""
    with _leaving:
        trouble.write_text(traceback.format_exc())
        os._exit(STATUS_TROUBLE)


class _Child(ChildPuts):
    def __init__(self, directory: Path, trouble: Path, plan: Plan, known: Known, pipe: int) -> None:
        super().__init__(plan, known, Reporter(pipe, plan.round))
        self._directory = directory
        self._saved = directory.with_name(SAVED)
        self._restored = directory.with_name("restored")
        self._trouble = trouble
        self._seen = dict.fromkeys(range(len(QUEUES)), 0) | known.seen
        self._seen_by_id: set[int] = set()
        self._cancelled: set[int] = set()
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
                    threading.Event().wait()  # until the worker cuts the power
                os.kill(os.getpid(), signal.SIGKILL)

        return hook

    def work(self) -> None:
        """Open, work and close, several times."""
        for session in range(self._plan.sessions):
            self._store = store = timerstore.open(self._directory, self._config)
            self._report.say(Kind.OPENED)
            self._session(store, Random(f"{self._plan.seed} {session}"))
            store.close()
            self._store = None
            self._restore()
        self._report.say(Kind.FINISHED)

    def _guard_every_store(self) -> None:
        """Guard each store from its opening on, because its services run before `open` returns."""
        make = Retention.__init__

        def make_guarded(one: Retention, *args: Any) -> None:
            make(one, *args)
            keep_log_from(one, self._lowest_unseen)

        Retention.__init__ = make_guarded  # type: ignore[assignment]

    def _lowest_unseen(self) -> int:
        """Return the offset from which messages were not pulled, so that retention keeps them."""
        store, found = self._store, 2**62
        if store is None:
            return 0  # the store is being opened or closed
        for queue, (topic, queue_id) in enumerate(QUEUES):
            route = inside(store).routes.get(topic, queue_id)
            unit = b"" if route is None else route.queue.read(self._seen[queue], 1)
            if unit:
                found = min(found, int.from_bytes(unit[:8], "big"))
        return found

    def _restore(self) -> None:
        """Restore the backup. The child may die in it, and the worker compares the results."""
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
            except BaseException:  # noqa: BLE001 - an error of one thread fails the child
                _leave_in(self._trouble)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    # --- cancels, queries and reads ---

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
                if random.random() < 0.9:  # otherwise it is cancelled a second time
                    del self._cancellable[at]
                self._report.say(Kind.CANCEL_BEGUN, queue=queue, id=number)
                self._cancelled.add(number)
                answer = store.cancel(handle)
                self._report.say(
                    Kind.CANCELLED, queue=queue, id=number, answer=ANSWERS.index(answer)
                )
            time.sleep(random.random() * 4 * self._plan.step_ms / 1000)

    def _query(self, store: TimerStore, number: int, queue: int, handle: str) -> None:
        """Query a message by its id, and check the number of results.

        It is found at most once. After the first success it is always found, until retention may
        remove it after its delivery. Only this thread moves or cancels it.
        """
        known = decode(handle)
        found = store.query(QUEUES[queue][0], known.message_id)
        surely_waits = (
            time.time_ns() // 1_000_000 < known.out_ms
        )  # no message is delivered before that time
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
        """Seek to the committed offsets, after which the later messages are handed out again."""
        committed = store.committed(consumer.topic, GROUP)
        for queue_id in consumer.queues:
            queue = QUEUES.index((consumer.topic, queue_id))
            for at in consumer.seek(committed.get(queue_id, 0), queue_id=queue_id).values():
                self._report.say(Kind.SOUGHT, queue=queue, a=at)
        ends.clear()

    def _commit(self, consumer: Consumer, ends: dict[int, int], through: Message | None) -> None:
        """Commit all messages that were handed out (`ends`), or those of one queue."""
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
