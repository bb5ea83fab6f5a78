"""`query` of a read-only store: find messages by key without an index.

The owner writes its index from memory, so the files of a live index prove nothing to another
process. A query therefore reads the topic's queues (20 bytes a message) and every record of them.

Thread safety: one thread at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from timerstore._engine.format import queue_unit
from timerstore._engine.queues.pending_removals import RemovalsReading
from timerstore._engine.read.query import Querier
from timerstore._engine.read.query_validation import Query
from timerstore._engine.snapshot.queue_files import FILLER_SIZE
from timerstore._engine.snapshot.snapshot_timers import SnapshotTimers
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.timer.timer_arrays import Int64Array
from timerstore.messages import Message

_BATCH = 16_384
_UNITS = 262_144  # read at a time


class QueueSearch:
    """Takes the part of the index: every message of a topic is a candidate."""

    def __init__(self, view: SnapshotView) -> None:
        self._view = view

    def find(
        self,
        topic: bytes,
        key: bytes,  # noqa: ARG002 - every record is read
        begin_ms: int = 0,  # noqa: ARG002
        end_ms: int = 0,  # noqa: ARG002
    ) -> Iterator[Int64Array]:
        """Return the log offsets of the topic's messages, newest first."""
        name = topic.decode("ascii")
        offsets: Int64Array = np.sort(np.concatenate([np.empty(0, np.int64), *self._of(name)]))
        for end in range(len(offsets), 0, -_BATCH):
            yield offsets[max(0, end - _BATCH) : end][::-1]

    def _of(self, topic: str) -> Iterator[Int64Array]:
        begin = self._view.position.store.log_begin
        for route in list(self._view.routes.by_index):
            if route.topic != topic:
                continue
            queue = self._view.settle(route).queue
            for at in range(queue.min_offset, queue.count, _UNITS):
                units = queue_unit.read(queue.read(at, _UNITS))
                found = units["log_offset"].astype(np.int64)
                is_unit = (units["size"] > 0) & (units["size"] < FILLER_SIZE)
                yield found[(found >= begin) & is_unit]


class _SnapshotQuerier(Querier):
    """Finds messages by key, those pending on a fixed level included."""

    on_level: frozenset[int] = frozenset()

    def query(self, query: Query) -> list[Message]:
        """Query once. If retention removed a record, the caller moves to a newer position first."""
        return self._query(query)

    def _waits_on_level(self, found: Any, below: int) -> bool:  # noqa: ARG002
        return found.log_offset in self.on_level


def query(view: SnapshotView, timers: SnapshotTimers, asked: Query) -> list[Message]:
    """Return the newest messages with a key in order of the log, pending ones included."""

    @contextmanager
    def reading(visible_end: Any) -> Iterator[RemovalsReading]:
        yield RemovalsReading(visible_end(), [])

    dispatch: Any = SimpleNamespace(
        through=lambda _offset: None, index=QueueSearch(view), rebuild=lambda _store_id: None
    )
    log: Any = view.log
    removals: Any = SimpleNamespace(reading=reading)
    querier = _SnapshotQuerier(
        view.config, log, dispatch, removals, view.routes, timers.states.native, timers.store_id
    )
    querier.on_level = frozenset(timers.level_pending.entries()["log_offset"].tolist())
    return querier.query(asked)
