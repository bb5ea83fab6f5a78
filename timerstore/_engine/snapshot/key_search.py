"""Search: where messages with a key may lie, without an index: all that lie in a topic's queues.

An index is written by its owner alone, from memory, and says nothing certain to who reads beside.

Threads:  one at a time.
Cost:     20 bytes of queue a message of the topic, and a look at each record that is given.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from timerstore._engine.format import queue_unit
from timerstore._engine.queues.pending_removals import Reading
from timerstore._engine.read.query import Querier
from timerstore._engine.read.query_validation import Query
from timerstore._engine.snapshot.snapshot_timers import SnapshotTimers
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.timer.timer_arrays import Int64Array
from timerstore.messages import Message

_BATCH = 16_384
_FILLER_SIZE = 0x7FFFFFFF  # of units that a broker puts where a queue does not begin at 0
_UNITS = 262_144  # read at a time


class Search:
    """Stands where an index would."""

    def __init__(self, room: SnapshotView) -> None:
        self._room = room

    def find(
        self,
        topic: bytes,
        key: bytes,  # noqa: ARG002 - the records are looked at, every one
        begin_ms: int = 0,  # noqa: ARG002
        end_ms: int = 0,  # noqa: ARG002
    ) -> Iterator[Int64Array]:
        """Give log offsets of the topic's messages, newest first."""
        name = topic.decode("ascii")
        offsets: Int64Array = np.sort(np.concatenate([np.empty(0, np.int64), *self._of(name)]))
        for end in range(len(offsets), 0, -_BATCH):
            yield offsets[max(0, end - _BATCH) : end][::-1]

    def _of(self, topic: str) -> Iterator[Int64Array]:
        begin = self._room.moment.store.log_begin
        for route in list(self._room.routes.by_index):
            if route.topic != topic:
                continue
            queue = self._room.settle(route).queue
            for at in range(queue.min_offset, queue.count, _UNITS):
                units = queue_unit.read(queue.read(at, _UNITS))
                found = units["log_offset"].astype(np.int64)
                is_unit = (units["size"] > 0) & (units["size"] < _FILLER_SIZE)
                yield found[(found >= begin) & is_unit]


class _QuerierBeside(Querier):
    """Looks up messages; of levels it is known what waits."""

    on_level: frozenset[int] = frozenset()

    def query(self, query: Query) -> list[Message]:
        """Once: where retention has overtaken it, who asks goes on to another moment first."""
        return self._query(query)

    def _waits_on_level(self, found: Any, below: int) -> bool:  # noqa: ARG002
        return found.log_offset in self.on_level


def query(room: SnapshotView, timers: SnapshotTimers, asked: Query) -> list[Message]:
    """Give the newest messages that have a key, in order of the log; those that wait, too."""

    @contextmanager
    def reading(visible_end: Any) -> Iterator[Reading]:
        yield Reading(visible_end(), [])

    dispatch: Any = SimpleNamespace(
        through=lambda _offset: None, index=Search(room), rebuild=lambda _store_id: None
    )
    log: Any = room.log
    removals: Any = SimpleNamespace(reading=reading)
    querier = _QuerierBeside(
        room.config, log, dispatch, removals, room.routes, timers.states.native, timers.store_id
    )
    querier.on_level = frozenset(timers.level_pending.entries()["log_offset"].tolist())
    return querier.query(asked)
