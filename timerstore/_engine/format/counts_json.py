"""timerstore/counts: numbers by queue, as at the last two watermarks.

Data:     JSON: {"entries": [{"log_end": L, "pending": {topic: {queue: n}}, "ends": {topic: {queue:
          queue offset behind the last unit below L}}, "levels": {queue: [n, b, e, ...]},
          "level_pending": {topic: {queue: n}}, "ids": [file, bytes, crc], "sequence": s, "crc": c},
          ...]}, the newer last; zeros are left out. s: of the watermark that it was written for, or
          0; two may have one log end. Of a queue of the level topic everything below n, and from
          each b up to its e, is delivered; level_pending is what waits there by where it goes,
          pending the same of timers. ids: how much of which file of message ids counts, and its
          CRC-32; past: ranges [b, e) of chunks of the state file that nobody needs any more; a
          store of before has none of the two. c: CRC-32 of the entry's text without it.
          Our own file, derived: where no entry is of the watermark's log end, or a queue has
          another end, everything is built anew from the log.
"""

import json
import zlib
from typing import NamedTuple

from timerstore._engine.format.json_text import NOT_OURS, Json

Pending = dict[str, dict[int, int]]
Levels = dict[int, tuple[int, ...]]


class IdsMark(NamedTuple):
    """How much of which file of message ids counts."""

    number: int
    bytes: int
    crc: int


NO_IDS = IdsMark(0, 0, 0)
_NEWEST = 2**63 - 1


class Counts(NamedTuple):
    """Numbers by topic and queue at one log end."""

    log_end: int
    pending: Pending
    ends: Pending
    levels: Levels
    level_pending: Pending
    ids: IdsMark = NO_IDS
    past: tuple[tuple[int, int], ...] = ()
    sequence: int = 0


def write(entries: list[Counts]) -> bytes:
    """Give the file's text."""
    return json.dumps({"entries": [_sealed(entry) for entry in entries[-2:]]}).encode()


def _sealed(entry: Counts) -> Json:
    return entry._asdict() | {"crc": _crc(entry._asdict())}


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
    """Give the greatest log end that an entry is of: the log was durable up to it before that was
    written. 0 where nothing can be read.
    """
    try:
        return max((int(entry["log_end"]) for entry in _whole(text)), default=0)
    except NOT_OURS:
        return 0


def ids_marks(text: bytes | None) -> list[IdsMark]:
    """Give every entry's, the newest first; of whichever watermark, they tell what was put."""
    try:
        return [IdsMark(*map(int, entry.get("ids", NO_IDS))) for entry in _whole(text)[::-1]]
    except NOT_OURS:
        return []


def _whole(text: bytes | None) -> list[Json]:
    """Give the entries that are as they were written."""
    entries: list[Json] = json.loads(text or b'{"entries": []}')["entries"]
    return [entry for entry in entries if entry.pop("crc") == _crc(entry)]


def read_counts(text: bytes | None, log_end: int, sequence: int = _NEWEST) -> Counts | None:
    """Give what is known of a watermark, None where the file has nothing: the newest entry of its
    log end that was written for it or one before, which may be written again under a later number.
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
    except NOT_OURS:
        return None
    return None
