"""timerstore/counts: pending counts and queue ends at the last two watermarks.

The file is a cache, written only by this package. If no entry has the watermark's log end, or a
queue has another end, recovery rebuilds everything from the log.

On-disk format: JSON, {"entries": [entry, ...]}, the newer entry last; zeros are left out:

    log_end         the log offset of the watermark
    pending         {topic: {queue: n}}: pending timers by their destination
    ends            {topic: {queue: queue offset after the last unit below log_end}}
    levels          {queue: [n, b, e, ...]}: of a queue of the delay-level topic, everything below n
                    is delivered, and everything in [b, e) for each pair b, e
    level_pending   {topic: {queue: n}}: pending delay-level messages by their destination
    ids             [file, bytes, CRC-32]: how much of which file of message ids counts
    past            [[b, e], ...]: chunks of the state file that are no longer needed
    sequence        that of the watermark it was written for, or 0; two may have the same log_end
    crc             CRC-32 of the entry's text without this field

A store of an older version has no `ids` and no `past`.
"""

import json
import zlib
from typing import NamedTuple

from timerstore._engine.format.json_text import PARSE_ERRORS, Json

Pending = dict[str, dict[int, int]]
Levels = dict[int, tuple[int, ...]]


class IdsMark(NamedTuple):
    """A prefix of a file of message ids, and its CRC-32."""

    number: int
    bytes: int
    crc: int


NO_IDS = IdsMark(0, 0, 0)
_NEWEST = 2**63 - 1


class Counts(NamedTuple):
    """One entry of the file; fields as in the module docstring."""

    log_end: int
    pending: Pending
    ends: Pending
    levels: Levels
    level_pending: Pending
    ids: IdsMark = NO_IDS
    past: tuple[tuple[int, int], ...] = ()
    sequence: int = 0


def write(entries: list[Counts]) -> bytes:
    """Return the file's text with the last two entries."""
    tables = [entry._asdict() for entry in entries[-2:]]
    return json.dumps({"entries": [one | {"crc": _crc(one)} for one in tables]}).encode()


def _crc(entry: Json) -> int:
    return zlib.crc32(json.dumps(entry).encode())


def _numbers(found: Json) -> Pending:
    if not isinstance(found, dict):
        raise TypeError
    return {
        str(topic): {int(queue): int(n) for queue, n in queues.items()}
        for topic, queues in found.items()
    }


def log_end(text: bytes | None) -> int:
    """Return the greatest log end of all entries; 0 if none can be read.

    The log was durable up to this offset before the entry was written.
    """
    try:
        return max((int(entry["log_end"]) for entry in _valid_entries(text)), default=0)
    except PARSE_ERRORS:
        return 0


def ids_marks(text: bytes | None) -> list[IdsMark]:
    """Return the marks of all entries, the newest first; an empty list if none can be read."""
    try:
        return [
            IdsMark(*map(int, entry.get("ids", NO_IDS))) for entry in _valid_entries(text)[::-1]
        ]
    except PARSE_ERRORS:
        return []


def _valid_entries(text: bytes | None) -> list[Json]:
    """Return the entries whose CRC is correct."""
    entries: list[Json] = json.loads(text or b'{"entries": []}')["entries"]
    return [entry for entry in entries if entry.pop("crc") == _crc(entry)]


def read_counts(text: bytes | None, log_end: int, sequence: int = _NEWEST) -> Counts | None:
    """Return the newest entry with this log end and a sequence up to `sequence`; None without one.

    The sequence may be lower than the watermark's, because a watermark may be written again under
    a later number.
    """
    if text is None:
        return None
    try:
        entries: list[Json] = json.loads(text)["entries"]
        for entry in entries[::-1]:
            if entry["log_end"] != log_end or int(entry.get("sequence", 0)) > sequence:
                continue
            if entry.pop("crc") != _crc(entry):
                return None
            return Counts(
                log_end,
                _numbers(entry["pending"]),
                _numbers(entry["ends"]),
                {int(queue): tuple(map(int, n)) for queue, n in entry["levels"].items()},
                _numbers(entry["level_pending"]),
                IdsMark(*map(int, entry.get("ids", NO_IDS))),
                tuple((int(begin), int(end)) for begin, end in entry.get("past", ())),
                int(entry.get("sequence", 0)),
            )
    except PARSE_ERRORS:
        return None
    return None
