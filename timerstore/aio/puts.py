"""Puts of coroutines: the loop itself makes a plain put, and many share one sync.

Thread safety: runs on the loop that awaits. A put that is not plain runs in the pool.
Invariants:
    1. The loop never blocks: a plain put waits for no lock, writes no file, and takes at most 0.1
       ms for a list.
    2. On return the message is durable (`sync`), or survives a crash of the process (`async`).
    3. A coroutine that only puts lets others run.
Raises: as put and put_many of TimerStore.
See also: docs/decisions/0002-group-commit.md.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore.aio.shared_sync import SharedSync
from timerstore.receipts import PutBatch, PutReceipt
from timerstore.store import TimerStore

_TURN = 64  # puts without a wait after which other tasks run
# Such a put may return the receipt of another message or replace one. It syncs by itself.
_BY_ITSELF = frozenset({"message_id", "key", "replace", "wait_at_most"})

Answer = TypeVar("Answer")


class RunInThread(Protocol):
    """Runs a call in the pool."""

    def __call__(self, call: Callable[[], Answer], /) -> Coroutine[Any, Any, Answer]:
        """Return the result, awaited."""
        ...


class Puts(Owner):
    """The puts of all coroutines of a store."""

    def __init__(self, store: TimerStore, run: RunInThread) -> None:
        self._store = store
        self._run = run  # in the pool
        self._is_sync = store.config.flush == "sync"
        self._answered = 0  # puts without a wait since other tasks ran
        self.shared = SharedSync(store)

    async def put(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> PutReceipt:
        """Implement AsyncTimerStore.put."""
        begun: PutReceipt | None = self._store._begin_put(*given, **named)
        if begun is not None:
            await self._settle(begun.log_offset)
            return begun
        if not self._shares(named):
            return await self._run(partial(self._store.put, *given, **named))
        receipt = await self._run(partial(self._put_and_begin, given, named))
        await self.shared.through(receipt.log_offset + 1)
        return receipt

    def _put_and_begin(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> PutReceipt:
        """Put, and start its sync even if no caller waits for it any more."""
        receipt = self._store.put(*given, **{**named, "flush": "async"})
        self.shared.begin(receipt.log_offset + 1)
        return receipt

    async def put_many(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> PutBatch:
        """Implement AsyncTimerStore.put_many."""
        begun: PutBatch | None = self._store._begin_put_many(*given, **named)
        if begun is not None:
            await self._settle(int(begun.log_offsets[-1]))
            return begun
        return await self._run(partial(self._store.put_many, *given, **named))

    async def _settle(self, log_offset: int) -> None:
        """Wait until the put is durable, if it must be. Otherwise let other tasks run at times."""
        if self._is_sync:
            await self.shared.through(log_offset + 1)
            return
        self._answered += 1
        if self._answered >= _TURN:
            self._answered = 0
            await asyncio.sleep(0)

    def _shares(self, named: Mapping[str, Any]) -> bool:
        """Return whether the put must be durable, and only its own append has to be synced."""
        flush = named.get("flush")
        is_sync = self._is_sync if flush is None else isinstance(flush, str) and flush == "sync"
        return is_sync and _BY_ITSELF.isdisjoint(named)
