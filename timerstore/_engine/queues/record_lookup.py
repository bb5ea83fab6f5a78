"""Find the topic and queue of a record, and make routes that C needs for it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib, raise_status
from timerstore._engine.format.store_paths import (
    QUEUE_COUNT_MAX,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    can_have_queue,
    whole_number,
)
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.segments import Segments
from timerstore.messages import parse_properties


def record_fields(segments: Segments, view: Any, log_offset: int) -> tuple[bytes, int, bytes]:
    """Return topic, queue number and property text of the record at a log offset."""
    out = ffi.new("int64_t[2]")
    sizes = ffi.new("int32_t[4]")
    while True:
        status = lib.ts_record_at(
            view, log_offset, out, sizes, out + 1, sizes + 1, sizes + 2, sizes + 3
        )
        if status == 0:
            break
        segments.serve(view, status, "record")
    record = segments.read(log_offset, int(sizes[3]))
    topic = record[out[0] : out[0] + sizes[0]]
    return topic, int(sizes[2]), record[out[1] : out[1] + sizes[1]]


def scan_one(
    segments: Segments,
    view: Any,
    routes: Routes,
    precision_ms: int,
    now_ms: int,
    log_offset: int,
) -> Any:
    """Return the record at a log offset as a scan would, as one row of SCAN_DTYPE."""
    out, following = np.empty(1, SCAN_DTYPE), ffi.new("int64_t *")
    while True:
        count = lib.ts_scan(
            view,
            routes.native,
            precision_ms,
            log_offset,
            following,
            1,
            ffi.from_buffer("ts_scanned[]", out),
        )
        if count == lib.TS_NEED_ROUTE:
            route_needed(segments, view, routes, now_ms)
        elif count < 0:
            segments.serve(view, count, "record")
        elif count == 0:
            raise_status(lib.TS_CORRUPT, "record", f"{segments.directory} offset {log_offset}")
        else:
            return out[0]


def queues_named(topic: bytes, queue_id: int, text: bytes) -> list[tuple[str, int]]:
    """Return the queue that a record names, and for a delayed message also its real queue.

    text: the record's properties. The queues need not be valid.
    """
    name = topic.decode("utf-8", "replace")
    named = [(name, queue_id)]
    if name in (WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC):
        properties = parse_properties(text)
        real = properties.get("REAL_TOPIC")
        number = whole_number(properties.get("REAL_QID", ""), QUEUE_COUNT_MAX - 1)
        if real and number >= 0:
            named.append((real, number))
    return named


def route_needed(segments: Segments, view: Any, routes: Routes, now_ms: int) -> None:
    """Make the routes of the record at `view.need`: its own, and its real one if it is delayed."""
    need = int(view.need)  # reading the record changes the field
    topic, queue_id, text = record_fields(segments, view, need)
    named = [one for one in queues_named(topic, queue_id, text) if can_have_queue(*one)]
    if all(routes.is_found(*one) for one in named):
        raise_status(
            lib.TS_CORRUPT,
            "a record names no valid queue",
            f"{segments.path(need // segments.segment_bytes)} offset {need}",
        )
    for name, number in named:
        routes.make(name, number, now_ms)


def real_routes(
    log: CommitLog,
    routes: Routes,
    log_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    *,
    is_level: bool,
) -> npt.NDArray[np.int32]:
    """Return the index of the real route of each delayed record, without reading bodies.

    The index is -1 for a record that can never be delivered.

    Raises:
        GoneError: a record was moved or removed.
    """
    count, done = len(log_offsets), 0
    offsets, lengths = np.ascontiguousarray(log_offsets), np.ascontiguousarray(sizes)
    found = np.empty(count, np.int32)
    newest = int((offsets + lengths).max(initial=0))
    with log.segments.view(log.written_through(newest)) as view:
        while done < count:
            got = lib.ts_real_routes(
                view,
                routes.native,
                ffi.from_buffer("int64_t[]", offsets) + done,
                ffi.from_buffer("int32_t[]", lengths) + done,
                count - done,
                is_level,
                ffi.from_buffer("int32_t[]", found) + done,
            )
            if got == lib.TS_NEED_ROUTE:
                route_needed(log.segments, view, routes, int(log.native.last_store_ms))
            elif got < 0:
                log.segments.serve(view, got, "record")
            else:
                done += got
    return found


def is_of_topic(routes: Routes, found: npt.NDArray[np.int32], topic: str) -> npt.NDArray[np.bool_]:
    """Mark the route indexes that belong to a topic."""
    own = [k for k, route in enumerate(list(routes.by_index)) if route.topic == topic]
    return np.isin(found, own)
