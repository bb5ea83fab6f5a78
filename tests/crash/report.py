"""What a child says before it dies: lines of one size, written to a pipe.

Data:     72 bytes, native order: kind u8, queue u8, answer u16, round i32; body id, due, a, b: i64;
          message id, 32 bytes of ASCII. What a and b are stands beside each kind.
Holds:    a line about a call is written after the call returned; `*_BEGUN` before it was made. A
          write of whole lines up to PIPE_BUF is atomic, so threads need no lock.
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
"""Where the children put; index = `queue` of a line. Of orders the store chooses the queue."""
GROUP = "crash"
"""The group whose consumers read and commit all the while."""
CHOSEN = len(QUEUES) - 1  # from here on: never named in a put

_LINE = struct.Struct("=BBHiqqqq32s")
LINE_BYTES = _LINE.size
LINES_AT_ONCE = 4096 // LINE_BYTES
ANSWERS = tuple(CancelResult)


class Kind(IntEnum):
    """What happened."""

    OPENED = 1  # the store is open
    PUT_BEGUN = 2  # b: whether with a message id; due: of the body
    PUT_MANY_BEGUN = 3  # id: of the first; a: count; ids ascend by one; b: whether all or none
    PUT = 4  # due: of the receipt; a: timer id, -1: did not wait, -2: level; b: queue offset or -1
    CANCEL_BEGUN = 5
    CANCELLED = 6  # answer: index into ANSWERS
    PULLED = 7  # due: of the message; a: queue offset; b: delivered_ms
    REACHED = 8  # a: index into failpoint.NAMES; the child is dead in a moment
    EARLY = 9  # seen before its time; a: wall clock, ms
    REWOUND = 10  # a: what was seen; b: what there is
    FINISHED = 11  # closed at the end
    REFUSED = 12  # FullError; a: what was refused, a Kind of *_BEGUN
    NOTE = 13  # a: which step of the test; b: how many
    MOVE_BEGUN = 14  # a reschedule; due: of the new time, 0 at once
    MOVED = 15  # as PUT, of the new time
    HANDED = 16  # a: queue offset; a consumer of GROUP gave it
    COMMIT_BEGUN = 17  # a: offset behind what was handed out
    COMMITTED = 18  # a: as above
    INGEST_BEGUN = 19  # id: version of SOURCE
    INGESTED = 20  # id: as above; a: whether it was a replay
    SOUGHT = 21  # a: queue offset that a consumer of GROUP went back to, its last commit
    QUERIED = 22  # a: how often a query by id found it; b: how often at least, at most


class Line(NamedTuple):
    """One line."""

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
        """Give its bytes."""
        return _LINE.pack(*self)


def unpack(raw: bytes) -> Iterator[Line]:
    """Read lines; one that was cut short (it cannot be) would raise."""
    return (Line(*fields) for fields in _LINE.iter_unpack(raw))


class Reporter:
    """Writes lines to a pipe."""

    def __init__(self, fd: int, round_: int) -> None:
        self._fd = fd
        self._round = round_

    def say(self, kind: Kind, **fields: int | bytes) -> None:
        """Write one line."""
        line = Line(kind, round=self._round, **fields)  # type: ignore[arg-type]  # by name
        os.write(self._fd, line.pack())

    def say_all(self, lines: list[Line]) -> None:
        """Write many, as few writes as stay whole."""
        packed = [line._replace(round=self._round).pack() for line in lines]
        for at in range(0, len(packed), LINES_AT_ONCE):
            os.write(self._fd, b"".join(packed[at : at + LINES_AT_ONCE]))


_BODY = struct.Struct("=qq")


def make_body(number: int, due_ms: int, size: int) -> bytes:
    """Give a body that says who it is and when it is due (0: at once)."""
    return _BODY.pack(number, due_ms).ljust(size, b"\xa5")


def read_body(body: bytes) -> tuple[int, int]:
    """Give the number and due time of a body; ValueError where it is none of ours."""
    number, due_ms = _BODY.unpack_from(body)
    if body != make_body(number, due_ms, len(body)):
        raise ValueError(f"a body of {len(body)} bytes is damaged, it says number {number}")
    return number, due_ms


def key_of(number: int) -> str:
    """The key that a message is put with, if it has one: some share one."""
    return f"key-{number % 13}"


def given_id(number: int) -> str:
    """The message id that a message is put with, if it is with one."""
    return f"given-{number:026x}"  # 32 bytes, as the store makes them


# --- what is ingested: a version's number says all of its rows ------------------------------------

SOURCE = "crash"
_OF_INGEST = 1 << 61
_ROWS_MAX = 1024


def ingest_number(version: int, row: int) -> int:
    """The number of a row's message."""
    return _OF_INGEST + version * _ROWS_MAX + row


def ingest_id(number: int) -> str:
    """Its message id."""
    return f"ingested-{number:x}"


def ingest_rows(version: int) -> list[tuple[int, int]]:
    """Number and due time (0: at once) of each row. The version is when it was begun, epoch ms."""
    random = Random(version)
    count = random.randint(0, random.choice((3, 20, 80)))
    dues = [random.choice((0, version + random.randint(1, 2000))) for _ in range(count)]
    return [(ingest_number(version, row), due) for row, due in enumerate(dues)]


def ingest_batches(version: int, random: Random) -> Iterator[RowBatch]:
    """The rows, cut into batches somehow."""
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
