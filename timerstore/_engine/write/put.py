"""Put one message that has no id from its caller and replaces no other message.

Thread safety: any thread.
Locking: the append lock for one record; the lock of Targets if a topic or queue is created.
Invariants:
    1. All arguments are checked before anything is created: a rejected put leaves nothing.
    2. On return the message is durable (`sync`), or survives the end of the process (`async`).
Raises: MessageError for invalid arguments; FullError if there is no space; FlowControlError if the
slot is full.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base import due_times, failpoints, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import PriorityQueueId
from timerstore._engine.base.native import Putter, ffi, lib, pointer
from timerstore._engine.base.owner import Owner
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.message_ids import Firsts
from timerstore._engine.timer.flush import Flush
from timerstore._engine.write.append import Appender
from timerstore._engine.write.checked_batch import id_extra_bytes
from timerstore._engine.write.put_requests import PutRequest
from timerstore._engine.write.targets import TopicTarget, check_queue
from timerstore.clock import SystemClock
from timerstore.receipts import KeptOrigin, PutBatch, PutReceipt, ReceiptOrigin

# --- put ---


_put_level = lib.ts_put_level


class Putting(Owner):
    """Puts single messages into one store."""

    def __init__(self, core: Core, dispatch: Dispatch, flush: Flush, appender: Appender) -> None:
        self._config = core.config
        self._clock = core.clock
        self._log = core.log
        self._dispatch = dispatch
        self._flush = flush
        self._appender = appender
        self._targets = appender.targets
        self._target_by_topic = appender.targets.by_topic
        self._is_system_clock = type(core.clock) is SystemClock
        self._delay_ms_max = core.config.delay_ms_max if core.config.timer_enabled else -1

    def make_putter(
        self,
        slow: Callable[..., PutReceipt],
        slow_many: Callable[..., PutBatch],
        sync: Callable[[int], None],
        left: Callable[[], None],
        calls: dict[object, int] | None = None,
    ) -> Any:
        """Return the C putter: `put` and `put_many` for plain messages.

        slow, slow_many: called with the same arguments if a message is not plain.
        sync: called with a log offset by a put that must be durable; it returns once it is.
        left: called after `sync` if puts were blocked while the call waited.
        calls: holds each call that waits in `sync`, with its thread's ident.
        """
        return Putter(
            log=int(ffi.cast("uintptr_t", self._log.native)),
            slow=slow,
            slow_many=slow_many,
            topics=self._targets.hot_topics,
            wake_dispatch=self._dispatch.wake,
            is_dispatch_silent=self._dispatch.is_unset,
            wake_flush=self._flush.wake,
            sync=sync if self._config.flush == "sync" else None,
            group_commit=self._log.group_commit,
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
        """Whether the C putter may serve plain puts.

        It reads the system clock and asks for no admission.
        """
        return self._is_system_clock and not self._appender.admission.is_limited

    def put(self, request: PutRequest) -> PutReceipt:
        """Store one message; return its receipt."""
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
            text = message_fields.encode_properties(tags, keys, properties, queue_id)
            return self._put_level(topic, body, level, text, queue_id, flush)
        appender = self._appender
        now_ms = time_ns() // 1_000_000 if self._is_system_clock else self._clock.now_ms
        try:
            target = self._target_by_topic[topic]
        except (KeyError, TypeError):
            # Check everything else before the topic is created: a rejected put leaves nothing.
            name = message_fields.check_topic(topic)
            appender.admission.check(
                due_times.due_ms_of(now_ms, delay, deliver_at, deliver_ms, self._config)
            )
            text = message_fields.encode_properties(tags, keys, properties, queue_id)
            self._checked_body(name, body, text)
            check_queue(queue_id)
            appender.wants_sync(flush)
            target = self._targets.make(topic)
        is_sync = appender.wants_sync(flush)
        if (
            type(deliver_ms) is int
            and delay is None
            and deliver_at is None
            and now_ms < deliver_ms <= now_ms + self._delay_ms_max
        ):
            due_ms = deliver_ms
        else:
            due_ms = due_times.due_ms_of(now_ms, delay, deliver_at, deliver_ms, self._config)
        if (
            type(body) is bytes
            and len(body) <= target.body_bytes_max
            and tags is None
            and properties is None
            and message_fields.is_nothing(keys)
            and not isinstance(queue_id, PriorityQueueId)
        ):
            text = b""
            source: Any = body
        else:
            text = message_fields.encode_properties(tags, keys, properties, queue_id)
            source = self._checked_body(target.name, body, text)
        route = target.only if queue_id is None and target.only is not None else None
        if route is None:
            route = self._targets.route_of(target, queue_id)
        log_offset, number, counter = appender.append(
            route.native, source, len(source), due_ms, text, now_ms
        )
        if failpoints.hook is not None:
            failpoints.reach("put_appended")
        if is_sync:
            self._log.sync_through(log_offset + 1)
        else:
            appender.notify(due_ms, now_ms)
        if due_ms:
            return PutReceipt(
                target.origin, counter, number, route.queue_id, None, log_offset, due_ms
            )
        return PutReceipt(target.origin, counter, -1, route.queue_id, number, log_offset, now_ms)

    def _put_level(
        self, topic: str, body: Any, level: int, text: bytes, queue_id: int | None, flush: Any
    ) -> PutReceipt:
        """Append to the level's queue; the message's own topic and queue are in its properties."""
        name = message_fields.check_topic(topic)
        source = self._checked_body(name, body, text)
        check_queue(queue_id)
        is_sync = self._appender.wants_sync(flush)
        target: TopicTarget = self._targets.get(topic)
        real = self._targets.route_of(target, queue_id)
        on_level = self._targets.level_of(target, real, level)
        text += on_level.text
        now_ms = 0

        def put_now(native: Any) -> int:
            # The time is read under the append lock, so that due times ascend along the level's
            # queue unless the clock is set back.
            nonlocal now_ms
            if not lib.ts_calendar_fits(native, 1):
                native.need = 0
                return int(lib.TS_NEED_STATES)
            now_ms = self._clock.now_ms
            got = int(
                _put_level(
                    native, on_level.route.native, source, len(source), text, len(text), now_ms,
                    now_ms + on_level.delay_ms,
                )
            )  # fmt: skip
            if got >= 0:
                real.native.level_pending += 1
                lib.ts_calendar_count(native, real.native, now_ms + on_level.delay_ms, 1)
            return got

        log_offset, _, counter = self._log.append("put", put_now)
        reach("put_level_appended")
        due_ms = now_ms + on_level.delay_ms
        if is_sync:
            self._log.sync_through(log_offset + 1)
        else:
            self._appender.notify(due_ms, now_ms)
        return PutReceipt(target.origin, counter, -1, real.queue_id, None, log_offset, due_ms)

    def _checked_body(self, name: bytes, body: Any, text: bytes) -> Any:
        """Return the body as C takes it; raise MessageError if it is too large."""
        raw = message_fields.check_body(body, self._config.message_bytes_max)
        message_fields.check_sizes(
            len(raw),
            len(text),
            name,
            properties_bytes_max=self._config.properties_bytes_max,
            record_bytes_max=self._config.record_bytes_max,
        )
        return raw if type(raw) is bytes else pointer("uint8_t[]", raw)


# --- single put ---
# Put one message with tags, keys, properties or an id, without columns, and without waiting.
#
# It serves the usual case: a topic and a queue that were used before, no delay level, no limit of
# slots. The callers do everything else: Putting, and ManyPutting for an id that was put before.
#
# Thread safety: any thread, also that of an event loop.
# Locking: the append lock for one record; with `waits=False` only if it is free.
# Invariants:
#     1. With `waits=False` a call waits for no lock and makes no system call on a file.
#     2. A known id appends nothing. Of two puts with one id in the window only one is appended.
# Raises: MessageError for invalid arguments; FullError and BusyError with `waits=True`.
# See also: docs/decisions/0002-group-commit.md.


class KnownId(NamedTuple):
    """Nothing was appended: the id of the message was put before."""

    log_offset: int
    """Of the first message with the id. It may not be durable yet."""


class SinglePut(Owner):
    """Puts single messages into one store."""

    def __init__(self, core: Core, appender: Appender, firsts: Firsts) -> None:
        self._config = core.config
        self._clock = core.clock
        self._log = core.log
        self._appender = appender
        self._targets = appender.targets
        self._firsts = firsts
        self._is_new = ffi.new("int32_t *")  # written and read under the append lock

    def put(self, request: PutRequest, *, waits: bool) -> PutReceipt | KnownId | None:
        """Append one message; the caller syncs. Return None if that is not the usual case.

        waits: False to return None, too, if the append would have to wait.
        """
        appender, config = self._appender, self._config
        target = self._target(request)
        if target is None or appender.admission.is_limited or request.level is not None:
            return None
        now_ms = self._clock.now_ms
        due_ms = due_times.due_ms_of(
            now_ms, request.delay, request.deliver_at, request.deliver_ms, config
        )
        text = message_fields.encode_properties(
            request.tags, request.keys, request.properties, request.queue_id
        )
        raw_id, ids = b"", None
        own_bytes = len(text)
        if request.message_id is not None:
            raw_id = message_fields.check_message_id(request.message_id)
            own_bytes += id_extra_bytes(len(raw_id), is_remembered=self._firsts.ids.is_on)
            if self._firsts.ids.is_on:
                ids = self._firsts.ids.native
                text += b"TS_ONCE\x01%d\x02" % now_ms
        raw = message_fields.check_body(request.body, config.message_bytes_max)
        message_fields.check_sizes(
            len(raw),
            own_bytes,
            target.name,
            properties_bytes_max=config.properties_bytes_max,
            record_bytes_max=config.record_bytes_max,
        )
        is_sync = appender.wants_sync(request.flush)
        route = self._targets.route_of(target, request.queue_id)
        source: Any = raw if type(raw) is bytes else pointer("uint8_t[]", raw)
        is_new = True

        def append(native: Any) -> int:
            nonlocal is_new
            if not raw_id:
                return int(
                    lib.ts_put_one(
                        native, route.native, source, len(raw), due_ms, text, len(text), now_ms
                    )
                )
            got = lib.ts_put_named(
                native, ids or ffi.NULL, target.name, len(target.name), route.native, source,
                len(raw), due_ms, text, len(text), raw_id, len(raw_id), now_ms, self._is_new,
            )  # fmt: skip
            is_new = bool(self._is_new[0])
            return int(got)

        appended = self._log.append("put", append) if waits else self._log.append_now(append)
        if appended is None:
            return None
        log_offset, number, counter = appended
        if not is_new:
            return KnownId(log_offset)
        reach("put_single_appended")
        if not is_sync:
            appender.notify(due_ms, now_ms)
        origin: ReceiptOrigin = target.origin
        if request.message_id is not None:
            origin, counter = KeptOrigin(origin.topic, request.message_id, *origin[2:]), 0
        if due_ms:
            return PutReceipt(origin, counter, number, route.queue_id, None, log_offset, due_ms)
        return PutReceipt(origin, counter, -1, route.queue_id, number, log_offset, now_ms)

    def _target(self, request: PutRequest) -> TopicTarget | None:
        """Return the topic if it and the queue exist, so that no file has to be created."""
        topic, queue_id = request.topic, request.queue_id
        target = self._targets.by_topic.get(topic) if type(topic) is str else None
        if target is None or queue_id is None:
            return target
        return target if type(queue_id) is int and 0 <= queue_id < len(target.routes) else None
