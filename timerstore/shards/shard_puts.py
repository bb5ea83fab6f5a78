"""Put messages into the shards that they belong to.

Thread safety: any thread.
Invariants:
    1. A batch is checked as a whole before any shard stores a part of it.
    2. The parts of a batch are independent: if one shard fails, the other parts are stored.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from timerstore._engine.base import argument_types, due_times, message_fields
from timerstore._engine.base.message_fields import PriorityQueueId, queue_of_priority
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.write.checked_batch import Column, gather_ids, id_bytes
from timerstore._engine.write.put_many import check_priorities, is_for_all
from timerstore._engine.write.put_requests import BatchRequest, PutRequest, Spreader
from timerstore.errors import BusyError, FullError, MessageError, kind_of, plain
from timerstore.shards.receipt import ShardBatch, ShardReceipt, places_in_parts
from timerstore.shards.routing import Shards, Turns, first_key, shards_of_rows
from timerstore.store import TimerStore
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig
from timerstore.types.receipts import PutBatch


class ShardPuts(NotCopyable):
    """Puts into one directory of shards."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        turns: Turns,
        shard_of: Callable[[str], int],
        call: Callable[[int, Callable[[TimerStore], Any]], Any],
        call_some: Callable[[Mapping[int, Callable[[TimerStore], Any]]], Any],
    ) -> None:
        self._config = config
        self._clock = clock
        self._turns = turns
        self._shard_of = shard_of
        self._call = call
        self._call_some = call_some
        self._spreader = Spreader(config, clock)

    def put(self, request: PutRequest) -> ShardReceipt:
        """Implement ShardedStore.put."""
        if request.spread is not None:
            request = self._spreader.one(request)
        request = request.with_checked_flags()
        key = first_key(request.keys if request.key is None else request.key)
        key = key or request.message_id
        if request.message_group is not None:
            key = plain(request.message_group)
        shard = self._shard_of(key) if isinstance(key, str) else self._turns.take()
        if request.is_derived:
            return ShardReceipt(shard, self._call(shard, lambda store: store._do_put(request)))
        options = request.options()  # only those given: a plain put takes the fast path
        receipt = self._call(shard, lambda store: store.put(request.topic, request.body, **options))
        return ShardReceipt(shard, receipt)

    def put_many(self, request: BatchRequest) -> ShardBatch:
        """Implement ShardedStore.put_many."""
        topic, level, keys, queue_id = (
            request.topic,
            request.level,
            request.keys,
            request.queue_id,
        )
        data, offsets, _ = message_fields.gather_bodies(
            request.bodies, self._config.message_bytes_max
        )
        count = len(offsets) - 1
        now_ms = self._clock.now_ms
        if request.spread is not None:
            request = self._spreader.many(request, count)
        if level is not None:
            message_fields.check_level(level, request.delay, None, request.deliver_ms)
        due = due_times.resolve_due_array(
            now_ms, count, request.delay, request.deliver_ms, self._config.delay_ms_max
        )
        ids = gather_ids(request.message_ids, count)
        priority: Any = request.priority
        if priority is not None and not is_for_all(priority):
            priority = np.array(check_priorities(priority, count, queue_id), np.int64)
        elif priority is not None:
            queue_of_priority(priority, queue_id)
        if not self._config.timer_enabled and bool((due > 0).any()):
            raise due_times.timers_off()
        self._check(topic, offsets, request.tags, keys, queue_id, ids, priority)
        atomic = argument_types.check_flag("atomic", request.atomic)
        shards = self._shards_of(keys, ids, count, atomic=atomic)
        chosen: list[int] = [int(one) for one in np.unique(shards)] or [0]
        if atomic and len(chosen) > 1:
            raise MessageError(
                f"atomic: wanted messages of one shard, for shards know nothing of one another; "
                f"by their keys and message ids these belong to {chosen}"
            )
        id_texts = None if ids is None else _texts(ids)
        if len(chosen) == 1:
            rows: dict[int, Any] = {chosen[0]: slice(None)}
        else:
            rows = {shard: np.flatnonzero(shards == shard) for shard in chosen}

        def part_of(shard: int) -> Callable[[TimerStore], PutBatch]:
            mine = rows[shard]
            own_bodies: Any = (data, offsets)
            own_keys, own_ids, own_priority = keys, request.message_ids, priority
            if not isinstance(mine, slice):
                own_bodies = [data[offsets[k] : offsets[k + 1]] for k in mine]
                own_keys = None if keys is None else [keys[k] for k in mine]
                own_ids = None if id_texts is None else [id_texts[k] for k in mine]
                if isinstance(priority, np.ndarray):
                    own_priority = priority[mine]
            options: dict[str, Any] = {
                "deliver_ms": due[mine] if level is None else None,
                "tags": request.tags,
                "keys": own_keys,
                "queue_id": queue_id,
                "atomic": atomic,
                "flush": request.flush,
                "level": level,
                "priority": own_priority,
            }
            if own_ids is None:
                return lambda store: store.put_many(topic, own_bodies, **options)
            part = BatchRequest(
                topic, own_bodies, message_ids=own_ids, is_derived=not request.is_fixed, **options
            )
            return lambda store: store._do_put_many(part)

        parts = self._put_parts({shard: part_of(shard) for shard in chosen})
        return ShardBatch(shards, parts, places_in_parts(shards))

    def _put_parts(
        self, calls: Mapping[int, Callable[[TimerStore], PutBatch]]
    ) -> dict[int, PutBatch]:
        done: dict[int, PutBatch] = {}

        def recorded(shard: int) -> Callable[[TimerStore], None]:
            def call(store: TimerStore) -> None:
                done[shard] = calls[shard](store)

            return call

        try:
            self._call_some({shard: recorded(shard) for shard in calls})
        except (FullError, BusyError) as error:
            # If several shards failed, the messages that the others stored are not counted.
            error.stored_count += sum(len(one) for one in done.values())
            raise
        return done

    def _shards_of(
        self, keys: Sequence[Any] | None, ids: Column | None, count: int, *, atomic: bool
    ) -> Shards:
        shards = np.full(count, -1, np.int32)
        if ids is not None:
            shards = shards_of_rows(*ids, self._turns.shard_count)
        if keys is not None:
            firsts = [first_key(one) for one in keys]
            by_key = np.array([-1 if one is None else self._shard_of(one) for one in firsts], "i4")
            shards = np.where(by_key < 0, shards, by_key)
        without = shards < 0
        if without.any():
            is_bound = atomic and not without.all()  # to the shard of the others
            shards[without] = shards[~without][0] if is_bound else self._turns.take()
        return shards

    def _check(
        self,
        topic: str,
        offsets: Any,
        tags: Any,
        keys: Any,
        queue_id: Any,
        ids: Column | None,
        priority: Any,
    ) -> None:
        """Reject a batch that a shard would reject, before any shard has stored a part."""
        name = message_fields.check_topic(topic)
        text = message_fields.encode_properties(tags, (), None)
        sizes = np.diff(offsets)
        extra = np.zeros(1, np.int64)
        if keys is not None:
            is_row = isinstance(keys, Sequence) and not isinstance(keys, str | bytes)
            is_row = is_row or (isinstance(keys, np.ndarray) and keys.ndim > 0)
            if not is_row or len(keys) != len(sizes):
                got = str(len(keys)) if is_row else kind_of(keys)
                raise MessageError(
                    f"keys: wanted one entry for each of {len(sizes)} bodies, got {got}"
                )
            texts = [message_fields.encode_properties(None, one, None) for one in keys]
            extra = np.fromiter(map(len, texts), np.int64, len(texts))
        if queue_id is not None:
            message_fields.check_queue_id(queue_id)
        if ids is not None and len(sizes):
            extra = extra + id_bytes(ids, is_remembered=self._config.dedupe_window_ms > 0)
        if priority is not None:
            extra = extra + len(PriorityQueueId(1).text) * (np.asarray(priority) > 0)
        if len(sizes):
            most = int(extra.max())
            message_fields.check_sizes(
                int((sizes + extra).max()) - most,
                len(text) + most,
                name,
                properties_bytes_max=self._config.properties_bytes_max,
                record_bytes_max=self._config.record_bytes_max,
            )


def _texts(column: Column) -> list[str]:
    data, spans = column
    return [bytes(data[spans[k] : spans[k + 1]]).decode() for k in range(len(spans) - 1)]
