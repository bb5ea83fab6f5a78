"""ReadOnlyStore: a store that is read, whoever has it open.

    timerstore.open(path, read_only=True)

Threads:  every method from any thread; calls take turns, who waits does so beside them.
Holds:    (1) nothing in the directory is made, changed or locked; (2) an answer is as of one moment
          (moment.py), and no later answer as of an earlier one.
Fails:    what would change something is a ReadOnlyError; damage is a CorruptError, with its place.
Source:   decision 0058.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import wraps
from heapq import merge
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np

from timerstore.beside.counting import histogram
from timerstore.beside.explaining import ExplainerBeside
from timerstore.beside.moment import Moment
from timerstore.beside.polling import Polling
from timerstore.beside.room import Room
from timerstore.beside.search import query
from timerstore.beside.timers import Timers
from timerstore.clock import Clock, SystemClock
from timerstore.closing import Closing
from timerstore.columns.scan import Bounds, Part
from timerstore.columns.transactions import transactions
from timerstore.config import StoreConfig
from timerstore.errors import (
    ClosedError,
    ConfigError,
    CorruptError,
    FailedError,
    ForkedError,
    GoneError,
    MessageError,
    ReadOnlyError,
    TimerStoreError,
)
from timerstore.files.directory import holder_of
from timerstore.files.read_only import ReadOnlyDisk
from timerstore.future.explain import name_of
from timerstore.future.times import buckets_of
from timerstore.ingest.version_set import VersionSet
from timerstore.inspect import verify_directory
from timerstore.layout import recurring_json
from timerstore.layout.consumer_offset_json import entry_name
from timerstore.layout.tree import BACKUP_JSON
from timerstore.message import (
    Explanation,
    Histogram,
    Message,
    MessageBatch,
    PendingTimer,
    PullResult,
    PullStatus,
    PutReceipt,
    Report,
)
from timerstore.pull.asked import check_asked
from timerstore.pull.filter import Filter
from timerstore.pull.given import wait_problems, whole, whole_ms
from timerstore.pull.groups import check_name
from timerstore.pull.offsets import read_file
from timerstore.pull.pull import bounds_of, result_of
from timerstore.pull.query import check_query
from timerstore.pull.reading import Reader, empty_batch
from timerstore.pull.seek import offset_at
from timerstore.pull.waiting import WAITING
from timerstore.queues.level_pending import pending_by_topic
from timerstore.queues.routes import Route
from timerstore.recurring import Recurring
from timerstore.recurring.given import shown
from timerstore.row_batch import IngestedVersions
from timerstore.timer.request import Records

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_TRIES = 8
_FOLLOWED = 1024  # messages of a queue that are read at a time


def _refused(name: str) -> Callable[..., NoReturn]:
    def call(self: "ReadOnlyStore", *_given: Any, **_named: Any) -> NoReturn:
        self.check_open()
        raise ReadOnlyError(f"{name}: the store was opened read-only", where=self.path)

    call.__name__ = name
    call.__doc__ = "Refuse: ReadOnlyError."
    return call


def _answer(
    method: Callable[Concatenate["ReadOnlyStore", Arguments], Answer],
) -> Callable[Concatenate["ReadOnlyStore", Arguments], Answer]:
    """A call that is answered as of the moment of now; once more where the store's owner has gone
    on meanwhile.
    """

    @wraps(method)
    def call(self: "ReadOnlyStore", /, *args: Arguments.args, **given: Arguments.kwargs) -> Answer:
        return self.answer(lambda: method(self, *args, **given))

    return call


class ReadOnlyStore(Closing):
    """A store that is only read. `timerstore.open(path, read_only=True)` makes it."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._root = root.absolute()
        self._given = config
        self._clock = clock if clock is not None else SystemClock()
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.RLock()  # one call at a time
        if ReadOnlyDisk().exists(self._root / BACKUP_JSON):
            raise ConfigError(
                f"{root}: wanted a store's folder, got a backup; restore it into another folder"
            )
        self._room = Room(self._root, config, self._clock)
        self._timers = Timers(self._room, self._clock)
        self._polling = Polling(self._clock)
        log: Any = self._room.log
        self._reader = Reader(self._room.config, log)

    # --- answering ---

    def check_open(self) -> None:
        """ClosedError, ForkedError where it cannot be asked."""
        if os.getpid() != self._pid:
            raise ForkedError(
                "a store belongs to the process that opened it",
                where=self._root,
                wanted=f"process {self._pid}",
                got=f"process {os.getpid()}",
            )
        if self._closed:
            raise ClosedError("the store is closed", where=self._root)

    def answer(self, ask: Callable[[], Answer]) -> Answer:
        """Ask as of the moment of now. What its owner removed or wrote anew meanwhile is asked for
        again; queues that do not fit the log are read from the log.
        """
        if os.getpid() != self._pid:
            self.check_open()  # the lock may have been held when the process was forked
        with self._lock:
            for turn in range(_TRIES):
                self.check_open()
                before = self._room.moment
                try:
                    self._room.advance()
                    before = self._room.moment
                    return ask()
                except (CorruptError, FailedError) as error:
                    self._look_again(error, before, turn)
            raise AssertionError("the last turn raises")

    def _look_again(self, error: TimerStoreError, before: Moment, turn: int) -> None:
        """Where that may help, else raise it."""
        room = self._room
        if turn == _TRIES - 1:
            raise error
        is_gone = isinstance(error, GoneError)
        try:
            room.advance()
            if room.moment == before and not is_gone:
                is_queue = str(error.where).startswith(str(room.tree.queues))
                if not (is_queue and room.distrust_queues()):
                    raise error
            elif is_gone and turn == _TRIES - 2:
                room.distrust_queues()
            room.start_over()
        except (CorruptError, FailedError) as again:
            raise error from again

    # --- pulling ---

    @_answer
    def topics(self) -> dict[str, int]:
        """Give every topic with its queue count, system topics included."""
        return self._room.routes.topics()

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 32,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
    ) -> PullResult:
        """Give messages of one queue from an offset on, as `TimerStore.pull` does.

        `wait`: up to so many seconds for the first that becomes visible: it looks every 50 ms
        (polling.POLL_S), and the store's owner completes a checkpoint every `flush_interval_ms`
        (500) while there is something new. Closed meanwhile it answers with what it knew. Raises
        MessageError where there is no such queue.
        """
        return result_of(self._pulled(topic, queue_id, offset, max_count, wait, tags, sql))

    def pull_batch(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 10_000,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
    ) -> MessageBatch:
        """Give messages of one queue as columns; otherwise as `pull`."""
        return self._pulled(topic, queue_id, offset, max_count, wait, tags, sql)

    def _pulled(
        self,
        topic: str,
        queue_id: Any,
        offset: Any,
        max_count: Any,
        wait: Any,
        tags: Any,
        sql: Any,
    ) -> MessageBatch:
        queue_id, offset, max_count = (
            int(one) if isinstance(one, np.integer) else one
            for one in (queue_id, offset, max_count)
        )

        def look() -> MessageBatch:
            route = self._route(topic, queue_id)
            wanted = check_asked(route, offset, max_count, wait, tags, sql)
            return self._look(route, offset, max_count, wanted)

        asked, got = offset, self.answer(look)
        if wait <= 0 or got.status not in WAITING:
            return got
        end_ns = self._polling.end_ns(wait)
        while got.next_offset < got.max_offset or self._polling.pause(end_ns):
            if self._closed:
                break
            got = self.answer(look)
            if got.status is PullStatus.NO_MATCHED_MESSAGE:
                offset = got.next_offset  # what came did not match
            elif got.status not in WAITING:
                return got
        if got.status is PullStatus.OFFSET_OVERFLOW_ONE and offset > asked:
            return replace(got, status=PullStatus.NO_MATCHED_MESSAGE)
        return got

    def _route(self, topic: Any, queue_id: Any) -> Route:
        routes, name = self._room.routes, str(topic)
        number = queue_id if type(queue_id) is int else -1
        route = routes.find(name, number)
        if route is None:
            known = routes.full_queue_count(name)
            raise MessageError(f"queue: topic {topic!r} has {known} queues, got {queue_id!r}")
        return self._room.settle(route)

    def _look(
        self, route: Route, offset: int, max_count: int, wanted: Filter | None
    ) -> MessageBatch:
        log = self._room.log
        bounds = bounds_of(route.queue, offset, log.end, log.segments.begin)
        if bounds.status is not PullStatus.FOUND:
            return empty_batch(route, *bounds)
        return self._reader.read(
            route, offset, max_count, bounds.min_offset, bounds.max_offset, wanted
        )

    def follow(
        self,
        topic: str,
        offsets: Mapping[int, int] | None = None,
        *,
        wait: float | None = 0.0,
        tags: str | None = None,
        sql: str | None = None,
    ) -> Iterator[Message]:
        """Give the messages of a topic, queue by queue in turns, from the offsets on.

        `offsets`: by queue; of a queue that is not named, from its beginning. A queue that comes
        later is followed, too; so is a topic. `wait`: how many seconds to wait for the next, None:
        for ever; it ends when none came. Nothing is committed: `message.queue_offset + 1` is where
        to go on. Raises MessageError on bad arguments.
        """
        topic = check_name("topic", topic)
        if wait is not None and (problems := wait_problems(wait)):
            raise MessageError(problems)
        at = {whole(queue): whole(offset) for queue, offset in dict(offsets or {}).items()}
        if None in at or None in at.values():
            raise MessageError(f"offsets: wanted whole numbers by queue, got {offsets!r}")
        self.check_open()
        return self._followed(topic, dict(at), wait, tags, sql)  # type: ignore[arg-type]

    def _followed(
        self,
        topic: str,
        at: dict[int, int],
        wait: float | None,
        tags: str | None,
        sql: str | None,
    ) -> Iterator[Message]:
        end_ns = self._polling.end_ns(wait)
        while True:
            found = False
            for queue_id in range(self._queue_count(topic)):
                got = self._pulled(topic, queue_id, at.get(queue_id, 0), _FOLLOWED, 0.0, tags, sql)
                found |= got.next_offset > at.get(queue_id, 0)
                at[queue_id] = got.next_offset
                yield from got
                if len(got):
                    end_ns = self._polling.end_ns(wait)
            if not found and not self._polling.pause(end_ns):
                return

    @_answer
    def _queue_count(self, topic: str) -> int:
        return self._room.routes.full_queue_count(topic)

    @_answer
    def query(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        max_count: int = 64,
    ) -> list[Message]:
        """Give the newest messages of a topic that have a key, as `TimerStore.query` does.

        Every record of the topic, and every timer, is looked at: no index is used.
        """
        wanted = check_query(topic, key, begin_ms, end_ms, max_count)
        self._timers.catch_up()
        return query(self._room, self._timers, wanted)

    # --- positions ---

    @_answer
    def committed(self, topic: str, group: str) -> dict[int, int]:
        """Give the offset of the next message for each queue in which the group has committed; what
        was committed since the last checkpoint, too.
        """
        topic, group = check_name("topic", topic), check_name("group", group)
        table = read_file(self._room.disk, self._room.tree).table
        return dict(table.get(entry_name(topic, group), {}))

    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Give the queue offset of the first message stored at a time (epoch ms) or later."""
        return offset_at(
            lambda offset: self.pull_batch(topic, queue_id, offset, max_count=1),
            whole_ms("time_ms", time_ms),
        )

    # --- what waits ---

    def pending(
        self, *, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Give the messages that wait and are due in [begin_ms, end_ms), in order of due time; all
        as of the moment of the first step.
        """
        self.check_open()
        given: tuple[tuple[str, Any], ...] = (("begin_ms", begin_ms), ("end_ms", end_ms))
        problems = [
            f"{name}: wanted a whole number of ms since 1970, got {value!r}"
            for name, value in given
            if value is not None and whole(value) is None
        ]
        if problems:
            raise MessageError(problems)
        return self._pending_steps(begin_ms, end_ms, topic)

    def _pending_steps(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        def read() -> tuple[Records, Records]:
            self._timers.catch_up()
            return self._timers.entries(begin_ms, end_ms, topic)

        timers, on_level = self.answer(read)
        both = merge(
            ((int(one["due_ms"]), False, k) for k, one in enumerate(timers)),
            ((int(one["due_ms"]), True, k) for k, one in enumerate(on_level)),
        )
        for _, is_level, k in both:
            entry = (on_level if is_level else timers)[k]
            with self._lock:
                self.check_open()
                one = self._timers.describe(entry, is_level=is_level)
            if one is not None and (topic is None or one.topic == topic):
                yield one

    @_answer
    def histogram(
        self,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        by: str = "hour",
        topic: str | None = None,
    ) -> Histogram:
        """Count what waits by when it is due, exactly, as `TimerStore.histogram` does; it reads
        what waits with each call.
        """
        if topic is not None:
            check_name("topic", topic)
        buckets = buckets_of(self._clock.now_ms, begin, end, by)
        self._timers.catch_up()
        return histogram(buckets, [one["due_ms"] for one in self._timers.entries(topic=topic)])

    @_answer
    def explain(
        self, message: PutReceipt | Message | PendingTimer | str, *, topic: str | None = None
    ) -> Explanation:
        """Tell where a message is, why it is not out yet, and what happened to it, as of the last
        checkpoint; as `TimerStore.explain`. It reads the log.
        """
        name = name_of(message, topic)
        self._timers.catch_up()
        return ExplainerBeside(self._room, self._timers, self._clock).explain(name)

    @_answer
    def timing_distribution(self) -> dict[int | None, int]:
        """Give how many messages wait, by when they are due: within 5 s, 60 s, ... 86,400 s."""
        self._timers.catch_up()
        return self._timers.backlog.distribution()

    @_answer
    def congestion(self) -> dict[int, int]:
        """Give how many messages wait for each slot, by the ms at which the slot begins."""
        self._timers.catch_up()
        return self._timers.backlog.congestion()

    @_answer
    def recurring(self) -> list[Recurring]:
        """Give what recurs, by name; how far each is as of the last checkpoint."""
        text = self._room.disk.read_small(self._room.tree.recurring_json)
        now_ms = self._clock.now_ms
        found = [shown(one, now_ms) for one in recurring_json.read(text) if not one.is_ended]
        return sorted(found, key=lambda one: one.name)

    @_answer
    def ingested(self, source: str) -> IngestedVersions:
        """Give the versions of a source that are complete."""
        store = self._room.moment.store
        part = Part(0, store, store.log_begin, store.log_end)
        versions = VersionSet()
        for one in transactions(part, Bounds()):
            if one.source == source:
                versions.add(one.version)
        return IngestedVersions(source, tuple(range(*one) for one in versions.ranges()))

    # --- the whole ---

    @_answer
    def stats(self) -> dict[str, Any]:
        """Give numbers as of the last checkpoint, under the names that `TimerStore.stats` has for
        them; `as_of_ms`: when that was written, by the file's time (0: a broker's); `open_in`: the
        process that has the store open, 0: one of which nothing is known, None: none has.
        """
        self._timers.catch_up()
        room, store = self._room, self._room.moment.store
        by_topic, on_level = (Counter(one) for one in pending_by_topic(room.routes))
        as_of_ms = room.disk.changed_ms(room.tree.watermark) if room.moment.mark else None
        return {
            "as_of_ms": as_of_ms or 0,
            "open_in": holder_of(room.disk, room.tree),
            "pending_messages": sum(by_topic.values()) + sum(on_level.values()),
            "pending_by_topic": dict(by_topic + on_level),
            "level_pending_messages": sum(on_level.values()),
            "log_begin_bytes": store.log_begin,
            "log_end_bytes": room.moment.log_end,
            "log_durable_bytes": room.moment.log_end,
            "timer_log_end_bytes": store.timer_log_end,
        }

    def verify(self) -> Report:
        """Read the whole store and tell all damage, as `verify_directory` does. Of a store that
        somebody has open only what is found twice counts: it changes meanwhile.
        """
        self.check_open()
        found = verify_directory(self._root, self._given)
        if found.clean or holder_of(self._room.disk, self._room.tree) is None:
            return found
        again = verify_directory(self._root, self._given)
        both = tuple(one for one in again.problems if one in found.problems)
        return Report(both, again.counts)

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._root

    @property
    def clock(self) -> Clock:
        """The clock that it goes by."""
        return self._clock

    @property
    def config(self) -> StoreConfig:
        """What was given, with the sizes that the store's files have."""
        return self._room.config

    def close(self) -> None:
        """Let go of the files; who waits is answered. A second call does nothing."""
        if os.getpid() != self._pid:
            self.check_open()
        self._closed = True
        self._polling.end()
        with self._lock:
            self._room.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ReadOnlyStore {str(self._root)!r} {state}>"

    # --- what would change something ---

    put = _refused("put")
    put_many = _refused("put_many")
    put_every = _refused("put_every")
    cancel_every = _refused("cancel_every")
    ingest = _refused("ingest")
    cancel = _refused("cancel")
    cancel_many = _refused("cancel_many")
    reschedule = _refused("reschedule")
    pace = _refused("pace")
    consumer = _refused("consumer")  # it commits; `follow` does not
    receive = _refused("receive")
    begin_receive = _refused("begin_receive")
    lease_consumer = _refused("lease_consumer")
    ack = _refused("ack")
    ack_many = _refused("ack_many")
    nack = _refused("nack")
    extend = _refused("extend")
    flush = _refused("flush")
    backup = _refused("backup")  # it begins with a flush
    services = _refused("services")
    begin_pull = _refused("begin_pull")  # of a store whose owner tells who waits
    begin_pull_batch = _refused("begin_pull_batch")
