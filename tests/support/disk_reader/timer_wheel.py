"""The timer wheel: its used slots."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SLOT_BYTES = 32

_SLOT = struct.Struct(">qqqii")


class Slot(NamedTuple):
    """A used slot of the wheel; `number` is its index and is not stored."""

    number: int
    time: int  # in units of precision_ms
    first_pos: int
    last_pos: int
    unit_count: int
    magic: int

    def slot_ms(self, precision_ms: int) -> int:
        """Return the slot time in epoch ms."""
        return self.time * precision_ms


def slot_index(slot_ms: int, precision_ms: int, slot_count: int = 1209600) -> int:
    """Return the index of a time's slot in the wheel."""
    return slot_ms // precision_ms % slot_count


def encode_slot(time: int, first_pos: int, last_pos: int, unit_count: int, magic: int = 0) -> bytes:
    """Return the 32 bytes of a slot; `time` is in units of precision_ms."""
    return _SLOT.pack(time, first_pos, last_pos, unit_count, magic)


def decode_slot(data: bytes, number: int) -> Slot:
    """Decode the slot in these 32 bytes."""
    return Slot(number, *_SLOT.unpack(data))


def iter_slots(root: Path) -> Iterator[Slot]:
    """Yield slots that have a time, by index. Holes of the file are skipped unread."""
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
    """Yield (start, stop) of a file's data, or the complete file without support for holes."""
    at, length = 0, os.fstat(descriptor).st_size
    while at < length:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole up to the end
            return
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, at
