"""Recurring messages of all shards. All runs of a definition are in the shard of its name.

Thread safety: any thread.
Raises: as TimerStore; errors name the shard. MessageError if a name recurs in another shard.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.recurring import RecurringRequest, draw_name
from timerstore.errors import MessageError
from timerstore.shards.receipt import ShardRecurring, recurring_in
from timerstore.store import TimerStore

Call = Callable[[TimerStore], Any]


class ShardRecurringCalls(NotCopyable):
    """The recurring messages of one directory of shards."""

    def __init__(
        self,
        shard_of: Callable[[str], int],
        call: Callable[[int, Call], Any],
        call_all: Callable[[Call], list[Any]],
    ) -> None:
        self._shard_of = shard_of
        self._call = call
        self._call_all = call_all

    def put_every(self, request: RecurringRequest) -> ShardRecurring:
        """Implement ShardedStore.put_every."""
        name: Any = draw_name() if request.name is None else request.name
        request = replace(request, name=name)
        shard = self._shard_of(name) if isinstance(name, str) else 0  # shard 0 rejects it
        for one in self.recurring():
            if isinstance(name, str) and one.name == name and one.shard != shard:
                raise MessageError(
                    f"name: {name!r} recurs in shard {one.shard} already, by a call of its store, "
                    f"and would in shard {shard}, too; cancel_every it first"
                )
        made = self._call(
            shard,
            lambda store: store.put_every(request.topic, request.body, **request.options()),
        )
        return recurring_in(shard, made)

    def recurring(self) -> list[ShardRecurring]:
        """Implement ShardedStore.recurring."""
        parts = self._call_all(lambda store: store.recurring())
        found = [recurring_in(shard, one) for shard, part in enumerate(parts) for one in part]
        return sorted(found, key=lambda one: (one.name, one.shard))

    def cancel_every(self, name: str) -> bool:
        """Implement ShardedStore.cancel_every."""
        return any(self._call_all(lambda store: store.cancel_every(name)))
