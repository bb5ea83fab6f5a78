"""Put one message with tags, keys, properties or an id, without columns, and without waiting.

It serves the usual case: a topic and a queue that were used before, no delay level, no limit of
slots. The callers do everything else: Putting, and ManyPutting for an id that was put before.

Thread safety: any thread, also that of an event loop.
Locking: the append lock for one record; with `waits=False` only if it is free.
Invariants:
    1. With `waits=False` a call waits for no lock and makes no system call on a file.
    2. A known id appends nothing. Of two puts with one id in the window only one is appended.
Raises: MessageError for invalid arguments; FullError and BusyError with `waits=True`.
See also: docs/decisions/0002-group-commit.md.
"""

from typing import Any, NamedTuple

from timerstore._engine.base import due_times, message_bodies, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib, pointer
from timerstore._engine.base.owner import Owner
from timerstore._engine.dedupe import Firsts
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.write.append import Appender
from timerstore._engine.write.checked_batch import id_extra_bytes
from timerstore._engine.write.put_requests import PutRequest
from timerstore._engine.write.targets import TopicTarget
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.receipts import KeptOrigin, PutReceipt, ReceiptOrigin


class KnownId(NamedTuple):
    """Nothing was appended: the id of the message was put before."""

    log_offset: int
    """Of the first message with the id. It may not be durable yet."""


class SinglePut(Owner):
    """Puts single messages into one store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        appender: Appender,
        firsts: Firsts,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
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
        raw = message_bodies.check_body(request.body, config.message_bytes_max)
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
