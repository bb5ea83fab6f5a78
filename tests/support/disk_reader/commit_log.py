"""The commit log: its records and blanks in order, up to the first damage."""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.disk_reader.record import Record, decode_record
from tests.support.disk_reader.segments import read_at, segments

BLANK_MAGIC = 0xCBD43194

_BLANK = struct.Struct(">iI")


class Blank(NamedTuple):
    """The unused end of a segment."""

    position: int
    size: int


class LogEnd(NamedTuple):
    """The end of the valid log, and the reason for it."""

    position: int
    reason: str


def encode_blank(remaining_bytes: int) -> bytes:
    """Return the head of the blank at a segment's end; the bytes after it are unspecified."""
    return _BLANK.pack(remaining_bytes, BLANK_MAGIC)


def read_record(root: Path, log_offset: int, size: int) -> Record:
    """Return the record that a queue unit or timer unit points at.

    Raises:
        ValueError: there is no record.
    """
    return decode_record(read_at(root / "commitlog", log_offset, size), log_offset)


def iter_log(root: Path) -> Iterator[Record | Blank | LogEnd]:
    """Yield records and blanks in log order, and at last a LogEnd.

    A record is valid if its lengths fit, its body CRC and its CRC property (if it has one) match,
    and PHYSICALOFFSET is its position.
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
    """Yield the items of one segment, and a LogEnd, without a reason if the segment was full."""
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
    """Return the valid records of the log, in order."""
    return (item for item in iter_log(root) if isinstance(item, Record))


def log_end(root: Path) -> LogEnd:
    """Return the end of the valid log."""
    end = LogEnd(0, "nothing")
    for item in iter_log(root):
        if isinstance(item, LogEnd):
            end = item
    return end
