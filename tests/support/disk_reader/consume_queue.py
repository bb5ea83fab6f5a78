"""Consume queues: the units of a queue, and the queues of a store."""

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.disk_reader.segments import segments

QUEUE_UNIT_BYTES = 20
PADDING_UNIT_SIZE = 0x7FFFFFFF

_QUEUE_UNIT = struct.Struct(">qiq")


class QueueUnit(NamedTuple):
    """One unit of a consume queue; `queue_offset` is its position and is not stored."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int

    @property
    def is_padding(self) -> bool:
        """Return whether it only fills the space before a queue's first message."""
        return self.log_offset == 0 and self.size == PADDING_UNIT_SIZE


def encode_queue_unit(log_offset: int, size: int, tags_code: int) -> bytes:
    """Return the 20 bytes of a unit."""
    return _QUEUE_UNIT.pack(log_offset, size, tags_code)


def decode_queue_unit(data: bytes, queue_offset: int) -> QueueUnit:
    """Decode the unit in these 20 bytes."""
    return QueueUnit(queue_offset, *_QUEUE_UNIT.unpack(data))


def queues(root: Path) -> list[tuple[str, int]]:
    """Return (topic, queue number) of every queue folder, sorted."""
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
    """Yield the units of a queue, with padding, up to the first invalid one."""
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
