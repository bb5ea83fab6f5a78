"""timerstore/watermark: the last checkpoint, from which recovery starts.

Invariants:
    1. The valid slot with the greatest sequence counts. Everything it refers to was durable before
       it was written.
    2. Every version, older and later, begins with its magic, and the CRC-32 of a slot follows its
       last field. So an intact slot of a later version is known, whatever its length.
Raises: FormatVersionError on an intact slot of a later version.
On-disk format: two slots of 512 bytes, written alternately and only by Python; little-endian:

      0  magic "TSMARK05"         8  sequence           16  log_end
     24  timer_log_end           32  timer_queue_offset 40  read_slot
     48  log_begin               56  state_chunk_count  64  state_digest
     72  store_id                80  is_clean           88  precision_ms
     96  wheel_slot_count       104  timer_id_end      112  timer_log_begin
    120  far_number: number of the far wheel's table; 0 without one
    128  wheel_writes: number of complete writes of the wheel (wheel_checks.py)
    136  CRC-32 of bytes 0-135
    480  the release that wrote the slot, as ASCII: 32 bytes, only for the error of an older one

    Older versions have fewer fields, and the CRC-32 follows the last one:

    "TSMARK04"  has another number in place of wheel_writes, which is then unknown: -1
    "TSMARK03"  without wheel_writes, CRC-32 at 128
    "TSMARK02"  also without far_number, CRC-32 at 120
    "TSMARK01"  also without timer_log_begin, CRC-32 at 112
"""

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.base.version import __version__
from timerstore.errors import newer_format

SLOT_BYTES = 512
_RELEASE = slice(480, SLOT_BYTES)
_MAGIC = b"TSMARK05"
_FIELDS = struct.Struct("<8s7qQ8q")
_VERSIONS = {
    b"TSMARK01": struct.Struct("<8s7qQ5q"),
    b"TSMARK02": struct.Struct("<8s7qQ6q"),
    b"TSMARK03": struct.Struct("<8s7qQ7q"),
    b"TSMARK04": _FIELDS,
    _MAGIC: _FIELDS,
}
_CRC = struct.Struct("<I")


class Watermark(NamedTuple):
    """One slot; fields as in the module docstring."""

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
        """Whether `bootstrap` made it: the store was assembled from files and not opened yet."""
        return (
            self.sequence,
            self.replay_slot,
            self.state_chunk_count,
            self.state_digest,
        ) == _BOOTSTRAP


_BOOTSTRAP = (1, 0, 1, 0)


def bootstrap(
    *,
    log_begin: int,
    log_end: int,
    store_id: int,
    precision_ms: int,
    wheel_slot_count: int,
    timer_id_end: int,
) -> Watermark:
    """Return the watermark of a store that has a complete, durable log and no derived files.

    It has the sizes of the store, and a digest of states that do not exist, so that the first
    opening rebuilds every derived file.
    """
    sequence, read_slot, chunk_count, digest = _BOOTSTRAP
    return Watermark(
        sequence, log_end, 0, 0, read_slot, log_begin, chunk_count, digest, store_id, 1,
        precision_ms, wheel_slot_count, timer_id_end,
    )  # fmt: skip


def write(mark: Watermark) -> bytes:
    """Return the slot's bytes."""
    head = _FIELDS.pack(_MAGIC, *mark)
    slot = (head + _CRC.pack(zlib.crc32(head))).ljust(_RELEASE.start, b"\0")
    return (slot + __version__.encode()).ljust(SLOT_BYTES, b"\0")


def read(data: bytes, where: Path | None = None) -> Watermark | None:
    """Return the newest valid slot of the file's bytes; None if neither is valid.

    `where` is for the error.
    """
    best = None
    for begin in (0, SLOT_BYTES):
        values = _read_slot(data[begin : begin + SLOT_BYTES], where)
        if values is None:
            continue
        mark = Watermark(*values)
        if best is None or mark.sequence > best.sequence:
            best = mark
    return best


def _read_slot(slot: bytes, where: Path | None) -> tuple[int, ...] | None:
    """Return the fields of a slot of any known version; None if its CRC is wrong."""
    magic = slot[: len(_MAGIC)]
    fields = _VERSIONS.get(magic)
    if fields is None:
        if _is_intact(slot):
            release = slot[_RELEASE].rstrip(b"\0").decode("ascii", "replace")
            raise newer_format("watermark", release, where=where, wanted=_MAGIC, got=magic)
        return None
    head, crc = slot[: fields.size], slot[fields.size : fields.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(head):
        return None
    values: tuple[int, ...] = fields.unpack(head)[1:]
    return values[:-1] if magic == b"TSMARK04" else values


def _is_intact(slot: bytes) -> bool:
    """Return whether a slot of an unknown version has its CRC-32 after some field.

    A damaged magic, even of one bit, does not look like another version.
    """
    crc = zlib.crc32(slot[: len(_MAGIC)])
    for end in range(len(_MAGIC), len(slot) - _CRC.size + 1, _CRC.size):
        if _CRC.unpack_from(slot, end)[0] == crc:
            return True
        crc = zlib.crc32(slot[end : end + _CRC.size], crc)
    return False
