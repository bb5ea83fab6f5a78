"""The store's files read a second time, with `struct` and nothing of the house.

Data:     commit log, consume queues, index headers and entries, timer wheel, timer log, timercheck,
          checkpoint, topics.json, timermetrics, delayOffset.json, abort and lock.
Threads:  none; maps files read-only and copies what it yields. Not for a store that is written to.
Holds:    imports nothing of timerstore, so that an error in native/format cannot hide in both.
          Each iterator stops at the first byte that is not valid: a sparse file of 1 GiB costs
          what it holds, not what it is long.
Fails:    ValueError where a caller asks for something that is not there; never on bytes of a log,
          queue or timer log: those end (`LogEnd` says why).
Source:   docs/file-format.md, and files that brokers wrote.
"""

import base64
import json
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
TIMER_TOPIC = "rmq_sys_wheel_timer"
LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
CRC_NAME = b"__CRC32#"
CRC_BYTES = 20

COMPRESSED = 0x01
TRANSACTION = 0x0C
PREPARED, COMMITTED, ROLLED_BACK = 0x04, 0x08, 0x0C
BORN_IPV6, STORE_IPV6 = 0x10, 0x20
COMPRESSION = 0x700

TIMER_DEFAULT, TIMER_ROLL, TIMER_DELETE = 1, 2, 4
QUEUE_UNIT_BYTES = 20
TIMER_UNIT_BYTES = 52
SLOT_BYTES = 32
INDEX_HEADER_BYTES = 40
PADDING_UNIT_SIZE = 0x7FFFFFFF
NEVER_INDEXED = 9223372036854775807

_INT = struct.Struct(">i")
_HEAD = struct.Struct(">iIIiiqqi")  # size, magic, body crc, queue, flag, queue offset, offset, sys
_QUEUE_UNIT = struct.Struct(">qiq")
_BLANK = struct.Struct(">iI")
_TIMER_UNIT = struct.Struct(">iqiqiqiiq")
_TIMER_BLANK = struct.Struct(">iqI")
_SLOT = struct.Struct(">qqqii")
_SEVEN = struct.Struct(">7q")
_FIVE = struct.Struct(">5q")
_INDEX_HEADER = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")
_TS_ID = struct.Struct(">IQ")


# --- hashes, checksums, ids -----------------------------------------------------------------------


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def index_hash(topic: str, key: str) -> int:
    """Hash under which the index keeps a key; INT32_MIN has no absolute value and becomes 0."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value >> 31 else value


def stored_crc(data: bytes) -> int:
    """CRC-32 as the store keeps it, without its top bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def offset_message_id(host: str, log_offset: int) -> str:
    """`msgId` of a send response: store host, port and log offset in upper-case hex."""
    return (encode_host(host) + struct.pack(">q", log_offset)).hex().upper()


def encode_recall_handle(topic: str, broker: str, timestamp_ms: int, unique_key: str) -> str:
    """The handle that a broker gives; `timestamp_ms` is TIMER_OUT_MS + 1."""
    text = f"v1 {topic} {broker} {timestamp_ms} {unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_recall_handle(handle: str) -> tuple[str, str, int, str]:
    """(topic, broker, timestamp, unique key) of a broker's handle; extra fields are ignored."""
    parts = base64.urlsafe_b64decode(handle).decode().split(" ")
    if len(parts) < 5 or parts[0] != "v1":
        raise ValueError(f"not a recall handle: {parts}")
    return parts[1], parts[2], int(parts[3]), parts[4]


def encode_ts_id(store_id: int, timer_id: int) -> str:
    """Value of the TS_ID property: 16 characters."""
    return base64.urlsafe_b64encode(_TS_ID.pack(store_id, timer_id)).decode()


def decode_ts_id(text: str) -> tuple[int, int] | None:
    """(store id, timer id) of a TS_ID property; None if it is none."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{16}", text):
        return None
    store_id, timer_id = _TS_ID.unpack(base64.urlsafe_b64decode(text))
    return store_id, timer_id


def encode_host(host: str) -> bytes:
    """`ip:port` or `[ipv6]:port` as the record stores it: address, then the port in 4 bytes."""
    address, _, port = host.rpartition(":")
    return ip_address(address.strip("[]")).packed + struct.pack(">i", int(port))


def decode_host(raw: bytes) -> str:
    """The reverse of encode_host."""
    address = ip_address(raw[:-4])
    (port,) = _INT.unpack(raw[-4:])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


# --- properties -----------------------------------------------------------------------------------


def decode_ts_level(text: str) -> tuple[int, int, int, int] | None:
    """(store id, queue, queue offset, due ms) of a TS_LEVEL property; None if it is none."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{24}", text):
        return None
    raw = base64.urlsafe_b64decode(text)
    store_id, queue_id = struct.unpack(">IH", raw[:6])
    return store_id, queue_id, int.from_bytes(raw[6:12], "big"), int.from_bytes(raw[12:], "big")


def encode_ts_level(store_id: int, queue_id: int, queue_offset: int, due_ms: int) -> str:
    """Value of the TS_LEVEL property: 24 characters."""
    raw = struct.pack(">IH", store_id, queue_id)
    raw += queue_offset.to_bytes(6, "big") + due_ms.to_bytes(6, "big")
    return base64.urlsafe_b64encode(raw).decode()


def encode_properties(properties: Mapping[str, str], *, final: bool = True) -> bytes:
    """Properties text; `final` False leaves the last terminator out, as writers up to 5.1.4 do."""
    text = b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())
    return text if final else text[:-1]


def decode_properties(text: bytes) -> dict[str, str]:
    """Name to value. Pairs with an empty value are dropped, of equal names the last one counts."""
    found: dict[str, str] = {}
    for pair in text.split(b"\x02"):
        name, mark, value = pair.partition(b"\x01")
        if mark and value and len(pair) >= 3:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def encode_property_crc(record_without_crc: bytes) -> bytes:
    """The 20 bytes that end the properties, for a record final but for them."""
    digits = f"{stored_crc(record_without_crc):010d}"[::-1]
    return CRC_NAME + b"\x01" + digits.encode() + b"\x02"


# --- commit log -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One record of the commit log, with the bytes it was read from."""

    position: int  # where it stands: segment's start + place in the segment
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
        """TOTALSIZE."""
        return len(self.raw)

    @property
    def born_host(self) -> str:
        """The address without its port."""
        return self.born_address.rpartition(":")[0].strip("[]")

    @cached_property
    def properties(self) -> dict[str, str]:
        """Parsed properties; the CRC property is one of them, as in the ancestor's listings."""
        return decode_properties(self.properties_text)

    @property
    def body(self) -> bytes:
        """Body as a consumer sees it: inflated where the client compressed it with zlib."""
        if not self.sys_flag & COMPRESSED:
            return self.raw_body
        if self.sys_flag & COMPRESSION not in (0, 0x300):
            raise ValueError(f"compression {self.sys_flag & COMPRESSION:#x} is not zlib")
        return zlib.decompress(self.raw_body)

    @property
    def transaction(self) -> int:
        """0, PREPARED, COMMITTED or ROLLED_BACK."""
        return self.sys_flag & TRANSACTION

    @property
    def body_crc_holds(self) -> bool:
        """Whether BODYCRC is the stored body's."""
        return self.body_crc == stored_crc(self.raw_body)

    @property
    def property_crc(self) -> int | None:
        """CRC property where it counts, as the last 20 bytes; None without one, -1 if no number."""
        tail = self.properties_text[-CRC_BYTES:]
        if len(tail) < CRC_BYTES or not tail.startswith(CRC_NAME + b"\x01"):
            return None
        digits = tail[9:19]
        return int(digits[::-1]) if digits.isdigit() and tail[19] == 2 else -1

    @property
    def property_crc_holds(self) -> bool | None:
        """Whether the CRC property is right; None without one."""
        found = self.property_crc
        return None if found is None else found == stored_crc(self.raw[:-CRC_BYTES])

    @property
    def timer_id(self) -> tuple[int, int] | None:
        """(store id, timer id) of TS_ID, if there is one."""
        return decode_ts_id(self.properties.get("TS_ID", ""))


class Blank(NamedTuple):
    """Filled-up end of a segment."""

    position: int
    size: int


class LogEnd(NamedTuple):
    """Where the valid log stops, and why."""

    position: int
    reason: str


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
    """A record. `properties` as text may break the rules of properties, to test readers."""
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


def encode_blank(remaining_bytes: int) -> bytes:
    """Head of the blank at a segment's end; what follows is unspecified."""
    return _BLANK.pack(remaining_bytes, BLANK_MAGIC)


class _Cursor:
    """Takes fields off a record one after another; a field beyond the end is a ValueError."""

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
    """The record in exactly these bytes; ValueError says what is wrong. Checks no checksum."""
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


def segments(folder: Path) -> list[tuple[int, Path]]:
    """(start offset, file) of a folder of 20-digit files, in order; other names are left out."""
    if not folder.is_dir():
        return []
    names = sorted(path.name for path in folder.iterdir() if re.fullmatch(r"[0-9]{20}", path.name))
    return [(int(name), folder / name) for name in names]


def read_at(folder: Path, offset: int, size: int) -> bytes:
    """`size` bytes at an offset of a folder's space, within one file; shorter where that ends."""
    for start, path in segments(folder):
        if start <= offset < start + path.stat().st_size:
            with path.open("rb") as file:
                file.seek(offset - start)
                return file.read(size)
    return b""


def read_record(root: Path, log_offset: int, size: int) -> Record:
    """The record that a queue unit or timer unit points at; ValueError if none stands there."""
    return decode_record(read_at(root / "commitlog", log_offset, size), log_offset)


def iter_log(root: Path) -> Iterator[Record | Blank | LogEnd]:
    """Records and blanks in log order; the last item, always, is the LogEnd.

    A record counts if its lengths fit, its body CRC holds, its own CRC property (if it has one)
    holds, and PHYSICALOFFSET is where it stands.
    """
    expected: int | None = None
    for start, path in segments(root / "commitlog"):
        if expected is not None and start != expected:
            yield LogEnd(expected, f"next segment starts at {start}")
            return
        for item in _iter_segment(start, path):
            if isinstance(item, LogEnd) and item.reason:
                yield item
                return
            if isinstance(item, LogEnd):
                expected = item.position
            else:
                yield item
    yield LogEnd(expected or 0, "no more segments")


def _iter_segment(start: int, path: Path) -> Iterator[Record | Blank | LogEnd]:
    """Items of one segment; ends with a LogEnd, without a reason if the segment was full."""
    length = path.stat().st_size
    if length == 0:
        yield LogEnd(start, "empty file")
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at + _BLANK.size <= length:
            size, magic = _BLANK.unpack_from(data, at)
            if size == 0:
                yield LogEnd(start + at, "zeros")
                return
            if not 0 < size <= length - at:
                yield LogEnd(start + at, f"size {size}, {length - at} bytes left")
                return
            if magic == BLANK_MAGIC:
                yield Blank(start + at, size)
                at += size
                break
            try:
                record = decode_record(data[at : at + size], start + at)
            except ValueError as error:
                yield LogEnd(start + at, str(error))
                return
            reason = _why_invalid(record)
            if reason:
                yield LogEnd(start + at, reason)
                return
            yield record
            at += size
        yield LogEnd(start + length, "" if at == length else f"ends within {length - at} bytes")


def _why_invalid(record: Record) -> str:
    if not record.body_crc_holds:
        return "body CRC"
    if record.property_crc_holds is False:
        return "property CRC"
    if record.log_offset != record.position:
        return f"PHYSICALOFFSET {record.log_offset}"
    return ""


def records(root: Path) -> Iterator[Record]:
    """The valid records of the log, in order."""
    return (item for item in iter_log(root) if isinstance(item, Record))


def log_end(root: Path) -> LogEnd:
    """Where the valid log stops."""
    end = LogEnd(0, "nothing")
    for item in iter_log(root):
        if isinstance(item, LogEnd):
            end = item
    return end


# --- consume queues -------------------------------------------------------------------------------


class QueueUnit(NamedTuple):
    """One unit of a consume queue; `queue_offset` is its place, not stored."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int

    @property
    def is_padding(self) -> bool:
        """Whether it only fills the space before a queue's first message."""
        return self.log_offset == 0 and self.size == PADDING_UNIT_SIZE


def encode_queue_unit(log_offset: int, size: int, tags_code: int) -> bytes:
    """20 bytes."""
    return _QUEUE_UNIT.pack(log_offset, size, tags_code)


def decode_queue_unit(data: bytes, queue_offset: int) -> QueueUnit:
    """The unit in these 20 bytes."""
    return QueueUnit(queue_offset, *_QUEUE_UNIT.unpack(data))


def queues(root: Path) -> list[tuple[str, int]]:
    """(topic, queue number) of every queue folder, sorted."""
    folder = root / "consumequeue"
    if not folder.is_dir():
        return []
    return sorted(
        (topic.name, int(queue.name))
        for topic in folder.iterdir()
        if topic.is_dir()
        for queue in topic.iterdir()
        if queue.is_dir() and re.fullmatch(r"[0-9]+", queue.name)
    )


def iter_queue(root: Path, topic: str, queue_id: int) -> Iterator[QueueUnit]:
    """Units of a queue, padding included, up to the first that is not valid."""
    expected: int | None = None
    for start, path in segments(root / "consumequeue" / topic / str(queue_id)):
        length = path.stat().st_size
        if length == 0 or (expected is not None and start != expected):
            return
        expected = start + length
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for at in range(0, length - QUEUE_UNIT_BYTES + 1, QUEUE_UNIT_BYTES):
                log_offset, size, tags_code = _QUEUE_UNIT.unpack_from(data, at)
                if log_offset < 0 or size <= 0:
                    return
                offset = (start + at) // QUEUE_UNIT_BYTES
                yield QueueUnit(offset, log_offset, size, tags_code)


# --- timer wheel ----------------------------------------------------------------------------------


class Slot(NamedTuple):
    """A used slot of the wheel; `number` is its place, not stored."""

    number: int
    time: int  # in units of precision_ms
    first_pos: int
    last_pos: int
    unit_count: int
    magic: int

    def slot_ms(self, precision_ms: int) -> int:
        """Slot time in epoch ms."""
        return self.time * precision_ms


def slot_index(slot_ms: int, precision_ms: int, slot_count: int = 1209600) -> int:
    """Where the slot of a time lies in the wheel."""
    return slot_ms // precision_ms % slot_count


def encode_slot(time: int, first_pos: int, last_pos: int, unit_count: int, magic: int = 0) -> bytes:
    """32 bytes; `time` in units of precision_ms."""
    return _SLOT.pack(time, first_pos, last_pos, unit_count, magic)


def decode_slot(data: bytes, number: int) -> Slot:
    """The slot in these 32 bytes."""
    return Slot(number, *_SLOT.unpack(data))


def iter_slots(root: Path) -> Iterator[Slot]:
    """Slots that hold a time, by index. A hole of the file is skipped unread."""
    path = root / "timerwheel"
    if not path.exists():
        return
    with path.open("rb") as file:
        for start, stop in _data_ranges(file.fileno()):
            first, last = start // SLOT_BYTES, -(-stop // SLOT_BYTES)
            data = os.pread(file.fileno(), (last - first) * SLOT_BYTES, first * SLOT_BYTES)
            whole = len(data) // SLOT_BYTES * SLOT_BYTES
            for at, fields in enumerate(_SLOT.iter_unpack(data[:whole])):
                if fields[0]:
                    yield Slot(first + at, *fields)


def _data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of what a file holds; the whole file where the filesystem cannot tell."""
    at, length = 0, os.fstat(descriptor).st_size
    while at < length:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole up to the end
            return
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, at


# --- timer log ------------------------------------------------------------------------------------


class TimerUnit(NamedTuple):
    """One unit of the timer log."""

    pos: int
    size: int
    prev_pos: int
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    store_size: int
    topic_hash: int
    seal: int

    @property
    def slot_ms(self) -> int:
        """Time of the slot it belongs to."""
        return self.write_ms + self.delay_ms

    @property
    def is_valid(self) -> bool:
        """As a broker's recovery tests it."""
        return self.size == TIMER_UNIT_BYTES and self.magic | 15 == 15

    @property
    def is_sealed(self) -> bool:
        """Whether timerstore wrote it, and nothing of it has changed. A broker's seal is 0."""
        crc = zlib.crc32(_TIMER_UNIT.pack(*self[1:-1], 0)[:44], self.pos % 2**32)
        return self.seal == int.from_bytes(b"TSU1") << 32 | crc


def encode_timer_unit(
    prev_pos: int,
    magic: int,
    write_ms: int,
    delay_ms: int,
    log_offset: int,
    *,
    store_size: int,
    topic_hash: int,
) -> bytes:
    """52 bytes."""
    return _TIMER_UNIT.pack(
        TIMER_UNIT_BYTES, prev_pos, magic, write_ms, delay_ms, log_offset, store_size, topic_hash, 0
    )


def decode_timer_unit(data: bytes, pos: int) -> TimerUnit:
    """The unit in these 52 bytes, valid or not."""
    return TimerUnit(pos, *_TIMER_UNIT.unpack(data))


def encode_timer_blank(remaining_bytes: int) -> bytes:
    """Head of the blank at the end of a timer-log file."""
    return _TIMER_BLANK.pack(remaining_bytes, 0, BLANK_MAGIC)


def iter_timer_log(root: Path) -> Iterator[TimerUnit | Blank]:
    """Units and blanks in order, up to the first that is not valid."""
    for start, path in segments(root / "timerlog"):
        length = path.stat().st_size
        if length == 0:
            return
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = 0
            while at + _TIMER_BLANK.size <= length:
                size, _, magic = _TIMER_BLANK.unpack_from(data, at)
                if magic == BLANK_MAGIC and size == length - at:
                    yield Blank(start + at, size)
                    break
                if at + TIMER_UNIT_BYTES > length:
                    return
                unit = TimerUnit(start + at, *_TIMER_UNIT.unpack_from(data, at))
                if not unit.is_valid:
                    return
                yield unit
                at += TIMER_UNIT_BYTES


def timer_units(root: Path) -> Iterator[TimerUnit]:
    """The valid units of the timer log, in order."""
    return (item for item in iter_timer_log(root) if isinstance(item, TimerUnit))


def chain(root: Path, slot: Slot) -> list[TimerUnit]:
    """Units of a slot, newest first. ValueError where the chain breaks or does not go down."""
    folder, found, pos = root / "timerlog", [], slot.last_pos
    while pos != -1:
        data = read_at(folder, pos, TIMER_UNIT_BYTES)
        if len(data) < TIMER_UNIT_BYTES:
            raise ValueError(f"slot {slot.number}: nothing at {pos}")
        unit = decode_timer_unit(data, pos)
        if not unit.is_valid:
            raise ValueError(f"slot {slot.number}: no unit at {pos}")
        if unit.prev_pos >= pos:
            raise ValueError(f"slot {slot.number}: {pos} is followed by {unit.prev_pos}")
        found.append(unit)
        pos = unit.prev_pos
    return found


# --- small binary files ---------------------------------------------------------------------------


class TimerCheck(NamedTuple):
    """config/timercheck."""

    read_ms: int
    flushed_pos: int
    queue_offset: int
    master_queue_offset: int
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0


class Checkpoint(NamedTuple):
    """checkpoint."""

    log_ms: int
    queues_ms: int
    index_ms: int
    master_flushed_offset: int
    confirm_offset: int


class IndexHeader(NamedTuple):
    """Head of an index file."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_entry: int


class IndexEntry(NamedTuple):
    """One entry of an index file; `number` is its place, not stored."""

    number: int
    key_hash: int
    log_offset: int
    seconds: int
    previous: int


def encode_timer_check(check: TimerCheck) -> bytes:
    """56 bytes; the file is padded with zeros to 4096."""
    return _SEVEN.pack(*check)


def decode_timer_check(data: bytes) -> TimerCheck:
    """From 56 bytes and more, or from 32, without a version."""
    if len(data) < _SEVEN.size:
        return TimerCheck(*struct.unpack_from(">4q", data))
    return TimerCheck(*_SEVEN.unpack_from(data))


def read_timer_check(root: Path) -> TimerCheck | None:
    """config/timercheck; None without one."""
    path = root / "config" / "timercheck"
    return decode_timer_check(path.read_bytes()) if path.exists() else None


def encode_checkpoint(check: Checkpoint) -> bytes:
    """40 bytes; the file is padded with zeros to 4096."""
    return _FIVE.pack(*check)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """From 40 bytes and more."""
    return Checkpoint(*_FIVE.unpack_from(data))


def read_checkpoint(root: Path) -> Checkpoint | None:
    """The checkpoint; None without one."""
    path = root / "checkpoint"
    return decode_checkpoint(path.read_bytes()) if path.exists() else None


def encode_index_header(header: IndexHeader) -> bytes:
    """40 bytes."""
    return _INDEX_HEADER.pack(*header)


def decode_index_header(data: bytes) -> IndexHeader:
    """From 40 bytes and more."""
    return IndexHeader(*_INDEX_HEADER.unpack_from(data))


def encode_index_entry(key_hash: int, log_offset: int, seconds: int, previous: int) -> bytes:
    """20 bytes."""
    return _INDEX_ENTRY.pack(key_hash, log_offset, seconds, previous)


def index_slot_position(key_hash: int, slot_count: int = 5000000) -> int:
    """Where in the file the slot of a hash stands."""
    return INDEX_HEADER_BYTES + 4 * (key_hash % slot_count)


def index_entry_position(number: int, slot_count: int = 5000000) -> int:
    """Where in the file an entry stands; the first that is used has number 1."""
    return INDEX_HEADER_BYTES + 4 * slot_count + _INDEX_ENTRY.size * number


def index_files(root: Path) -> list[Path]:
    """Index files, oldest first."""
    folder = root / "index"
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if re.fullmatch(r"[0-9]{17}", path.name))


def read_index_header(path: Path) -> IndexHeader:
    """Head of one index file."""
    with path.open("rb") as file:
        return decode_index_header(file.read(INDEX_HEADER_BYTES))


def iter_index(path: Path, slot_count: int) -> Iterator[IndexEntry]:
    """Entries of one index file, by number."""
    with path.open("rb") as file:
        header = decode_index_header(file.read(INDEX_HEADER_BYTES))
        file.seek(index_entry_position(1, slot_count))
        for number in range(1, header.next_entry):
            yield IndexEntry(number, *_INDEX_ENTRY.unpack(file.read(_INDEX_ENTRY.size)))


# --- JSON, lock, abort ----------------------------------------------------------------------------


def parse_loose_json(text: str) -> Any:
    """JSON whose integer keys may stand without quotes, as the ancestor writes maps."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for place in range(0, len(parts), 2):  # what stands between strings
        parts[place] = re.sub(r"([{,]\s*)(-?[0-9]+)(\s*:)", r'\1"\2"\3', parts[place])
    return json.loads("".join(parts))


def read_json(path: Path) -> Any:
    """A configuration file, or its .bak where it is missing, empty or broken; None without both."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            return parse_loose_json(candidate.read_text("utf-8"))
        except (OSError, ValueError):
            continue
    return None


def read_topics(root: Path) -> dict[str, dict[str, Any]]:
    """config/topics.json: topic to its entry."""
    found = read_json(root / "config" / "topics.json")
    return dict(found["topicConfigTable"]) if found else {}


def read_timer_metrics(root: Path) -> dict[str, int]:
    """config/timermetrics: real topic to its count of pending messages."""
    found = read_json(root / "config" / "timermetrics")
    if not found:
        return {}
    return {topic: int(entry["count"]) for topic, entry in found["timingCount"].items()}


def read_level_offsets(root: Path) -> dict[int, int]:
    """config/delayOffset.json: delay level to the next offset of its queue."""
    found = read_json(root / "config" / "delayOffset.json")
    return {int(level): int(at) for level, at in found["offsetTable"].items()} if found else {}


def is_unclean(root: Path) -> bool:
    """Whether `abort` says that the store was not closed."""
    return (root / "abort").exists()
