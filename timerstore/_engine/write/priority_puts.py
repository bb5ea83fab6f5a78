"""Put batches whose messages have priorities: one part for each run of equal priorities.

Thread safety: any thread.
Invariants:
    1. The whole batch is checked before any message is stored: its priorities, sizes, ids and
       contents, the limits of flow control, and whether its topic can have priorities.
    2. Messages are stored in the order of the batch, so an error leaves a first part of it stored.
Raises: as ManyPutting. `stored_count` of an error counts the stored messages of all parts.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from timerstore._engine.base import argument_types
from timerstore._engine.base.column_batch import joined_column
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.priorities import PriorityQueueId, queue_of_priority
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.write.checked_batch import CheckedBatch
from timerstore._engine.write.put_many import ManyPutting
from timerstore._engine.write.put_requests import BatchRequest
from timerstore.errors import BusyError, ConflictError, FullError, MessageError
from timerstore.messages import Int64Array
from timerstore.receipts import CallerIds, PutBatch


class PriorityPuts(Owner):
    """Puts batches into one store."""

    def __init__(self, many_putting: ManyPutting, log: CommitLog) -> None:
        self._many_putting = many_putting
        self._log = log

    def put_many(self, request: BatchRequest) -> PutBatch:
        """Store a batch, with one priority for all messages, one for each, or none."""
        given = request.priority
        if given is None:
            return self._many_putting.put_many(request)
        if is_for_all(given):
            queue_id = queue_of_priority(given, request.queue_id)
            return self._many_putting.put_many(replace(request, queue_id=queue_id))
        call = self._many_putting.check(replace(request, queue_id=None))
        priorities = check_priorities(given, call.row_count, request.queue_id)
        chosen = sorted(set(priorities), reverse=True)
        if len(chosen) < 2:
            only = chosen[0] if chosen else None
            return self.put_many(replace(request, priority=only))
        if argument_types.check_flag("atomic", request.atomic):
            raise MessageError(
                "atomic: wanted messages of one priority, because a group is in one queue; got "
                f"the priorities {chosen}"
            )
        whole = call._replace(extra=_with_priorities(call.extra, priorities))
        self._many_putting.admit(whole, PriorityQueueId(chosen[0]))
        return self._put_parts(whole, np.array(priorities))

    def _put_parts(self, call: CheckedBatch, priorities: Int64Array) -> PutBatch:
        parts: list[PutBatch] = []
        changes = (np.flatnonzero(np.diff(priorities)) + 1).tolist()
        try:
            for begin, end in pairwise([0, *changes, len(priorities)]):
                priority = int(priorities[begin])
                queue_id = PriorityQueueId(priority) if priority else None
                part = call.part(begin, end)._replace(queue_id=queue_id, is_sync=False)
                parts.append(self._many_putting.put_checked(part, atomic=False))
        except (FullError, BusyError, ConflictError) as error:
            error.stored_count += sum(map(len, parts))
            raise
        finally:
            if call.is_sync:
                self._log.sync_through(self._log.end)
        return _merged(len(priorities), parts)


def is_for_all(priority: object) -> bool:
    """Return whether a batch has one priority for all messages, rather than one for each."""
    return argument_types.whole(priority) is not None or isinstance(priority, bool | str | float)


def check_priorities(priorities: object, count: int, queue_id: object) -> list[int]:
    """Return the priority of each message of a batch; raise MessageError if one is wrong."""
    given = list(argument_types.several("priority", priorities))
    if len(given) != count:
        raise MessageError(f"priority: wanted one for each of {count} bodies, got {len(given)}")

    def read(one: object) -> int:
        return queue_of_priority(one, queue_id) or 0

    return [argument_types.read_of("priority", at, one, read) for at, one in enumerate(given)]


def _with_priorities(extra: tuple[Any, Any], priorities: Sequence[int]) -> tuple[Any, Int64Array]:
    """Return the property texts of the rows, and their offsets, with those of the priorities."""
    texts = [PriorityQueueId(one).text for one in priorities]
    data, offsets = extra
    if offsets is not None:
        own, spans = bytes(data), offsets.tolist()
        texts = [one + own[a:b] for one, (a, b) in zip(texts, pairwise(spans), strict=True)]
    return joined_column(texts)


def _merged(count: int, parts: Sequence[PutBatch]) -> PutBatch:
    """Return the receipts of all parts, in the order of the batch."""
    columns = {
        name: np.empty(count, np.int64)
        for name in ("log_offsets", "queue_offsets", "due_ms", "timer_ids", "queue_ids")
    }
    ids: list[Any] = [""] * count
    flags = {name: np.zeros(count, bool) for name in ("duplicate", "cancelled")}
    end = 0
    for part in parts:
        rows = slice(end, end + len(part))
        end = rows.stop
        for name in ("log_offsets", "queue_offsets", "due_ms", "timer_ids"):
            columns[name][rows] = getattr(part, name)
        columns["queue_ids"][rows] = part.queue_id if part.given is None else part.given.queue_ids
        ids[rows] = part.message_ids
        if part.given is not None:
            for name, column in flags.items():
                column[rows] = getattr(part.given, name)
    queue_ids = columns.pop("queue_ids")
    first = parts[0]
    return PutBatch(
        first.origin,
        first.counter_begin,
        int(queue_ids[0]),
        **columns,
        given=CallerIds(ids, queue_ids, **flags),
    )
