"""Read the messages that a query found, pending ones included.

Thread safety: any thread.
Raises: CorruptError if a record fails its check.
"""

from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.store_paths import QUEUE_COUNT_MAX, SCHEDULE_TOPIC, whole_number
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.page import PULLED
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError
from timerstore.messages import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    Message,
    host_text,
    parse_properties,
)
from timerstore.receipts import make_handle


class FoundRecord(NamedTuple):
    """A record that a query found."""

    log_offset: int
    timer_id: int  # -1: not a timer
    waits: bool  # whether the message is pending


class FoundMessages:
    """Reads messages by the log offset of their record."""

    def __init__(self, config: StoreConfig, log: CommitLog, routes: Routes) -> None:
        self._config = config
        self._log = log
        self._routes = routes

    def read(self, found: FoundRecord) -> Message:
        """Return the message of a found record."""
        pulled = np.empty(1, PULLED)
        room = 1 << 16
        topic = ffi.new("uint8_t[]", 256)
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            while True:
                body, properties = np.empty(room, np.uint8), np.empty(room, np.uint8)
                size = lib.ts_pull_one(
                    view,
                    found.log_offset,
                    self._config.precision_ms,
                    ffi.from_buffer("ts_pulled[]", pulled),
                    ffi.from_buffer("uint8_t[]", body),
                    room,
                    ffi.from_buffer("uint8_t[]", properties),
                    room,
                    topic,
                )
                if size >= 0:
                    break
                if size == lib.TS_NEED_SPACE:
                    room = int(view.need)
                else:
                    segments.serve(view, size, "query")
        row = pulled[0]
        name = bytes(ffi.buffer(topic, size)).decode("ascii")
        return self._message(found, row, name, body, properties)

    def _level_due_ms(self, queue_id: int, queue_offset: int) -> int:
        """Return the due time that a unit of a delay level holds."""
        route = self._routes.get(SCHEDULE_TOPIC, queue_id)
        if route is None:
            raise CorruptError(
                "query: a record names the queue of a delay level that does not exist",
                where=f"topic {SCHEDULE_TOPIC} queue {queue_id}",
            )
        return int.from_bytes(route.queue.read(queue_offset, 1)[12:20], "big", signed=True)

    def _message(
        self, found: FoundRecord, row: Any, topic: str, body: Any, properties: Any
    ) -> Message:
        pairs = parse_properties(properties[: int(row["properties_size"])].tobytes())
        sys_flag = int(row["sys_flag"])
        due_ms, handle = int(row["due_ms"]), ""
        queue_id, queue_offset = int(row["queue_id"]), int(row["queue_offset"])
        delivered_ms = int(row["delivered_ms"])
        if found.waits:
            if topic == SCHEDULE_TOPIC:
                due_ms = self._level_due_ms(queue_id, queue_offset)
            topic = pairs["REAL_TOPIC"]
            queue_id = whole_number(pairs.get("REAL_QID", "0"), QUEUE_COUNT_MAX - 1)
            queue_offset = delivered_ms = -1
            if found.timer_id >= 0:
                stamp = int(pairs["TIMER_OUT_MS"]) + 1
                key = pairs.get("UNIQ_KEY", "")
                handle = make_handle(topic, self._config.broker_name, stamp, key, found.timer_id)
        return Message(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            log_offset=int(row["log_offset"]),
            raw_body=body[: int(row["body_size"])].tobytes(),
            properties=pairs,
            born_ms=int(row["born_ms"]),
            store_ms=int(row["store_ms"]),
            due_ms=due_ms,
            delivered_ms=delivered_ms,
            flag=int(row["flag"]),
            sys_flag=sys_flag,
            reconsume_times=int(row["reconsume_times"]),
            born_host=host_text(row["born_host"].tobytes(), bool(sys_flag & SYS_FLAG_BORN_HOST_V6)),
            store_host=host_text(
                row["store_host"].tobytes(), bool(sys_flag & SYS_FLAG_STORE_HOST_V6)
            ),
            body_crc=int(row["body_crc"]),
            store_bytes=int(row["size"]),
            body_bytes_max=self._config.message_bytes_max,
            handle=handle,
        )
