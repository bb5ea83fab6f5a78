"""Define the reports of a child: records of one size, written to a pipe.

A record has 72 bytes in native order: kind u8, queue u8, answer u16, round i32; body id, due, a, b:
i64; message id, 32 bytes of ASCII. The meaning of a and b is given with each kind.

Invariants:
    1. The record of a call is written after the call returned, and a `*_BEGUN` record before it.
    2. A write of whole records up to PIPE_BUF is atomic, so threads need no lock.
"""

import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from random import Random
from typing import NamedTuple

import numpy as np

from timerstore import CancelResult, RowBatch

QUEUES = (("orders", 0), ("alarms", 0), ("alarms", 1), ("alarms", 2), ("orders", 1))
"""The queues of the children. The `queue` of a record is an index into them. For `orders` the store
chooses the queue.
"""
GROUP = "crash"
"""The group whose consumers read and commit."""
CHOSEN = len(QUEUES) - 1  # ids from here on are never named in a put

_LINE = struct.Struct("=BBHiqqqq32s")
LINE_BYTES = _LINE.size
LINES_AT_ONCE = 4096 // LINE_BYTES
ANSWERS = tuple(CancelResult)


class Kind(IntEnum):
    """The kind of an event."""

    OPENED = 1  # the store is open
    PUT_BEGUN = 2  # b: whether with a message id; due: of the body
    # id: of the first; a: count, with ascending ids; b: whether the group is atomic
    PUT_MANY_BEGUN = 3
    # due: of the receipt; a: timer id, -1 if not delayed, -2 for a level; b: queue offset or -1
    PUT = 4
    CANCEL_BEGUN = 5
    CANCELLED = 6  # answer: index into ANSWERS
    PULLED = 7  # due: of the message; a: queue offset; b: delivered_ms
    REACHED = 8  # a: index into failpoint.NAMES; the child dies now
    EARLY = 9  # visible before its due time; a: wall clock, ms
    REWOUND = 10  # a: the value found; b: the value expected
    FINISHED = 11  # closed at the end
    REFUSED = 12  # FullError; a: the rejected call, a Kind of *_BEGUN
    NOTE = 13  # a: number of the step of the test; b: a count
    MOVE_BEGUN = 14  # a reschedule; due: the new time, 0 for now
    MOVED = 15  # as PUT, with the new time
    HANDED = 16  # a: queue offset; a consumer of GROUP returned the message
    COMMIT_BEGUN = 17  # a: offset after the last message that was handed out
    COMMITTED = 18  # a: as above
    INGEST_BEGUN = 19  # id: version of SOURCE
    INGESTED = 20  # id: as above; a: whether it was a replay
    SOUGHT = 21  # a: queue offset to which a consumer of GROUP went back, its last commit
    QUERIED = 22  # a: matches of a query by id; b: the least and the most allowed


class Line(NamedTuple):
    """One record."""

    kind: int
    queue: int = 0
    answer: int = 0
    round: int = 0
    id: int = 0
    due: int = 0
    a: int = 0
    b: int = 0
    message_id: bytes = b""

    def pack(self) -> bytes:
        """Return the bytes of a record."""
        return _LINE.pack(*self)


def unpack(raw: bytes) -> Iterator[Line]:
    """Decode records. A record that is cut short, which cannot occur, raises an error."""
    return (Line(*fields) for fields in _LINE.iter_unpack(raw))


class Reporter:
    """Write records to a pipe."""

    def __init__(self, fd: int, round_: int) -> None:
        self._fd = fd
        self._round = round_

    def say(self, kind: Kind, **fields: int | bytes) -> None:
        """Write one record."""
        line = Line(kind, round=self._round, **fields)  # type: ignore[arg-type]  # by name
        os.write(self._fd, line.pack())

    def say_all(self, lines: list[Line]) -> None:
        """Write many records, in as few atomic writes as possible."""
        packed = [line._replace(round=self._round).pack() for line in lines]
        for at in range(0, len(packed), LINES_AT_ONCE):
            os.write(self._fd, b"".join(packed[at : at + LINES_AT_ONCE]))


_BODY = struct.Struct("=qq")


def make_body(number: int, due_ms: int, size: int) -> bytes:
    """Return a body with its number and its due time (0: now)."""
    return _BODY.pack(number, due_ms).ljust(size, b"\xa5")


def read_body(body: bytes) -> tuple[int, int]:
    """Return the number and due time of a body, or raise ValueError if the body is foreign."""
    number, due_ms = _BODY.unpack_from(body)
    if body != make_body(number, due_ms, len(body)):
        raise ValueError(f"a body of {len(body)} bytes is damaged, it says number {number}")
    return number, due_ms


def key_of(number: int) -> str:
    """Return the key of a message, or None. Some messages share a key."""
    return f"key-{number % 13}"


def given_id(number: int) -> str:
    """Return the message id given with a put, or None."""
    return f"given-{number:026x}"  # 32 bytes, as in the ids of the store


# --- ingestion: the number of a version determines its rows ---

SOURCE = "crash"
_OF_INGEST = 1 << 61
_ROWS_MAX = 1024


def ingest_number(version: int, row: int) -> int:
    """Return the number of a row's message."""
    return _OF_INGEST + version * _ROWS_MAX + row


def ingest_id(number: int) -> str:
    """Return the message id of a row."""
    return f"ingested-{number:x}"


def ingest_rows(version: int) -> list[tuple[int, int]]:
    """Return number and due time (0: now) of each row.

    The version is its start time in epoch ms.
    """
    random = Random(version)
    count = random.randint(0, random.choice((3, 20, 80)))
    dues = [random.choice((0, version + random.randint(1, 2000))) for _ in range(count)]
    return [(ingest_number(version, row), due) for row, due in enumerate(dues)]


def ingest_batches(version: int, random: Random) -> Iterator[RowBatch]:
    """Return the rows in batches of varying size."""
    rows = ingest_rows(version)
    while rows:
        cut = random.randint(1, len(rows))
        part, rows = rows[:cut], rows[cut:]
        bodies = [make_body(number, due, 16 + number % 90) for number, due in part]
        ids = [ingest_id(number).encode() for number, _ in part]
        yield RowBatch(
            QUEUES[0][0],
            b"".join(bodies),
            np.cumsum([0, *map(len, bodies)]),
            np.array([due for _, due in part], np.int64),
            message_ids=b"".join(ids),
            message_id_offsets=np.cumsum([0, *map(len, ids)]),
        )
