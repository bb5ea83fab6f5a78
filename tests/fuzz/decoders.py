"""Fuzz Python's decoders: texts and small files that only Python reads, and arguments of callers.

The first byte of an input chooses the decoder, and the rest is its input. Formats with a CRC are
decoded as they are, and with the right CRC.

Invariants:
    1. Any bytes give a value or a TimerStoreError, and no other exception.
    2. A value that can be written is read again as the same value.
"""

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.inside import crc_of_backup
from tests.support.inside.parts import crc_of_count
from timerstore import TimerStoreError
from timerstore._engine.format import (
    backup_json,
    consumer_offset_json,
    counts_json,
    delay_offset_json,
    far_table,
    handle,
    index_position,
    json_text,
    ledger_cache,
    ledger_json,
    state_sector,
    store_paths,
    timer_metrics_json,
    topics_json,
    watermark,
)
from timerstore._engine.read.filter import parse_tags
from timerstore._engine.read.sql import parse_sql
from timerstore.shards import manifest
from timerstore.types.messages import host_text, inflate_body, parse_properties

_PROPERTIES = {"a": "1", "b": "text", "c": "-1.5e3", "d": "", "e": "true"}


def _same_again(read: Callable[..., Any], write: Callable[[Any], bytes]) -> Callable[[bytes], None]:
    """Decode a config file, write it, and decode it again."""

    def decode(data: bytes) -> None:
        found = read(data, None)
        assert read(write(found), None) == found

    return decode


def _watermark(data: bytes) -> None:
    at, slots = 0, []
    while at < 1024:
        slot = data[at : at + 512].ljust(512, b"\0")
        end = {b"2": 120, b"3": 128}.get(slot[7:8], 0)
        if end:
            slot = slot[:end] + zlib.crc32(slot[:end]).to_bytes(4, "little") + slot[end + 4 :]
        slots.append(slot)
        at += 512
    mark = watermark.read(b"".join(slots))
    assert mark is None or watermark.read(watermark.write(mark)) == mark


def _headed(read: Callable[[bytes], Any]) -> Callable[[bytes], None]:
    """Return a file whose first row is the CRC of the others."""

    def decode(data: bytes) -> None:
        read(data)
        read(b"%x\n" % zlib.crc32(data) + data)

    return decode


def _counts(data: bytes) -> None:
    counts_json.read_counts(data, 100)
    counts_json.ids_marks(data)
    try:
        entries = json.loads(data)["entries"]
        for one in entries:
            one["crc"] = crc_of_count(one)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, TimerStoreError):
        return
    text = json.dumps({"entries": entries}).encode()
    counts_json.read_counts(text, 100)
    counts_json.ids_marks(text)


def _backup(data: bytes) -> None:
    backup_json.read(data)


def _sealed_backup(data: bytes) -> None:
    entries = json_text.loads(data)
    entries.pop("crc", None)
    text = json.dumps({**entries, "crc": crc_of_backup(entries)})
    backup_json.read(text.encode())


def _handle(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert handle.decode(handle.encode(handle.decode(text))) == handle.decode(text)


def _sector(data: bytes) -> None:
    state_sector.pick(data, 0, 1000)
    payload = np.frombuffer(data[:480].ljust(480, b"\0"), np.uint8)
    made, _ = state_sector.make(np.zeros(1, np.int64), 500, payload[None])
    assert state_sector.pick(bytes(made) + data[512:1024].ljust(512, b"\0"), 0, 1000) is not None


def _names(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert not store_paths.is_topic(text) or store_paths.topic_component(text) == text
    store_paths.queue_number(text)
    store_paths.is_index_name(text)
    store_paths.index_name(
        int.from_bytes(data[:5], "big"), text if store_paths.is_index_name(text) else None
    )
    handle.split_unique_key(text)
    store_paths.segment_offset(text)


def _body(data: bytes) -> None:
    flag = int.from_bytes(data[:2], "big")
    assert len(inflate_body(data[2:], flag, 4096)) <= max(4096, len(data))
    assert len(inflate_body(zlib.compress(data) + data[:1], 1, 4096)) <= 4096


def _properties(data: bytes) -> None:
    assert all(parse_properties(data).values())
    host_text(data, bool(len(data) & 1))


def _sql(data: bytes) -> None:
    condition = parse_sql(data.decode("utf-8", "replace"))
    assert condition.evaluate(_PROPERTIES) in (True, False, None)


def _tags(data: bytes) -> None:
    parse_tags(data.decode("utf-8", "surrogateescape"))


def _far_table(data: bytes) -> None:
    number = int.from_bytes(data[8:16], "big", signed=True)
    for one in (data, data + zlib.crc32(data).to_bytes(4, "big")):
        table = far_table.read(one, number)
        assert table is None or far_table.write(table) == one


def _manifest(data: bytes) -> None:
    manifest.read(data, Path("manifest"))


DECODERS: tuple[Callable[[bytes], object], ...] = (
    _same_again(topics_json.read, topics_json.write),
    _same_again(consumer_offset_json.read, consumer_offset_json.write),
    _same_again(delay_offset_json.read, delay_offset_json.write),
    _same_again(timer_metrics_json.read, timer_metrics_json.write),
    _watermark,
    _headed(index_position.read),
    _headed(ledger_cache.read),
    ledger_json.read,
    _counts,
    _backup,
    _sealed_backup,
    _handle,
    _sector,
    _names,
    _body,
    _properties,
    _sql,
    _tags,
    _manifest,
    _far_table,
)


def one_input(data: bytes) -> None:
    """Decode an input. Only a TimerStoreError may be raised."""
    with suppress(TimerStoreError):
        DECODERS[data[0] % len(DECODERS) if data else 0](data[1:])
