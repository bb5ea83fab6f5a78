"""Files, the log, queues and routes."""

import struct
import zlib
from typing import Any, NamedTuple

from tests.support.inside.attribute import Attribute
from timerstore._engine.format import backup_json, watermark
from timerstore._engine.log import staging
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.routes import Routes


def unwatch(memory: Any) -> None:
    """Make the guard of mapped files stop watching this file."""
    memory._unwatch()


def segment_pointer(segments: Any) -> Attribute:
    """Return the method by which segments point a view at a file's memory."""
    return Attribute(segments, "_set_table")


def wheel_file_of(wheel: Any) -> Attribute:
    """Return the open file of the wheel."""
    return Attribute(wheel, "_file")


def staging_head() -> tuple[bytes, int]:
    """Return the magic of the staging file, and the bytes of its head."""
    return staging._MAGIC, staging._HEAD_BYTES


def watermark_magic() -> bytes:
    """Return the magic of a watermark slot."""
    return watermark._MAGIC


def old_watermark_slot(magic: bytes, fields: tuple[int, ...]) -> bytes:
    """One watermark slot as an older version wrote it."""
    older: struct.Struct = watermark._VERSIONS[magic]
    head = older.pack(magic, *fields)
    crc = watermark._CRC.pack(zlib.crc32(head))
    return (head + crc).ljust(watermark.SLOT_BYTES, b"\0")


def crc_of_backup(entries: dict[str, Any]) -> int:
    """Return the CRC of the entries of backup.json."""
    return backup_json._crc(entries)


def queue_segments(queue: Any) -> Any:
    """Return the files of one queue's units: storage/segments.py."""
    return queue._segments


ROUTES_STEPS = {
    "let find": Attribute(Routes, "_enter"),
    "rebuild": Attribute(Routes, "_rebuild"),
    "place": Attribute(Routes, "_place"),
}
"""The steps by which C learns of a new route."""

DISPATCH_READ = Attribute(Dispatch, "_read")
"""The method by which dispatch reads one batch from the log."""


def log_of(dispatch: Any) -> Any:
    """Return the commit log that dispatch reads."""
    return dispatch._log


def batch_end(dispatch: Any) -> int:
    """Return the log offset at which dispatch's last batch ends."""
    return int(dispatch._units.reached)


class BatchColumns(NamedTuple):
    """The columns of a batch of dispatch, as views of its memory."""

    units: Any
    indexes: Any
    offsets: Any


def batch_columns(dispatch: Any, count: int) -> BatchColumns:
    """Return the columns of the batch that dispatch read last."""
    return BatchColumns(
        dispatch._units.units[:count],
        dispatch._units.indexes[:count],
        dispatch._units._offsets[:count],
    )


def batch_requests(dispatch: Any) -> Any:
    """Return the timer requests of the batch that dispatch read last."""
    return dispatch._requests


def write_index_in_each_checkpoint(index: Any) -> None:
    """Make each checkpoint write the index, however little there is to write."""
    index._lag_bytes = 0


def forget_levels(levels: Any) -> None:
    """Forget the delivery offset of each fixed delay level."""
    levels._queues.clear()


def forget_runs(schedule: Any) -> None:
    """Forget the units that the delivery of fixed delay levels has read."""
    schedule._queues.clear()
    schedule._routes_seen = 0
