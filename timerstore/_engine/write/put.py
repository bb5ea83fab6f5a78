"""Put one message.

    checked by PutCheck (put_requests.py), with all of its arguments
      |- a level, or a topic or queue that does not exist yet       `put` only
      |- an id of the caller: the log says whether it was put       ts_put_named
      |- an id that was put before, or with a level or a limit      `put` only, as a batch of one
      '- all others                                                 ts_put_one

A put of plain bytes takes a shorter way with the same result, in C (native/fastpath/put_one.c).
`begin` appends a message for timerstore.aio without waiting.

Thread safety: any thread, `begin` also that of an event loop.
Locking: the append lock for one record, in `begin` only if it is free; the lock of Targets if a
    topic or queue is created.
Invariants:
    1. All arguments are checked before anything is created: a rejected put leaves nothing.
    2. On return of `put` the message is durable (`sync`), or survives the end of the process
       (`async`).
    3. `begin` waits for no lock and makes no system call on a file.
    4. A known id appends nothing. Of two puts with one id in the window only one is appended.
Raises: MessageError for invalid arguments; FullError if there is no space; BusyError if too many
message ids are remembered; FlowControlError if the slot is full.
See also: docs/decisions/0002-group-commit.md.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from timerstore._engine.base import failpoints, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Putter, ffi, lib, pointer
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.message_ids import OriginalMessages
from timerstore._engine.timer.flush import Flush
from timerstore._engine.write.append import Appender
from timerstore._engine.write.checked_batch import CheckedBatch
from timerstore._engine.write.put_many import PutBatchWriter
from timerstore._engine.write.put_requests import CheckedPut, PutCheck, PutRequest
from timerstore._engine.write.targets import TopicTarget
from timerstore.types.clock import SystemClock
from timerstore.types.receipts import PutBatch, PutReceipt, ReceiptOrigin


class PutWriter(NotCopyable):
    """Puts single messages into one store."""

    def __init__(
        self,
        core: Core,
        dispatch: Dispatch,
        flush: Flush,
        appender: Appender,
        firsts: OriginalMessages,
        batches: PutBatchWriter,
    ) -> None:
        self._config = core.config
        self._check = PutCheck(core.config).check
        self._clock = core.clock
        self._log = core.log
        self._dispatch = dispatch
        self._flush = flush
        self._appender = appender
        self._targets = appender.targets
        self._ids = firsts.ids
        self._batches = batches
        self._is_new = ffi.new("int32_t *")  # written and read under the append lock

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
            topics=self._targets.fastpath_topics,
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
            delay_ms_max=self._config.delay_ms_max if self._config.timer_enabled else -1,
        )

    @property
    def is_quick(self) -> bool:
        """Whether the C putter may serve plain puts.

        It reads the system clock and asks for no admission.
        """
        return type(self._clock) is SystemClock and not self._appender.admission.is_limited

    def put(self, request: PutRequest) -> PutReceipt:
        """Store one message, unless its id was put to the topic before; return its receipt."""
        put = self._check(request, self._clock.now_ms)
        receipt = self._append(put, waits=True)
        if receipt is None:
            receipt = self._batches.put_checked(_as_batch(put), atomic=False)[0]
        elif put.is_sync:
            self._log.sync_through(receipt.log_offset + 1)
        if put.raw_id:
            reach("put_once_answered")
        return receipt

    def begin(self, request: PutRequest) -> PutReceipt | None:
        """Append one message; the caller syncs. Return None if that is not the usual case."""
        return self._append(self._check(request, self._clock.now_ms), waits=False)

    def _append(self, put: CheckedPut, *, waits: bool) -> PutReceipt | None:
        appender, is_unusual = self._appender, bool(put.raw_id) or not waits
        request, queue_id = put.request, put.request.queue_id
        target = self._targets.by_topic.get(request.topic)
        if is_unusual:
            if request.level is not None or target is None or appender.admission.is_limited:
                return None
            if queue_id is not None and (
                type(queue_id) is not int or queue_id >= len(target.routes)
            ):
                return None  # a file may have to be created
        if target is None:
            appender.admission.check(put.due_ms)
            target = self._targets.make(request.topic)
        if request.level is not None:
            return self._append_on_level(put, target, int(request.level))
        route = target.only if queue_id is None else None
        if route is None:
            route = self._targets.route_of(target, queue_id)
        origin: ReceiptOrigin = target.origin
        if is_unusual:
            appended = self._append_named(put, target, route.native, waits=waits)
            if appended is None:
                return None
            log_offset, number, counter = appended
            reach("put_single_appended")
            if request.message_id is not None:
                origin, counter = origin.keeping(request.message_id), 0
        else:
            log_offset, number, counter = appender.append(
                put.due_ms, lib.ts_put_one, route.native, _source(put), len(put.body), put.due_ms,
                put.text, len(put.text), put.now_ms,
            )  # fmt: skip
            reach("put_appended")
        if not put.is_sync:
            appender.notify(put.due_ms, put.now_ms)
        return origin.receipt(counter, route.queue_id, number, log_offset, put.due_ms, put.now_ms)

    def _append_named(
        self, put: CheckedPut, target: TopicTarget, route: Any, *, waits: bool
    ) -> tuple[int, int, int] | None:
        """Append a message with the id of its caller, or without waiting.

        Return as Appender.append, or None if the append would have to wait, or if the id was put
        before: then nothing was appended.
        """
        source, text, ids = _source(put), put.text, ffi.NULL
        if put.raw_id and self._ids.is_on:
            ids = self._ids.native
            text += b"TS_ONCE\x01%d\x02" % put.now_ms
        is_new = True

        def append(native: Any) -> int:
            nonlocal is_new
            if not put.raw_id:
                return int(
                    lib.ts_put_one(
                        native, route, source, len(put.body), put.due_ms, text, len(text),
                        put.now_ms,
                    )
                )  # fmt: skip
            got = lib.ts_put_named(
                native, ids, target.name, len(target.name), route, source, len(put.body),
                put.due_ms, text, len(text), put.raw_id, len(put.raw_id), put.now_ms, self._is_new,
            )  # fmt: skip
            is_new = bool(self._is_new[0])
            return int(got)

        appended = self._log.append("put", append) if waits else self._log.append_now(append)
        return appended if is_new else None

    def _append_on_level(self, put: CheckedPut, target: TopicTarget, level: int) -> PutReceipt:
        """Append to the level's queue; the message's own topic and queue are in its properties."""
        real = self._targets.route_of(target, put.request.queue_id)
        on_level = self._targets.level_of(target, real, level)
        text, source, size = put.text + on_level.text, _source(put), len(put.body)
        now_ms = 0

        def put_now(native: Any) -> int:
            # The time is read under the append lock, so that due times ascend along the level's
            # queue unless the clock is set back.
            nonlocal now_ms
            if not self._targets.may_append_on_level(native, real):
                return int(lib.TS_NEED_STATES)
            now_ms = self._clock.now_ms
            got = int(
                lib.ts_put_level(
                    native, on_level.route.native, source, size, text, len(text), now_ms,
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
        if not put.is_sync:
            self._appender.notify(due_ms, now_ms)
        return PutReceipt(target.origin, counter, -1, real.queue_id, None, log_offset, due_ms)


def _source(put: CheckedPut) -> Any:
    """Return the body as C takes it."""
    return put.body if type(put.body) is bytes else pointer("uint8_t[]", put.body)


def _as_batch(put: CheckedPut) -> CheckedBatch:
    """Return a put as a batch of one message."""
    return CheckedBatch(
        put.request.topic,
        put.name,
        message_fields.Spans(put.body, np.array([0, len(put.body)], np.int64), len(put.body)),
        np.array([put.due_ms], np.int64),
        put.now_ms,
        put.text,
        (None, None),
        (put.raw_id, np.array([0, len(put.raw_id)], np.int64)) if put.raw_id else None,
        None if put.request.level is None else int(put.request.level),
        put.request.queue_id,
        put.is_sync,
        put.request.is_fixed,
    )
