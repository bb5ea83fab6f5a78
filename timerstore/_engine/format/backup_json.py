"""backup.json: the manifest of a backup. A directory without it is not a backup.

Invariants:
    1. A file of the backup may be longer than its `bytes`. The rest was copied by a later backup
       that was interrupted, and does not count.
Raises: CorruptError if the contents are not valid. FormatVersionError on an unknown format.
On-disk format: JSON, written only by this package:

    format       2; format 1, which had no `ids`, is read as well
    store_id, made_ms, log_begin, log_end, and the sizes of the store's files
    segments     [[offset, bytes, CRC-32 of those bytes], ...], ascending and without a gap
    queue_ends   {topic: {queue: queue offset after the last unit}}
    config       {name: text}
    ids          [file, bytes, CRC-32 of those bytes]: message ids in timerstore/ids-<file>, which
                 the segments no longer contain
    crc          CRC-32 of the text of all other fields, with sorted keys
"""

import json
import zlib
from typing import Any, NamedTuple

from timerstore._engine.format.counts_json import NO_IDS, IdsMark
from timerstore._engine.format.json_text import Json, as_int, as_table, loads
from timerstore.errors import CorruptError, newer_format

FORMAT = 2


class SavedSegment(NamedTuple):
    """The part of one commit log segment that is in the backup."""

    offset: int
    size_bytes: int
    crc: int


class BackupManifest(NamedTuple):
    """The fields of the file, without `format` and `crc`."""

    store_id: int
    made_ms: int
    log_begin: int
    log_end: int
    commit_log_segment_bytes: int
    queue_segment_bytes: int
    timer_log_segment_bytes: int
    wheel_slot_count: int
    precision_ms: int
    segments: tuple[SavedSegment, ...]
    queue_ends: dict[str, dict[int, int]]
    config: dict[str, str]
    ids: IdsMark


def _crc(entries: Json) -> int:
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


def write(manifest: BackupManifest) -> bytes:
    """Return the file's text."""
    entries: Json = {"format": FORMAT, **manifest._asdict()}
    entries["segments"] = [list(one) for one in manifest.segments]
    entries["queue_ends"] = {
        topic: {str(queue): end for queue, end in queues.items()}
        for topic, queues in manifest.queue_ends.items()
    }
    entries["crc"] = _crc(entries)
    return json.dumps(entries, indent=1).encode()


def read(text: bytes) -> BackupManifest:
    """Parse the file.

    Raises:
        CorruptError: the contents are not valid.
        FormatVersionError: the format is unknown.
    """
    entries = loads(text)
    found = entries.get("format")
    if found not in (1, FORMAT):
        raise newer_format("backup.json", entries.get("release"), wanted=FORMAT, got=found)
    crc = entries.pop("crc", None)
    if crc != _crc(entries):
        raise CorruptError("backup.json is damaged", wanted=f"CRC {_crc(entries)}", got=crc)
    if entries.pop("format") == 1:
        entries.setdefault("ids", NO_IDS)
    if sorted(entries) != sorted(BackupManifest._fields):
        raise CorruptError(
            "backup.json", wanted=", ".join(BackupManifest._fields), got=sorted(entries)
        )
    numbers = {
        name: as_int(value, name)
        for name, value in entries.items()
        if name not in ("segments", "queue_ends", "config", "ids")
    }
    return BackupManifest(
        **numbers,
        segments=_segments(entries["segments"]),
        queue_ends=_queue_ends(entries["queue_ends"]),
        config={
            str(name): str(text) for name, text in as_table(entries["config"], "config").items()
        },
        ids=_ids(entries["ids"]),
    )


def _segments(value: Any) -> tuple[SavedSegment, ...]:
    try:
        return tuple(SavedSegment(*(as_int(number, "segments") for number in one)) for one in value)
    except TypeError as error:
        raise CorruptError("segments", wanted="rows of three numbers", got=repr(value)) from error


def _ids(value: Any) -> IdsMark:
    try:
        return IdsMark(*(as_int(number, "ids") for number in value))
    except TypeError as error:
        raise CorruptError("ids", wanted="three numbers", got=repr(value)) from error


def _queue_ends(value: Any) -> dict[str, dict[int, int]]:
    try:
        return {
            str(topic): {
                int(queue): as_int(end, "queue_ends")
                for queue, end in as_table(queues, topic).items()
            }
            for topic, queues in as_table(value, "queue_ends").items()
        }
    except ValueError as error:
        raise CorruptError("queue_ends", wanted="queue numbers", got=repr(value)) from error
