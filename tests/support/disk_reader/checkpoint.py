"""The files config/timercheck and checkpoint."""

import struct
from pathlib import Path
from typing import NamedTuple

_SEVEN = struct.Struct(">7q")
_FIVE = struct.Struct(">5q")


class TimerCheck(NamedTuple):
    """The fields of config/timercheck."""

    read_ms: int
    flushed_pos: int
    queue_offset: int
    master_queue_offset: int
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0


class Checkpoint(NamedTuple):
    """The fields of the file checkpoint."""

    log_ms: int
    queues_ms: int
    index_ms: int
    master_flushed_offset: int
    confirm_offset: int


def encode_timer_check(check: TimerCheck) -> bytes:
    """Return 56 bytes; the file is padded with zeros to 4096."""
    return _SEVEN.pack(*check)


def decode_timer_check(data: bytes) -> TimerCheck:
    """Decode 56 bytes or more, or 32 bytes without a version."""
    if len(data) < _SEVEN.size:
        return TimerCheck(*struct.unpack_from(">4q", data))
    return TimerCheck(*_SEVEN.unpack_from(data))


def read_timer_check(root: Path) -> TimerCheck | None:
    """Read config/timercheck, or return None without the file."""
    path = root / "config" / "timercheck"
    return decode_timer_check(path.read_bytes()) if path.exists() else None


def encode_checkpoint(check: Checkpoint) -> bytes:
    """Return 40 bytes; the file is padded with zeros to 4096."""
    return _FIVE.pack(*check)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Decode 40 bytes or more."""
    return Checkpoint(*_FIVE.unpack_from(data))


def read_checkpoint(root: Path) -> Checkpoint | None:
    """Read the checkpoint, or return None without the file."""
    path = root / "checkpoint"
    return decode_checkpoint(path.read_bytes()) if path.exists() else None
