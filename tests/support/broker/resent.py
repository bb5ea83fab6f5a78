"""Append records to our log as a broker writes them: messages of its clients, new or sent on.

Invariants: each record gets the place that a broker would give it, at the next offset of its queue;
    no other file changes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support import disk_reader as disk

QUEUE = {"REAL_TOPIC": "orders", "REAL_QID": "0"}


class Written(NamedTuple):
    """The place of an appended record."""

    log_offset: int
    queue_offset: int


def write(
    root: Path,
    topic: str,
    properties: Mapping[str, str],
    *,
    store_ms: int,
    body: bytes = b"sent on",
    queue_id: int = 0,
) -> Written:
    """Append one record to a closed store's log; its last segment must have space."""
    there = [one for one in disk.records(root) if (one.topic, one.queue_id) == (topic, queue_id)]
    queue_offset = there[-1].queue_offset + 1 if there else 0
    log_offset = disk.log_end(root).position
    raw = disk.encode_record(
        topic,
        body,
        properties,
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        born_ms=store_ms,
        store_ms=store_ms,
    )
    start, path = max(one for one in disk.segments(root / "commitlog") if one[0] <= log_offset)
    at = log_offset - start
    data = bytearray(path.read_bytes())
    assert at + len(raw) + 16 <= len(data), "the segment is full"
    data[at : at + len(raw)] = raw
    path.write_bytes(data)
    return Written(log_offset, queue_offset)


def begin_segment(root: Path) -> None:
    """End the last segment with a blank and begin the next, as if a record did not fit."""
    log_offset = disk.log_end(root).position
    start, path = disk.segments(root / "commitlog")[-1]
    size = path.stat().st_size
    data = bytearray(path.read_bytes())
    raw = disk.encode_blank(start + size - log_offset)
    data[log_offset - start : log_offset - start + len(raw)] = raw
    path.write_bytes(data)
    path.with_name(f"{start + size:020}").write_bytes(bytes(size))


def delayed(
    root: Path, key: str, due_ms: int, *, store_ms: int, body: bytes = b"sent on", **more: str
) -> Written:
    """Append a message that a client sent to `orders` with a delay and the properties `more`."""
    out_ms = (due_ms - 1) // 1000 * 1000
    properties = {**more, **QUEUE, "UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}
    properties["TIMER_OUT_MS"] = str(out_ms)
    return write(root, disk.TIMER_TOPIC, properties, store_ms=store_ms, body=body)


def rolled(root: Path, of: Written, *, store_ms: int, times: int = 1) -> Written:
    """Append a copy that a broker rolled, with all properties and a roll count."""
    source = next(one for one in disk.records(root) if one.position == of.log_offset)
    properties = {**source.properties, "TIMER_ROLL_TIMES": str(times)}
    properties |= {"TIMER_ENQUEUE_MS": str(store_ms), "TIMER_DEQUEUE_MS": str(store_ms)}
    return write(root, disk.TIMER_TOPIC, properties, store_ms=store_ms, body=source.body)


def delivered(root: Path, of: Written, *, store_ms: int) -> Written:
    """Append the copy that a broker delivers of a message in the timer topic."""
    source = next(one for one in disk.records(root) if one.position == of.log_offset)
    properties = {**source.properties, "TIMER_ENQUEUE_MS": str(store_ms)}
    properties["TIMER_DEQUEUE_MS"] = str(store_ms)
    return write(root, "orders", properties, store_ms=store_ms, body=source.body)
