"""One record of the commit log: fields to bytes and back."""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tests.support.disk_reader.ids import decode_host, decode_ts_id, encode_host, stored_crc
from tests.support.disk_reader.properties import (
    CRC_BYTES,
    CRC_NAME,
    decode_properties,
    encode_properties,
    encode_property_crc,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
TIMER_TOPIC = "rmq_sys_wheel_timer"
LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"

COMPRESSED = 0x01
TRANSACTION = 0x0C
PREPARED, COMMITTED, ROLLED_BACK = 0x04, 0x08, 0x0C
BORN_IPV6, STORE_IPV6 = 0x10, 0x20
COMPRESSION = 0x700

_HEAD = struct.Struct(">iIIiiqqi")  # size, magic, body crc, queue, flag, queue offset, offset, sys


@dataclass(frozen=True)
class Record:
    """One record of the commit log, with the bytes it was read from."""

    position: int  # start of the segment + position in the segment
    raw: bytes = field(repr=False)
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int  # PHYSICALOFFSET as stored
    sys_flag: int
    born_ms: int
    born_address: str  # "ip:port"
    store_ms: int
    store_host: str  # "ip:port"
    reconsume_times: int
    prepared_offset: int
    raw_body: bytes = field(repr=False)
    topic: str
    properties_text: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Return TOTALSIZE."""
        return len(self.raw)

    @property
    def born_host(self) -> str:
        """Return the address without its port."""
        return self.born_address.rpartition(":")[0].strip("[]")

    @cached_property
    def properties(self) -> dict[str, str]:
        """Return the parsed properties, with the CRC property, as in RocketMQ's listings."""
        return decode_properties(self.properties_text)

    @property
    def body(self) -> bytes:
        """Return the body as a consumer reads it, inflated if a client compressed it with zlib."""
        if not self.sys_flag & COMPRESSED:
            return self.raw_body
        if self.sys_flag & COMPRESSION not in (0, 0x300):
            raise ValueError(f"compression {self.sys_flag & COMPRESSION:#x} is not zlib")
        return zlib.decompress(self.raw_body)

    @property
    def transaction(self) -> int:
        """Return 0, PREPARED, COMMITTED or ROLLED_BACK."""
        return self.sys_flag & TRANSACTION

    @property
    def body_crc_holds(self) -> bool:
        """Return whether BODYCRC matches the stored body."""
        return self.body_crc == stored_crc(self.raw_body)

    @property
    def property_crc(self) -> int | None:
        """Return the CRC property in the last 20 bytes, None without one, -1 if not a number."""
        tail = self.properties_text[-CRC_BYTES:]
        if len(tail) < CRC_BYTES or not tail.startswith(CRC_NAME + b"\x01"):
            return None
        digits = tail[9:19]
        return int(digits[::-1]) if digits.isdigit() and tail[19] == 2 else -1

    @property
    def property_crc_holds(self) -> bool | None:
        """Return whether the CRC property matches, or None without one."""
        found = self.property_crc
        return None if found is None else found == stored_crc(self.raw[:-CRC_BYTES])

    @property
    def timer_id(self) -> tuple[int, int] | None:
        """Return (store id, timer id) of TS_ID, or None."""
        return decode_ts_id(self.properties.get("TS_ID", ""))


def encode_record(
    topic: str,
    body: bytes,
    properties: Mapping[str, str] | bytes,
    *,
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    log_offset: int = 0,
    sys_flag: int = 0,
    born_ms: int = 0,
    born_address: str = "127.0.0.1:0",
    store_ms: int = 0,
    store_host: str = "127.0.0.1:0",
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    property_crc: bool = False,
    version: int = 1,
) -> bytes:
    """Encode a record. `properties` as bytes may break the rules of properties, to test readers."""
    text = properties if isinstance(properties, bytes) else encode_properties(properties)
    if property_crc:
        if text and not text.endswith(b"\x02"):
            text += b"\x02"
        text += bytes(CRC_BYTES)
    born, stored, name = encode_host(born_address), encode_host(store_host), topic.encode()
    sys_flag |= BORN_IPV6 if len(born) == 20 else 0
    sys_flag |= STORE_IPV6 if len(stored) == 20 else 0
    parts = [
        struct.pack(">q", born_ms),
        born,
        struct.pack(">q", store_ms),
        stored,
        struct.pack(">iqi", reconsume_times, prepared_offset, len(body)),
        body,
        struct.pack(">b" if version == 1 else ">h", len(name)),
        name,
        struct.pack(">h", len(text)),
        text,
    ]
    rest = b"".join(parts)
    head = _HEAD.pack(
        _HEAD.size + len(rest),
        MAGIC_V1 if version == 1 else MAGIC_V2,
        stored_crc(body),
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag,
    )
    record = head + rest
    if property_crc:
        kept = record[:-CRC_BYTES]
        record = kept + encode_property_crc(kept)
    return record


class _Cursor:
    """A cursor that reads the fields of a record. It raises ValueError past the end."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise ValueError("a length reaches beyond the record")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str) -> int:
        (value,) = struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))
        assert isinstance(value, int)
        return value


def decode_record(data: bytes, position: int) -> Record:
    """Decode the record in exactly these bytes, without checking its checksums.

    Raises:
        ValueError: the bytes are not a record.
    """
    if len(data) < _HEAD.size:
        raise ValueError("shorter than a record's head")
    size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag = _HEAD.unpack_from(data)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"magic {magic:#010x}")
    if size != len(data):
        raise ValueError(f"size {size}, given {len(data)} bytes")
    cursor = _Cursor(data, _HEAD.size)
    born_ms = cursor.number("q")
    born = cursor.take(20 if sys_flag & BORN_IPV6 else 8)
    store_ms = cursor.number("q")
    stored = cursor.take(20 if sys_flag & STORE_IPV6 else 8)
    reconsume_times = cursor.number("i")
    prepared_offset = cursor.number("q")
    body = cursor.take(cursor.number("i"))
    topic = cursor.take(cursor.number("b" if magic == MAGIC_V1 else "h"))
    if len(topic) > 255:
        raise ValueError(f"a topic of {len(topic)} bytes")
    text = cursor.take(cursor.number("h"))
    if cursor.at != size:
        raise ValueError(f"lengths add up to {cursor.at}, size is {size}")
    return Record(
        position=position,
        raw=data,
        magic=magic,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        log_offset=log_offset,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_address=decode_host(born),
        store_ms=store_ms,
        store_host=decode_host(stored),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        raw_body=body,
        topic=topic.decode("utf-8", "replace"),
        properties_text=text,
    )
