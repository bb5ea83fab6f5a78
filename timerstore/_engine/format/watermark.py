"""timerstore/watermark: what a recovery may trust. Our own file; only Python touches it.

Data:     two slots of 512 bytes, written in turn; little-endian:
              0 magic "TSMARK05"    8 sequence           16 log_end (L)        24 timer_log_end (T)
             32 timer_queue_offset (Q)  40 read_slot (R) 48 log_begin          56 state_chunk_count
             64 state_digest       72 store_id           80 is_clean           88 precision_ms
             96 wheel_slot_count  104 timer_id_end      112 timer_log_begin
            120 far_number: of the far wheel's table, 0: there is none
            128 wheel_writes: how many writes of the wheel were complete (wheel_checks.py)
            136 CRC-32 of bytes 0-135
          "TSMARK04" had another number for wheel_writes, which is not known then: -1. "TSMARK03"
          had none: its CRC-32 lies at 128. "TSMARK02" had no far_number either: its CRC-32 lies at
          120. "TSMARK01" had no timer_log_begin either: its CRC-32 lies at 112.
Holds:    the newest valid slot counts; everything it speaks of was durable before it was written.
Fails:    FormatVersionError on a magic of another version.
"""

import struct
import zlib
from typing import NamedTuple

from timerstore.errors import FormatVersionError

SLOT_BYTES = 512
_MAGIC = b"TSMARK05"
_FIELDS = struct.Struct("<8s7qQ8q")
_OLDER = {
    b"TSMARK01": struct.Struct("<8s7qQ5q"),
    b"TSMARK02": struct.Struct("<8s7qQ6q"),
    b"TSMARK03": struct.Struct("<8s7qQ7q"),
    b"TSMARK04": _FIELDS,
}
_CRC = struct.Struct("<I")


class Watermark(NamedTuple):
    """One slot."""

    sequence: int
    log_end: int
    timer_log_end: int
    timer_queue_offset: int
    replay_slot: int
    log_begin: int
    state_chunk_count: int
    state_digest: int
    store_id: int
    is_clean: int
    precision_ms: int
    wheel_slot_count: int
    timer_id_end: int
    timer_log_begin: int = 0
    far_number: int = 0
    wheel_writes: int = -1

    @property
    def is_bootstrap(self) -> bool:
        """Whether it is of a store that was put together and never opened: see `unbuilt`."""
        return (
            self.sequence,
            self.replay_slot,
            self.state_chunk_count,
            self.state_digest,
        ) == _UNBUILT


_UNBUILT = (1, 0, 1, 0)


def bootstrap(
    *,
    log_begin: int,
    log_end: int,
    store_id: int,
    precision_ms: int,
    wheel_slot_count: int,
    timer_id_end: int,
) -> Watermark:
    """Give that of a store whose log is whole and durable, and nothing derived is there:
    it says the sizes, and wants states that are nowhere.
    """
    sequence, read_slot, chunk_count, digest = _UNBUILT
    return Watermark(
        sequence, log_end, 0, 0, read_slot, log_begin, chunk_count, digest, store_id, 1,
        precision_ms, wheel_slot_count, timer_id_end,
    )  # fmt: skip


def write(mark: Watermark) -> bytes:
    """Give the slot's bytes."""
    head = _FIELDS.pack(_MAGIC, *mark)
    return (head + _CRC.pack(zlib.crc32(head))).ljust(SLOT_BYTES, b"\0")


def read(data: bytes) -> Watermark | None:
    """Give the newest valid slot of the file's bytes, None where neither is valid."""
    best = None
    for begin in (0, SLOT_BYTES):
        values = _read_slot(data[begin : begin + SLOT_BYTES])
        if values is None:
            continue
        mark = Watermark(*values)
        if best is None or mark.sequence > best.sequence:
            best = mark
    return best


def _read_slot(slot: bytes) -> tuple[int, ...] | None:
    """Give the fields of a slot whose CRC holds, in whichever version it is."""
    magic = slot[: len(_MAGIC)]
    fields = _OLDER.get(magic, _FIELDS)
    head, crc = slot[: fields.size], slot[fields.size : fields.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(head):
        return None
    if magic != _MAGIC and magic not in _OLDER:
        raise FormatVersionError("watermark", wanted=_MAGIC, got=magic)
    values: tuple[int, ...] = fields.unpack(head)[1:]
    return values[:-1] if magic == b"TSMARK04" else values
