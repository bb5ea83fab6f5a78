"""The timer log: its units and blanks in order, and the chain of a slot."""

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.disk_reader.commit_log import BLANK_MAGIC, Blank
from tests.support.disk_reader.segments import read_at, segments
from tests.support.disk_reader.timer_wheel import Slot

TIMER_DEFAULT, TIMER_ROLL, TIMER_DELETE = 1, 2, 4
TIMER_UNIT_BYTES = 52

_TIMER_UNIT = struct.Struct(">iqiqiqiiq")
_TIMER_BLANK = struct.Struct(">iqI")


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
        """Return the time of its slot."""
        return self.write_ms + self.delay_ms

    @property
    def is_valid(self) -> bool:
        """Return whether a broker's recovery takes it as valid."""
        return self.size == TIMER_UNIT_BYTES and self.magic | 15 == 15

    @property
    def is_sealed(self) -> bool:
        """Return whether its unit checksum matches: timerstore wrote it, and it is unchanged.

        The field is 0 in a broker's unit.
        """
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
    """Return the 52 bytes of a unit."""
    return _TIMER_UNIT.pack(
        TIMER_UNIT_BYTES, prev_pos, magic, write_ms, delay_ms, log_offset, store_size, topic_hash, 0
    )


def decode_timer_unit(data: bytes, pos: int) -> TimerUnit:
    """Decode the unit in these 52 bytes, valid or not."""
    return TimerUnit(pos, *_TIMER_UNIT.unpack(data))


def encode_timer_blank(remaining_bytes: int) -> bytes:
    """Return the head of the blank at the end of a timer-log file."""
    return _TIMER_BLANK.pack(remaining_bytes, 0, BLANK_MAGIC)


def iter_timer_log(root: Path) -> Iterator[TimerUnit | Blank]:
    """Yield units and blanks in order, up to the first invalid one."""
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
    """Return the valid units of the timer log, in order."""
    return (item for item in iter_timer_log(root) if isinstance(item, TimerUnit))


def chain(root: Path, slot: Slot) -> list[TimerUnit]:
    """Return the units of a slot, newest first.

    Raises:
        ValueError: the chain is broken or its positions do not decrease.
    """
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
