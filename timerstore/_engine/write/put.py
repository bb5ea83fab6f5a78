"""Putting: messages from a caller into the commit log, one or many.

Threads:  any.
Locks:    its own for making a topic; the append lock for one hold of records.
Holds:    (1) everything is checked before anything is made: a put that is refused leaves nothing;
          (2) on return the message is durable (`sync`), or outlives the process (`async`).
Fails:    MessageError on bad arguments, FullError where there is no room.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base import due_times, failpoints, message_bodies, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, Putter, ffi, lib, pointer
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import SOON_MS, Dispatch
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.flush import Flush
from timerstore._engine.write.requests import PutRequest
from timerstore.clock import Clock, SystemClock
from timerstore.config import StoreConfig
from timerstore.errors import MessageError, quoted
from timerstore.receipts import PutBatch, PutReceipt, ReceiptOrigin

_put_one, _put_level = lib.ts_put_one, lib.ts_put_level


class _Target:
    """A topic that was put to, with what a put of it needs at hand."""

    __slots__ = (
        "body_bytes_max", "levels", "name", "next_queue", "only", "origin", "routes", "topic"
    )  # fmt: skip

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
        self.levels: dict[int, dict[int, Level]] = {}  # by queue, then by level as it is given
        self.set_routes(routes)

    def set_routes(self, routes: list[Route]) -> None:
        """The topic's queues; `only` is the one there is, None where there are several."""
        self.routes = routes
        self.only = routes[0] if len(routes) == 1 else None


class Level(NamedTuple):
    """A level of a topic's queue that was put to. put_one.c reads it by place."""

    address: int  # of the ts_route
    text: bytes
    delay_ms: int
    route: Route


class Putting(Owner):
    """The way in."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        routes: Routes,
        dispatch: Dispatch,
        flush: Flush,
        id_prefix: str,
    ) -> None:
        """`id_prefix`: of the message ids of this opening."""
        self._clock = clock
        self.config = config
        self._log = log
        self._native = log.native
        self._lock = log.lock
        self._is_sync = self.config.flush == "sync"
        self._is_system_clock = type(clock) is SystemClock
        self._delay_ms_max = self.config.delay_ms_max if self.config.timer_enabled else -1
        self._dispatch = dispatch
        self._flush = flush
        # What is due later than near_ms need not be dispatched at once: flush or dispatch come by
        # before. What is due later than soon_ms, where dispatch comes within milliseconds.
        self._native.near_ms = 1000 + 2 * self.config.flush_interval_ms
        self._native.soon_ms = SOON_MS
        self._level_delays = parse_level_delays(self.config.level_delays)
        self._targets: dict[str, _Target] = {}
        self._target_lock = Lock()
        self._hot_topics: dict[str, tuple[int, ReceiptOrigin, int, dict[int, Level]]] = {}
        self._routes = routes
        self._id_prefix = id_prefix

    def make_putter(
        self,
        slow: Callable[..., PutReceipt],
        slow_many: Callable[..., PutBatch],
        sync: Callable[[int], None],
        left: Callable[[], None],
        calls: dict[object, int] | None = None,
    ) -> Any:
        """Make the plain case's quick ways; everything else they give to `slow` and `slow_many`.

        Durable puts wait in `sync(offset)`. Each is in `calls`, with the ident of its thread, while
        it waits, and calls `left()` after that if puts were blocked in the meantime.
        """
        return Putter(
            log=int(ffi.cast("uintptr_t", self._native)),
            slow=slow,
            slow_many=slow_many,
            topics=self._hot_topics,
            wake_dispatch=self._dispatch.wake,
            is_dispatch_silent=self._dispatch.is_unset,
            wake_flush=self._flush.wake,
            sync=sync if self._is_sync else None,
            calls={} if calls is None else calls,
            left=left,
            failpoints=vars(failpoints),
            check_alive=self._log.check_alive,
            receipt=PutReceipt,
            batch=PutBatch,
            empty=np.empty,
            hits=int(ffi.cast("uintptr_t", lib.ts_guard_hits())),
            delay_ms_max=self._delay_ms_max,
        )

    @property
    def is_quick(self) -> bool:
        """Whether a plain put needs nothing but the append and a sync: no clock turned by hand."""
        return self._is_system_clock

    def put(self, request: PutRequest) -> PutReceipt:
        """Store one message that has no id of its caller's and replaces none."""
        topic, body, deliver_ms, queue_id = (
            request.topic,
            request.body,
            request.deliver_ms,
            request.queue_id,
        )
        delay, deliver_at, flush = request.delay, request.deliver_at, request.flush
        tags, keys, properties = request.tags, request.keys, request.properties
        if request.level is not None:
            level = message_fields.check_level(request.level, delay, deliver_at, deliver_ms)
            text = message_fields.encode_properties(tags, keys, properties)
            return self._put_level(topic, body, level, text, queue_id, flush)
        now_ms = time_ns() // 1_000_000 if self._is_system_clock else self._clock.now_ms
        try:
            target = self._targets[topic]
        except (KeyError, TypeError):
            # Everything else before the topic is made: a put that is refused leaves nothing.
            name = message_fields.check_topic(topic)
            self._admit(due_times.due_ms_of(now_ms, delay, deliver_at, deliver_ms, self.config))
            self._checked_body(name, body, message_fields.encode_properties(tags, keys, properties))
            check_queue(queue_id)
            self.wants_sync(flush)
            target = self._make_target(topic)
        is_sync = self.wants_sync(flush)
        if (
            type(deliver_ms) is int
            and delay is None
            and deliver_at is None
            and now_ms < deliver_ms <= now_ms + self._delay_ms_max
        ):
            due_ms = deliver_ms
        else:
            due_ms = due_times.due_ms_of(now_ms, delay, deliver_at, deliver_ms, self.config)
        if (
            type(body) is bytes
            and len(body) <= target.body_bytes_max
            and tags is None
            and properties is None
            and message_fields.is_nothing(keys)
        ):
            text = b""
            source: Any = body
        else:
            text = message_fields.encode_properties(tags, keys, properties)
            source = self._checked_body(target.name, body, text)
        route = target.only if queue_id is None and target.only is not None else None
        if route is None:
            route = self._route_of(target, queue_id)
        log_offset, number, counter = self._append(
            route.native, source, len(source), due_ms, text, now_ms
        )
        if failpoints.hook is not None:
            failpoints.reach("put_appended")
        if is_sync:
            self._log.sync_through(log_offset + 1)
        else:
            self._tell(due_ms, now_ms)
        if due_ms:
            return PutReceipt(
                target.origin, counter, number, route.queue_id, None, log_offset, due_ms
            )
        return PutReceipt(target.origin, counter, -1, route.queue_id, number, log_offset, now_ms)

    def _tell(self, due_ms: int, now_ms: int) -> None:
        """Wake who must hear of a message that is due then and was not synced, as who syncs wakes
        them for all; `notify_services` (put_one.c) is the same.
        """
        native = self._native
        if due_ms <= now_ms + native.soon_ms or (
            not native.dispatch_scheduled
            and (due_ms <= now_ms + native.near_ms or not native.flush_armed)
        ):
            self._dispatch.wake()
        self._flush.note()

    def _admit(self, due_ms: Any) -> None:
        """Refuse these due times before anything is made; see flow_control.py."""

    def _put_level(
        self, topic: str, body: Any, level: int, text: bytes, queue_id: int | None, flush: Any
    ) -> PutReceipt:
        """Append to the level's queue, with where it goes to in the properties."""
        name = message_fields.check_topic(topic)
        source = self._checked_body(name, body, text)
        check_queue(queue_id)
        is_sync = self.wants_sync(flush)
        target = self._targets.get(topic) or self._make_target(topic)
        real = self._route_of(target, queue_id)
        waiting = self._level_of(target, real, level)
        text += waiting.text
        now_ms = 0

        def put_now(native: Any) -> int:
            # The time is read under the append lock, so that due times ascend along the level's
            # queue but where the clock is set back.
            nonlocal now_ms
            if not lib.ts_calendar_fits(native, 1):
                native.need = 0
                return int(lib.TS_NEED_STATES)
            now_ms = self._clock.now_ms
            got = int(
                _put_level(
                    native, waiting.route.native, source, len(source), text, len(text), now_ms,
                    now_ms + waiting.delay_ms,
                )
            )  # fmt: skip
            if got >= 0:
                real.native.level_pending += 1
                lib.ts_calendar_count(native, real.native, now_ms + waiting.delay_ms, 1)
            return got

        log_offset, _, counter = self._log.append("put", put_now)
        reach("put_level_appended")
        due_ms = now_ms + waiting.delay_ms
        if is_sync:
            self._log.sync_through(log_offset + 1)
        else:
            self._tell(due_ms, now_ms)
        return PutReceipt(target.origin, counter, -1, real.queue_id, None, log_offset, due_ms)

    def _level_of(self, target: _Target, real: Route, level: int) -> Level:
        levels = target.levels.get(real.queue_id)
        waiting = levels.get(level) if levels is not None else None
        return waiting if waiting is not None else self._make_level(target, real, level)

    def _make_level(self, target: _Target, real: Route, level: int) -> Level:
        """Have the level's queue, and what a put to it needs at hand."""
        self._log.check_alive()
        number = min(level, len(self._level_delays))
        now_ms = self._clock.now_ms
        routes = self._routes
        routes.grow(SCHEDULE_TOPIC, len(self._level_delays), now_ms)
        route = routes.make(SCHEDULE_TOPIC, number - 1, now_ms)
        text = b"%s\x01%d\x02" % (message_fields.LEVEL_PROPERTY.encode(), number)
        text += bytes(ffi.buffer(real.native.real, real.native.real_size))
        address = int(ffi.cast("uintptr_t", route.native))
        made = Level(address, text, self._level_delays[number - 1], route)
        if level <= len(self._level_delays):  # of those beyond there is no end
            target.levels.setdefault(real.queue_id, {})[level] = made
        return made

    def _checked_body(self, name: bytes, body: Any, text: bytes) -> Any:
        """The body as C takes it, known to fit."""
        raw = message_bodies.check_body(body, self.config.message_bytes_max)
        message_fields.check_sizes(
            len(raw),
            len(text),
            name,
            properties_bytes_max=self.config.properties_bytes_max,
            record_bytes_max=self.config.record_bytes_max,
        )
        return raw if type(raw) is bytes else pointer("uint8_t[]", raw)

    def _append(
        self, route: Any, body: Any, size: int, due_ms: int, text: bytes, now_ms: int
    ) -> tuple[int, int, int]:
        """Append one record: its log offset, queue offset or timer id, and id counter."""
        return self._log.append("put", _put_one, route, body, size, due_ms, text, len(text), now_ms)

    def append_checked(
        self, route: Route, body: bytes, due_ms: int, text: bytes, now_ms: int
    ) -> tuple[int, int, int]:
        """Append what was checked: its log offset, queue offset or timer id, and id counter."""
        return self._append(route.native, body, len(body), due_ms, text, now_ms)

    def appended(self) -> None:
        """Let the services know that something was appended."""
        self._dispatch.wake()
        self._flush.note()

    def wants_sync(self, flush: object) -> bool:
        """Whether a put is to be durable when it returns; `flush`: as its caller gave it."""
        if flush is None:
            return self._is_sync
        if not isinstance(flush, str) or flush not in ("sync", "async"):
            raise MessageError(f"flush: wanted 'sync' or 'async', got {quoted(flush)}")
        return flush == "sync"

    # --- topics ---

    def route_to(self, topic: str) -> Route:
        """Give the queue that the next messages for a topic go to; the topic is made."""
        return self._route_of(self._targets.get(topic) or self._make_target(topic), None)

    def place_of(self, topic: str, queue_id: int | None) -> tuple[Route, ReceiptOrigin]:
        """The same for a queue that may be asked for, and what its receipts have in common."""
        target = self._targets.get(topic) or self._make_target(topic)
        return self._route_of(target, queue_id), target.origin

    def _make_target(self, topic: str) -> _Target:
        name = message_fields.check_topic(topic)
        with self._target_lock:
            target = self._targets.get(topic)
            if target is None:
                self._log.check_alive()  # a store that has failed changes no file any more
                routes = self._routes
                now_ms = self._clock.now_ms
                count = routes.queue_count(topic) or self.config.topic_queue_count
                routes.grow(topic, count, now_ms)
                made = [routes.make(topic, q, now_ms) for q in range(count)]
                origin = ReceiptOrigin(
                    topic, self._id_prefix, self.config.broker_name, self.config.precision_ms
                )
                body_bytes_max = message_fields.body_bytes_limit(
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
            levels = target.levels.setdefault(0, {})
            hot = (address, target.origin, target.body_bytes_max, levels)
            self._hot_topics[target.topic] = hot

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
        number = message_fields.check_queue_id(queue_id)
        with self._target_lock:
            if number >= len(target.routes):
                self._log.check_alive()
                now_ms = self._clock.now_ms
                self._routes.grow(target.topic, number + 1, now_ms)
                make = self._routes.make
                target.set_routes([make(target.topic, q, now_ms) for q in range(number + 1)])
                self._set_hot(target)
        return target.routes[number]


def check_queue(queue_id: object) -> None:
    """MessageError on a queue number that is none."""
    if queue_id is not None:
        message_fields.check_queue_id(queue_id)
