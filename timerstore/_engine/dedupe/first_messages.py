"""Find the message that was put first with a message id, and read it from the log.

Thread safety: any thread.
Locking: the append lock, to look up ids.
Invariants:
    1. A returned message is durable.
    2. Topic and id of a returned message are compared, not only their hash.
Raises: CorruptError if the log cannot be read.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.column_batch import ColumnBatch
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.dedupe.message_ids import Ids
from timerstore._engine.log.commit_log import CommitLog
from timerstore.messages import Int64Array

FIRST_DTYPE = np.dtype(
    [
        ("log_offset", np.int64),
        ("store_ms", np.int64),
        ("due_ms", np.int64),
        ("timer_id", np.int64),
        ("queue_offset", np.int64),
        ("queue_id", np.int32),
        ("level", np.int32),
        ("is_same", np.int32),
        ("is_cancelled", np.int32),
        ("is_moved", np.int32),
        ("has_body", np.int32),
        ("has_properties", np.int32),
        ("body_size", np.int32),
        ("body_crc", np.int32),
        ("unused", np.int32),
    ]
)
assert FIRST_DTYPE.itemsize == ffi.sizeof("ts_first_message"), (
    "native/api and first_messages.py disagree"
)

FirstRows = npt.NDArray[np.void]


class Once(NamedTuple):
    """Parameters for putting the rows of one call at most once."""

    topic: bytes
    topic_hash: int
    once_ms: int  # the time from which the window counts
    below: Int64Array  # by row: a first message is searched below this log offset

    @property
    def text(self) -> bytes:
        """Property text from which the id is remembered again when the log is read."""
        return b"TS_ONCE\x01%d\x02" % self.once_ms


class Firsts:
    """Finds first messages by id in one store."""

    def __init__(
        self, log: CommitLog, ids: Ids, states: Any, store_id: int, precision_ms: int
    ) -> None:
        self._log = log
        self.ids = ids
        self._states = states
        self._store_id = store_id
        self._precision_ms = precision_ms

    def once(self, topic: bytes, count: int, now_ms: int) -> Once | None:
        """Return the parameters for rows with ids, None if ids are not remembered."""
        if not self.ids.is_on:
            return None
        topic_hash = int(lib.ts_identity(topic, len(topic)))
        return Once(topic, topic_hash, now_ms, np.full(count, 2**63 - 1, np.int64))

    def known(self, rows: ColumnBatch, once: Once, now_ms: int) -> Int64Array:
        """Return the log offset of each row's first message, -1 if it is unknown."""
        found = np.empty(rows.count, np.int64)
        with self._log.lock:
            self.look(rows, once, now_ms, found)
        return found

    def look(self, rows: ColumnBatch, once: Once, now_ms: int, found: Int64Array) -> int:
        """Write these log offsets to `found`, and return the number of known ones.

        The caller holds the append lock.
        """
        return int(
            lib.ts_ids_look(
                self.ids.native,
                once.topic_hash,
                rows.native,
                0,
                rows.count,
                ffi.from_buffer("int64_t[]", once.below),
                now_ms,
                ffi.from_buffer("int64_t[]", found),
            )
        )

    def add(self, rows: ColumnBatch, once: Once, log_offsets: Int64Array) -> None:
        """Remember all rows. The caller holds the append lock and has checked the space."""
        lib.ts_ids_add(
            self.ids.native,
            once.topic_hash,
            rows.native,
            0,
            rows.count,
            ffi.from_buffer("int64_t[]", log_offsets),
            once.once_ms,
        )

    def read(
        self, rows: ColumnBatch, once: Once, which: npt.NDArray[np.intp], log_offsets: Int64Array
    ) -> FirstRows:
        """Return the first messages at these log offsets, which `known` returned for these rows.

        They are durable on return. `is_same` is 0 for a message with another id of the same hash.
        `has_body` and `has_properties` compare a message with its row. For a message that retention
        removed, only the log offset is known, and its contents count as those of the row.
        """
        firsts = np.zeros(len(which), FIRST_DTYPE)
        firsts["log_offset"] = log_offsets[which]
        firsts["timer_id"] = firsts["queue_offset"] = -1
        for name in ("is_same", "is_moved", "has_body", "has_properties"):
            firsts[name] = 1
        firsts["due_ms"] = firsts["store_ms"] = once.once_ms
        there = np.flatnonzero(firsts["log_offset"] >= self._log.segments.begin)
        if len(there):
            self._log.sync_through(int(firsts["log_offset"].max()) + 1)
            found = np.ascontiguousarray(firsts[there])
            self._read(rows, once, which[there].astype(np.int32), found)
            firsts[there] = found
        if firsts["is_cancelled"].any():
            self._log.sync_through(self._log.end)  # so that the delete record is durable too
        return firsts

    def _read(self, rows: ColumnBatch, once: Once, which: Any, firsts: FirstRows) -> None:
        done = 0
        with self._log.segments.view(self._log.written) as view:
            while done < len(which):
                got = lib.ts_first_messages(
                    view,
                    self._states,
                    self._store_id,
                    self._precision_ms,
                    once.topic,
                    len(once.topic),
                    rows.native,
                    ffi.from_buffer("int32_t[]", which[done:]),
                    len(which) - done,
                    ffi.cast("ts_first_message *", address(firsts[done:])),
                )
                if got > 0:
                    done += got
                else:
                    self._log.segments.serve(view, got, "message ids")
