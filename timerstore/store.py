"""TimerStore: one directory, opened; ties the rooms together.

Threads:  every method from any thread; `close` waits for calls that run.
Holds:    opening recovers before any service starts; closing completes a checkpoint, then tells a
          broker that it may open the directory.
Fails:    each error says what, where, wanted and got; after FailedError only reopening helps.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np

from timerstore import arguments, failpoint
from timerstore.clock import Clock, SystemClock
from timerstore.config import StoreConfig
from timerstore.errors import ClosedError, ConfigError, ForkedError, FullError, MessageError
from timerstore.failpoint import reach
from timerstore.inspect.check import check_store
from timerstore.layout.handle import decode
from timerstore.message import (
    CancelResult,
    MessageBatch,
    PendingTimer,
    PullResult,
    PutBatch,
    PutReceipt,
    ReceiptOrigin,
    Report,
)
from timerstore.native import Putter, ffi, lib, raise_status
from timerstore.opening import Opened, open_directory
from timerstore.queues.routes import Route
from timerstore.service import Service

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_MANY_HOLD = 1024
_put_one = lib.ts_put_one


_opened_here: "weakref.WeakSet[TimerStore]" = weakref.WeakSet()


def _block_in_child() -> None:
    for store in list(_opened_here):
        store._block()


os.register_at_fork(after_in_child=_block_in_child)


class _Target:
    """A topic that was put to, with what a put of it needs at hand."""

    __slots__ = ("body_bytes_max", "name", "next_queue", "only", "origin", "routes", "topic")

    def __init__(
        self,
        topic: str,
        name: bytes,
        routes: list[Route],
        origin: ReceiptOrigin,
        body_bytes_max: int,
    ) -> None:
        self.topic = topic
        self.name = name
        self.origin = origin
        self.body_bytes_max = body_bytes_max  # of a body without tags, keys and properties
        self.next_queue = 0
        self.set_routes(routes)

    def set_routes(self, routes: list[Route]) -> None:
        """The topic's queues; `only` is the one there is, None where there are several."""
        self.routes = routes
        self.only = routes[0] if len(routes) == 1 else None


def _counted(
    method: Callable[Concatenate["TimerStore", Arguments], Answer],
) -> Callable[Concatenate["TimerStore", Arguments], Answer]:
    """A call that `close` waits for, and that raises once the store is closed."""

    @wraps(method)
    def call(self: "TimerStore", /, *args: Arguments.args, **given: Arguments.kwargs) -> Answer:
        self._enter()
        try:
            return method(self, *args, **given)
        finally:
            self._leave()

    return call


class TimerStore:
    """An open store; `timerstore.open` makes it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: StoreConfig | None = None,
        *,
        clock: Clock | None = None,
        threads: bool = True,
    ) -> None:
        _check_given(config, clock)
        self._clock = clock if clock is not None else SystemClock()
        self._threads = threads
        self._pid = os.getpid()
        self._closed = False
        self._close_lock = threading.Lock()
        self._calls = 0  # that run, but for the quick way of put; under `_idle`
        self._idle = threading.Condition(threading.Lock())
        self._targets: dict[str, _Target] = {}
        self._target_lock = threading.Lock()
        opened = open_directory(Path(path), config, self._clock, threads=threads)
        self._opened: Opened = opened
        self.config = opened.config
        self._log = opened.rooms.log
        self._native = opened.rooms.log.native
        self._lock = opened.rooms.log.lock
        self._is_sync = self.config.flush == "sync"
        self._blocked = False  # closed, or carried into a forked child
        self._is_system_clock = type(self._clock) is SystemClock
        self._delay_ms_max = self.config.delay_ms_max if self.config.timer_enabled else -1
        self._dispatch = opened.rooms.dispatch
        self._flush = opened.pipeline.flush
        # What is due later than this need not be dispatched at once: flush comes by before.
        self._near_ms = 1000 + 2 * self.config.flush_interval_ms
        self._out = memoryview(ffi.buffer(ffi.addressof(self._native, "out"), 16)).cast("q")
        self._hot_topics: dict[str, tuple[int, ReceiptOrigin, int]] = {}
        self._putter = self._make_putter()
        _opened_here.add(self)
        self._unsubscribe = self._clock.subscribe(opened.wake_all)
        if threads:
            opened.start()

    def _make_putter(self) -> Any:
        """Put the plain case's quick way in front of `put` where a put need not wait for a sync."""
        putter = Putter(
            log=int(ffi.cast("uintptr_t", self._native)),
            slow=self.put,
            topics=self._hot_topics,
            acquire=self._lock.acquire,
            release=self._lock.release,
            wake_dispatch=self._dispatch.wake,
            wake_flush=self._flush.wake,
            failpoints=vars(failpoint),
            receipt=PutReceipt,
            delay_ms_max=self._delay_ms_max,
            near_ms=self._near_ms,
        )
        if self._is_system_clock and not self._is_sync:
            self.put = putter.put  # type: ignore[method-assign]  # same call, same answers
        return putter

    # --- putting ---

    @_counted
    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        deliver_ms: int | None = None,
        tags: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        flush: str | None = None,
    ) -> PutReceipt:
        """Store one message; it is in its topic when its time has come, now where none is given.

        On return it is durable (`flush="sync"`) or will survive the process (`"async"`). At most
        one of delay (seconds or timedelta), deliver_at (aware datetime), deliver_ms (epoch ms).
        Raises MessageError on bad arguments, FullError, ClosedError, ForkedError, FailedError.
        """
        now_ms = time_ns() // 1_000_000 if self._is_system_clock else self._clock.now_ms
        try:
            target = self._targets[topic]
        except (KeyError, TypeError):
            # Everything else before the topic is made: a put that is refused leaves nothing.
            name = arguments.check_topic(topic)
            self._due_ms(now_ms, delay, deliver_at, deliver_ms)
            self._checked_body(name, body, arguments.encode_properties(tags, keys, properties))
            _check_queue(queue_id)
            self._wants_sync(flush)
            target = self._make_target(topic)
        is_sync = self._wants_sync(flush)
        if (
            type(deliver_ms) is int
            and delay is None
            and deliver_at is None
            and now_ms < deliver_ms <= now_ms + self._delay_ms_max
        ):
            due_ms = deliver_ms
        else:
            due_ms = self._due_ms(now_ms, delay, deliver_at, deliver_ms)
        if (
            type(body) is bytes
            and len(body) <= target.body_bytes_max
            and tags is None
            and properties is None
            and not keys
        ):
            text = b""
            source: Any = body
        else:
            text = arguments.encode_properties(tags, keys, properties)
            source = self._checked_body(target.name, body, text)
        route = target.only if queue_id is None and target.only is not None else None
        if route is None:
            route = self._route_of(target, queue_id)
        log_offset, number, counter = self._append(
            route.native, source, len(source), due_ms, text, now_ms
        )
        if failpoint.hook is not None:
            failpoint.reach("put_appended")
        if is_sync:
            self._log.sync_through(log_offset + 1)
        if due_ms <= now_ms + self._near_ms:
            self._dispatch.wake()
        self._flush.note()
        if due_ms:
            return PutReceipt(
                target.origin, counter, number, route.queue_id, None, log_offset, due_ms
            )
        return PutReceipt(target.origin, counter, -1, route.queue_id, number, log_offset, now_ms)

    def _due_ms(self, now_ms: int, delay: Any, deliver_at: Any, deliver_ms: Any) -> int:
        """When a message is due, epoch ms; 0: now."""
        due_ms = arguments.resolve_due_ms(
            now_ms, delay, deliver_at, deliver_ms, self.config.delay_ms_max
        )
        if due_ms is not None and not self.config.timer_enabled:
            raise MessageError("time: timers are off in this store (timer_enabled), got a due time")
        return due_ms or 0

    def _checked_body(self, name: bytes, body: Any, text: bytes) -> Any:
        """The body as C takes it, known to fit."""
        raw = arguments.check_body(body, self.config.message_bytes_max)
        arguments.check_sizes(
            len(raw),
            len(text),
            name,
            properties_bytes_max=self.config.properties_bytes_max,
            record_bytes_max=self.config.record_bytes_max,
        )
        return raw if type(raw) is bytes else ffi.from_buffer("uint8_t[]", raw)

    def _append(
        self, route: Any, body: Any, size: int, due_ms: int, text: bytes, now_ms: int
    ) -> tuple[int, int, int]:
        """Append one record: its log offset, queue offset or timer id, and id counter."""
        out = self._out
        while True:
            with self._lock:
                log_offset = _put_one(
                    self._native, route, body, size, due_ms, text, len(text), now_ms
                )
                if log_offset >= 0:
                    return log_offset, out[0], out[1]
                need = int(self._native.need)
            self._make_room(log_offset, need)

    def _make_room(self, status: int, need: int) -> None:
        if status == lib.TS_NEED_ROOM:
            self._opened.checkpoint.wait()
            self._log.make_room(need)
        elif status == lib.TS_NEED_STATES:
            self._opened.rooms.states.ensure(need)
        else:
            raise_status(status, "put")

    def _appended(self) -> None:
        self._dispatch.wake()
        self._flush.note()

    def _wants_sync(self, flush: object) -> bool:
        if flush is None:
            return self._is_sync
        if flush not in ("sync", "async"):
            raise MessageError(f"flush: wanted 'sync' or 'async', got {flush!r}")
        return flush == "sync"

    @_counted
    def put_many(
        self,
        topic: str,
        bodies: Any,
        *,
        deliver_ms: Any = None,
        delay: Any = None,
        tags: str | None = None,
        keys: Sequence[Any] | None = None,
        queue_id: int | None = None,
        flush: str | None = None,
    ) -> PutBatch:
        """Store many messages of one topic and queue, in their order.

        `bodies`: a list of bytes-likes, or (buffer, array of count + 1 offsets). `deliver_ms`
        (epoch ms) or `delay` (seconds): one value, or one a body; 0 or past: now. `keys`: one entry
        a body, a key or a sequence of keys. All are checked before any is stored; after a crash a
        prefix may be, and after a FullError its `stored_count` first ones are.
        """
        now_ms = self._clock.now_ms
        config = self.config
        name = arguments.check_topic(topic)
        is_sync = self._wants_sync(flush)
        data, offsets = arguments.gather_bodies(bodies, config.message_bytes_max)
        count = len(offsets) - 1
        due = arguments.resolve_due_array(now_ms, count, delay, deliver_ms, config.delay_ms_max)
        if not config.timer_enabled and bool((due > 0).any()):
            raise MessageError("time: timers are off in this store (timer_enabled), got a due time")
        text = arguments.encode_properties(tags, (), None)
        extra, extra_offsets = _encode_keys(keys, count)
        self._check_many(name, offsets, extra_offsets, len(text))
        _check_queue(queue_id)
        target = self._targets.get(topic) or self._make_target(topic)
        route = self._route_of(target, queue_id)
        with self._lock:
            first = int(self._native.unique_counter)
            self._native.unique_counter = first + count
        log_offsets = np.empty(count, np.int64)
        numbers = np.empty(count, np.int64)
        self._append_many(
            route,
            count,
            data,
            offsets,
            due,
            text,
            extra,
            extra_offsets,
            first,
            now_ms,
            log_offsets,
            numbers,
        )
        if count and is_sync:
            self._log.sync_through(int(log_offsets[-1]) + 1)
        self._appended()
        is_timer = due > 0
        return PutBatch(
            target.origin,
            first,
            route.queue_id,
            log_offsets,
            np.where(is_timer, -1, numbers),
            np.where(is_timer, due, now_ms),
            np.where(is_timer, numbers, -1),
        )

    def _check_many(self, name: bytes, offsets: Any, extra_offsets: Any, text_bytes: int) -> None:
        if len(offsets) < 2:
            return
        sizes = np.diff(offsets)
        extra = np.diff(extra_offsets) if extra_offsets is not None else np.zeros(1, np.int64)
        arguments.check_sizes(
            int((sizes + extra).max()) - int(extra.max()),
            text_bytes + int(extra.max()),
            name,
            properties_bytes_max=self.config.properties_bytes_max,
            record_bytes_max=self.config.record_bytes_max,
        )

    def _append_many(
        self,
        route: Route,
        count: int,
        data: Any,
        offsets: Any,
        due: Any,
        text: bytes,
        extra: Any,
        extra_offsets: Any,
        first: int,
        now_ms: int,
        log_offsets: Any,
        numbers: Any,
    ) -> None:
        native = self._native
        source = ffi.from_buffer("uint8_t[]", data)
        spans = ffi.from_buffer("int64_t[]", np.ascontiguousarray(offsets))
        dues = ffi.from_buffer("int64_t[]", due)
        more = ffi.NULL if extra is None else ffi.from_buffer("uint8_t[]", extra)
        more_spans = ffi.NULL if extra is None else ffi.from_buffer("int64_t[]", extra_offsets)
        out, out_numbers = (
            ffi.from_buffer("int64_t[]", log_offsets),
            ffi.from_buffer("int64_t[]", numbers),
        )
        done = 0
        while done < count:
            with self._lock:
                got = lib.ts_put_many(
                    native,
                    route.native,
                    done,
                    min(count, done + _MANY_HOLD),
                    source,
                    spans,
                    dues,
                    text,
                    len(text),
                    more,
                    more_spans,
                    first,
                    now_ms,
                    out,
                    out_numbers,
                )
                need = int(native.need)
            if got >= 0:
                done += got
                reach("put_many_part_appended")
            else:
                self._appended()  # room may have to come from the services
                try:
                    self._make_room(got, need)
                except FullError as error:
                    error.stored_count = done
                    raise

    # --- topics ---

    def _make_target(self, topic: str) -> _Target:
        name = arguments.check_topic(topic)
        with self._target_lock:
            target = self._targets.get(topic)
            if target is None:
                routes = self._opened.rooms.routes
                now_ms = self._clock.now_ms
                count = routes.queue_count(topic) or self.config.topic_queue_count
                routes.grow(topic, count, now_ms)
                made = [routes.make(topic, q, now_ms) for q in range(count)]
                origin = ReceiptOrigin(
                    topic, self._opened.id_prefix, self.config.broker_name, self.config.precision_ms
                )
                body_bytes_max = arguments.body_bytes_limit(
                    self.config.message_bytes_max, self.config.record_bytes_max, name
                )
                target = _Target(topic, name, made, origin, body_bytes_max)
                self._targets[topic] = target
                self._set_hot(target)
            return target

    def _set_hot(self, target: _Target) -> None:
        """Let the quick way know the topic where it has one queue."""
        if target.only is None:
            self._hot_topics.pop(target.topic, None)
        else:
            address = int(ffi.cast("uintptr_t", target.only.native))
            self._hot_topics[target.topic] = (address, target.origin, target.body_bytes_max)

    def _route_of(self, target: _Target, queue_id: int | None) -> Route:
        routes = target.routes
        if queue_id is None:
            if len(routes) == 1:
                return routes[0]
            at = target.next_queue
            target.next_queue = (at + 1) % len(routes)
            return routes[at % len(routes)]
        if type(queue_id) is int and 0 <= queue_id < len(routes):
            return routes[queue_id]
        number = arguments.check_queue_id(queue_id)
        with self._target_lock:
            if number >= len(target.routes):
                now_ms = self._clock.now_ms
                self._opened.rooms.routes.grow(target.topic, number + 1, now_ms)
                make = self._opened.rooms.routes.make
                target.set_routes([make(target.topic, q, now_ms) for q in range(number + 1)])
                self._set_hot(target)
        return target.routes[number]

    @_counted
    def topics(self) -> dict[str, int]:
        """Give every topic with its queue count, system topics included."""
        return self._opened.rooms.routes.topics()

    # --- pulling ---

    @_counted
    def pull(
        self, topic: str, queue_id: int, offset: int, *, max_count: int = 32, wait: float = 0.0
    ) -> PullResult:
        """Give messages of one queue from an offset on; waits up to `wait` seconds for the first.

        Go on from `next_offset`, whatever the status. Raises MessageError where there is no such
        queue.
        """
        return self._opened.puller.pull(
            *self._pull_arguments(topic, queue_id, offset, max_count, wait)
        )

    @_counted
    def pull_batch(
        self, topic: str, queue_id: int, offset: int, *, max_count: int = 10_000, wait: float = 0.0
    ) -> MessageBatch:
        """Give messages of one queue as columns; otherwise as `pull`."""
        return self._opened.puller.batch(
            *self._pull_arguments(topic, queue_id, offset, max_count, wait)
        )

    def _pull_arguments(
        self, topic: str, queue_id: Any, offset: Any, max_count: Any, wait: Any
    ) -> tuple[Route, int, int, float]:
        queue_id, offset, max_count = (
            int(one) if isinstance(one, np.integer) else one
            for one in (queue_id, offset, max_count)
        )
        routes, name = self._opened.rooms.routes, str(topic)
        number = queue_id if type(queue_id) is int else -1
        route = routes.get(name, number)
        if route is None:
            known = routes.queue_count(name)
            if not 0 <= number < known:
                raise MessageError(f"queue: topic {topic!r} has {known} queues, got {queue_id!r}")
            route = routes.make(name, number, self._clock.now_ms)
        problems = []
        if type(offset) is not int or offset < 0:
            problems.append(f"offset: wanted a whole number from 0 on, got {offset!r}")
        if type(max_count) is not int or max_count < 1:
            problems.append(f"max_count: wanted a whole number from 1 on, got {max_count!r}")
        if not isinstance(wait, int | float) or not 0 <= wait < 1e9:
            problems.append(f"wait: wanted seconds from 0 on, got {wait!r}")
        if problems:
            raise MessageError(problems)
        return route, offset, max_count, wait

    # --- what waits ---

    @_counted
    def cancel(self, receipt_or_handle: PutReceipt | str) -> CancelResult:
        """Cancel a message that waits; what the answer says is durable."""
        if isinstance(receipt_or_handle, PutReceipt):
            if receipt_or_handle.queue_offset is not None:
                return CancelResult.ALREADY_DELIVERED
            text = receipt_or_handle.handle
        else:
            text = receipt_or_handle
        result, end = self._opened.canceller.cancel(decode(text))
        reach("cancel_appended")
        if end:
            self._log.sync_through(end)
        self._appended()
        return result

    def pending(
        self, *, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Give the messages that wait and are due in [begin_ms, end_ms), in order of due time."""
        self._check_open()
        given: tuple[tuple[str, Any], ...] = (("begin_ms", begin_ms), ("end_ms", end_ms))
        problems = [
            f"{name}: wanted a whole number of ms since 1970, got {value!r}"
            for name, value in given
            if value is not None and not isinstance(value, int | np.integer)
        ]
        if problems:
            raise MessageError(problems)
        return self._pending_steps(self._opened.pending.read(begin_ms, end_ms, topic))

    def _pending_steps(self, pending: Iterator[PendingTimer]) -> Iterator[PendingTimer]:
        """Give them one by one, each in a call of its own: the caller may close in between."""
        while (one := self._next_pending(pending)) is not None:
            yield one

    @_counted
    def _next_pending(self, pending: Iterator[PendingTimer]) -> PendingTimer | None:
        return next(pending, None)

    @_counted
    def stats(self) -> dict[str, Any]:
        """Give counters and gauges: names as in metrics.py, sizes in bytes, times in ms."""
        rooms = self._opened.rooms
        timer_route = self._opened.timer_route
        frontier_ms = rooms.wheel.frontier * self.config.precision_ms
        return {
            **self._opened.metrics.values(),
            "put_messages": int(self._native.put_count),
            "cancelled_messages": int(self._native.cancel_count),
            "pending_messages": int(rooms.states.native.waiting),
            "pending_by_topic": {
                t: n for t, n in self._opened.checkpoint.pending_by_topic().items() if n
            },
            "log_end_bytes": rooms.log.end,
            "log_durable_bytes": rooms.log.durable,
            "dispatch_behind_bytes": rooms.log.end - rooms.dispatch.dispatched,
            "enqueue_behind_messages": int(timer_route.native.next_offset)
            - rooms.timer_log.linked_offset,
            "dequeue_behind_ms": max(0, self._clock.now_ms - frontier_ms)
            if rooms.wheel.next_used(
                rooms.wheel.frontier, self._clock.now_ms // self.config.precision_ms
            )
            else 0,
            "open_slot_messages": len(rooms.open_slot),
            "timer_log_end_bytes": rooms.timer_log.end,
        }

    @_counted
    def flush(self) -> None:
        """Make everything put so far durable, and complete a checkpoint."""
        self._log.sync_through(self._log.end)
        self._opened.checkpoint.run()

    @_counted
    def verify(self) -> Report:
        """Check every invariant of the store as it is now; what is wrong with it is in the Report.

        Services go on meanwhile. Raises FailedError where the store has failed.
        """
        opened = self._opened
        return check_store(
            opened.config,
            opened.clock,
            opened.disk,
            opened.directory.tree,
            opened.rooms,
            opened.timer_route,
            opened.store_id,
            opened.checkpoint,
            opened.pending,
        )

    def services(self) -> dict[str, Service]:
        """Give the services by name, in the order in which a message meets them; for those who step
        them by hand (timerstore.testing.Stepper).
        """
        if self._threads:
            raise MessageError("services: this store's run in threads; open it with threads=False")
        services = (self._opened.rooms.dispatch, *self._opened.pipeline)
        return {service.name.replace("-", "_"): service for service in services}

    # --- closing ---

    def _block(self) -> None:
        """Every call looks from now on whether it may."""
        self._blocked = True
        self._putter.blocked = 1

    def _enter(self) -> None:
        if self._blocked:
            self._check_open()  # before the lock: in a forked child nobody may let go of it
        with self._idle:
            if self._blocked:
                self._check_open()
            self._calls += 1

    def _leave(self) -> None:
        with self._idle:
            self._calls -= 1
            if self._blocked:
                self._idle.notify_all()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "a store belongs to the process that opened it",
                where=self._opened.directory.root,
                wanted=f"process {self._pid}",
                got=f"process {os.getpid()}",
            )
        if self._closed:
            raise ClosedError("the store is closed", where=self._opened.directory.root)

    def close(self) -> None:
        """Stop the services, complete a checkpoint, release the directory.

        A second call does nothing.
        """
        if os.getpid() != self._pid:
            self._check_open()
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            self._block()
            self._unsubscribe()
            self._opened.puller.close()  # whoever waits for a message is answered
            with self._idle:
                self._idle.wait_for(lambda: not self._calls)
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<TimerStore {str(self._opened.directory.root)!r} {state}>"


def _check_queue(queue_id: object) -> None:
    if queue_id is not None:
        arguments.check_queue_id(queue_id)


def _check_given(config: object, clock: object) -> None:
    problems = []
    if config is not None and not isinstance(config, StoreConfig):
        problems.append(f"config: wanted a StoreConfig, got {type(config).__name__}")
    elif config is not None and ":" in config.store_address[0]:
        problems.append(
            f"store_host: IPv6 is read, but not written in this release, got {config.store_host!r}"
        )
    if clock is not None and not isinstance(clock, Clock):
        problems.append(f"clock: wanted a Clock, got {type(clock).__name__}")
    if problems:
        raise ConfigError(problems)


def _encode_keys(keys: Any, count: int) -> tuple[Any, Any]:
    """Give the keys of a batch as property texts and offsets, None twice where there are none."""
    if keys is None:
        return None, None
    is_row = isinstance(keys, Sequence | np.ndarray) and not isinstance(keys, str | bytes)
    if not is_row or len(keys) != count:
        got = str(len(keys)) if is_row else type(keys).__name__
        raise MessageError(f"keys: wanted one entry for each of {count} bodies, got {got}")
    texts = [arguments.encode_properties(None, one, None) for one in keys]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, count), out=offsets[1:])
    return b"".join(texts), offsets


def open(  # noqa: A001 - read as `timerstore.open`, as in `gzip.open`; no file is opened here
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    read_only: bool = False,
) -> TimerStore:
    """Open the store in a directory, which is made where it is not there.

    `threads=False`: no service runs until it is stepped (timerstore.testing.Stepper).
    """
    if read_only:
        raise MessageError("read_only: not in this release; open the directory for writing")
    return TimerStore(path, config, clock=clock, threads=threads)
