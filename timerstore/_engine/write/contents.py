"""Compare messages that repeat a message id with the first messages that have it.

A repeated put of the same message is a success: it returns the first receipt. A put of another
message with the same id is an error of the caller, because one of the two would be lost.

    body, tags, keys, properties    always compared; their order does not matter
    due time                        only if the caller gave one that a repeated put has too
                                    (deliver_at, deliver_ms), and the first was not rescheduled

Thread safety: any thread. No lock is taken.
Raises: ConflictError for the first row that differs; CorruptError if the log cannot be read.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.column_batch import ColumnBatch
from timerstore._engine.base.message_fields import is_of_engine
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.message_ids import OriginalRows
from timerstore._engine.queues.record_lookup import record_fields
from timerstore._engine.write.checked_batch import CheckedBatch
from timerstore.errors import ConflictError, quoted
from timerstore.types.messages import parse_properties

_CRC_MASK = 0x7FFF_FFFF  # a record has a CRC without its top bit

Differs = dict[str, tuple[str, str]]
"""The parts of a message in which another one differs: its own, and that of the other."""


class Contents(NotCopyable):
    """Compares the rows of a call with earlier messages of one store."""

    def __init__(self, log: CommitLog, *, is_on: bool) -> None:
        """`is_on`: False to compare ids only."""
        self._log = log
        self._is_on = is_on

    def check_rows(self, call: CheckedBatch, rows: ColumnBatch) -> None:
        """Raise ConflictError if two rows of a call have one id and other contents."""
        count = call.row_count
        if not self._is_on:
            return
        slots = np.zeros(1 << count.bit_length(), np.uint32)
        earlier = np.empty(count, np.int32)
        repeated = lib.ts_ids_repeated(
            rows.native,
            ffi.from_buffer("uint32_t[]", slots),
            len(slots),
            ffi.from_buffer("int32_t[]", earlier),
        )
        if repeated:
            for row in np.flatnonzero(earlier >= 0).tolist():
                self._check_row(call, row, int(earlier[row]))

    def _check_row(self, call: CheckedBatch, row: int, first: int) -> None:
        body, other = call.body(first), call.body(row)
        differs: Differs = {}
        if bytes(body) != bytes(other):
            differs["body"] = _body_text(body), _body_text(other)
        _add_properties(call.own_properties(first), call.own_properties(row), differs)
        if call.is_fixed and call.due[row] != call.due[first]:
            differs["due time"] = _due_text(int(call.due[first])), _due_text(int(call.due[row]))
        _refuse(call, row, differs)

    def check(self, call: CheckedBatch, which: npt.NDArray[np.intp], firsts: OriginalRows) -> None:
        """Raise ConflictError if a row of `which` differs from the first message with its id."""
        if not self._is_on:
            return
        is_due = self._has_due_time(call, which, firsts)
        is_equal = (firsts["has_body"] != 0) & (firsts["has_properties"] != 0) & is_due
        for k in np.flatnonzero(~is_equal & (firsts["is_same"] != 0)).tolist():
            self._check_first(call, int(which[k]), firsts[k], is_due=bool(is_due[k]))

    def _has_due_time(
        self, call: CheckedBatch, which: npt.NDArray[np.intp], firsts: OriginalRows
    ) -> npt.NDArray[np.bool_]:
        """Return which firsts have the due time of their row, or one that is not compared.

        The due time of a row is 0 if it has passed. Then a first that was due by now has it, too.
        """
        if not call.is_fixed:
            return np.ones(len(which), bool)
        due = call.due[which]
        is_timer = np.where(due > 0, firsts["due_ms"] == due, firsts["due_ms"] <= call.now_ms)
        has: npt.NDArray[np.bool_] = np.where(
            firsts["timer_id"] >= 0, is_timer, due <= firsts["store_ms"]
        )
        has |= (firsts["is_moved"] != 0) | (firsts["level"] != 0)
        return has

    def _check_first(self, call: CheckedBatch, row: int, first: Any, *, is_due: bool) -> None:
        differs: Differs = {}
        if not first["has_body"]:
            size, crc = int(first["body_size"]), int(first["body_crc"])
            differs["body"] = _size_text(size, crc), _body_text(call.body(row))
        if not first["has_properties"]:
            log_offset = int(first["log_offset"])
            with self._log.segments.view(self._log.written) as view:
                text = record_fields(self._log.segments, view, log_offset)[2]
            _add_properties(text, call.own_properties(row), differs)
        if not is_due:
            differs["due time"] = _due_text(int(first["due_ms"])), _due_text(int(call.due[row]))
        _refuse(call, row, differs)


def _given(text: bytes) -> dict[str, str]:
    """Return the properties of a text that the caller of a put gave."""
    pairs = parse_properties(text).items()
    return {name: value for name, value in pairs if not is_of_engine(name)}


def _add_properties(first: bytes, text: bytes, differs: Differs) -> None:
    before, now = _given(first), _given(text)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        differs["properties"] = _pairs_text(before, names), _pairs_text(now, names)


def _pairs_text(properties: dict[str, str], names: list[str]) -> str:
    texts = [f"{name}={quoted(properties[name])}" for name in names if name in properties]
    return ", ".join(texts[:4]) or f"no {', '.join(names[:4])}"


def _body_text(body: Any) -> str:
    return _size_text(len(body), zlib.crc32(body) & _CRC_MASK)


def _size_text(size: int, crc: int) -> str:
    return f"a body of {size} bytes, CRC-32 {crc:08X}"


def _due_text(due_ms: int) -> str:
    return f"due time {due_ms} ms" if due_ms else "a due time that has passed"


def _refuse(call: CheckedBatch, row: int, differs: Differs) -> None:
    """Raise ConflictError if a row differs from the first message with its id."""
    if not differs:
        return
    message_id = call.message_id(row)
    name = "message_id" if call.row_count == 1 else f"message_ids[{row}]"
    wanted = {part: before for part, (before, _) in differs.items()}
    raise ConflictError(
        f"{name} {quoted(message_id)} of topic {quoted(call.topic)}: another message was put with "
        f"it, which differs in {' and '.join(differs)}; it was not stored",
        topic=call.topic,
        message_id=message_id,
        differs=wanted,
        wanted=", ".join(wanted.values()),
        got=", ".join(now for _, now in differs.values()),
    )
