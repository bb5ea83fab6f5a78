"""Filler records: they replace lost records, so that the records around them keep their offsets.

    padding       has SYSFLAG prepared and a body of zeros. It is in no queue, so no reader gets it.
    placeholder   takes the queue offset of a lost record. It has an empty body and the property
                  TS_LOST. In the timer topic and the delay-level topic it is not a valid timer, so
                  nothing is delivered.

Only `repair` writes them.

Invariants:
    1. Each is a valid record of exactly the requested size.
On-disk format: native/format/record.h, version 1, with IPv4 hosts of zeros.
"""

import zlib

LOST = "TS_LOST"
RECORD_FIXED_BYTES = 91
_MAGIC = 0xDAA320A7
_BLANK_MAGIC = 0xCBD43194
_PREPARED = 0x04
_PAIR_BYTES = len(LOST) + 3  # with a value of one byte


def padding_bytes_min(topic: str) -> int:
    """Return the size of the smallest padding, bytes."""
    return RECORD_FIXED_BYTES + len(topic)


def placeholder_bytes_min(topic: str) -> int:
    """Return the size of the smallest placeholder, bytes."""
    return RECORD_FIXED_BYTES + len(topic) + _PAIR_BYTES


def padding(topic: str, log_offset: int, size: int, store_ms: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the body of a padding; the body is zeros."""
    body_bytes = size - padding_bytes_min(topic)
    crc = zlib.crc32(bytes(body_bytes)) & 0x7FFFFFFF
    head = _head(size, crc, 0, 0, log_offset, _PREPARED, store_ms, body_bytes)
    return head, _tail(topic, b"")


def placeholder(
    topic: str, queue_id: int, queue_offset: int, log_offset: int, size: int, store_ms: int
) -> bytes:
    """Return a placeholder of a size; the value of its property fills the size."""
    value = b"1" * (1 + size - placeholder_bytes_min(topic))
    properties = LOST.encode() + b"\x01" + value + b"\x02"
    head = _head(size, 0, queue_id, queue_offset, log_offset, 0, store_ms, 0)
    return head + _tail(topic, properties)


def blank(log_offset: int, size: int) -> bytes:
    """Return the first bytes of a blank that fills the last `size` bytes of a segment."""
    return _blank_head(size) + (_int(log_offset, 8) if size >= 16 else b"")


def is_blank(raw: bytes, size: int) -> bool:
    """Return whether these bytes begin a blank of `size` bytes, also one of a broker."""
    return raw[:8] == _blank_head(size)


def _blank_head(size: int) -> bytes:
    return _int(size, 4) + _int(_BLANK_MAGIC, 4)


def _head(
    size: int, crc: int, queue_id: int, queue_offset: int, log_offset: int, sys_flag: int,
    store_ms: int, body_bytes: int,
) -> bytes:  # fmt: skip
    fields = (
        (size, 4), (_MAGIC, 4), (crc, 4), (queue_id, 4), (0, 4), (queue_offset, 8),
        (log_offset, 8), (sys_flag, 4), (store_ms, 8), (0, 8), (store_ms, 8), (0, 8), (0, 4),
        (0, 8), (body_bytes, 4),
    )  # fmt: skip
    return b"".join(_int(value, width) for value, width in fields)


def _tail(topic: str, properties: bytes) -> bytes:
    name = topic.encode("ascii")
    return _int(len(name), 1) + name + _int(len(properties), 2) + properties


def _int(value: int, width: int) -> bytes:
    return value.to_bytes(width, "big")
