"""Awaited puts: the plain case is put by the loop itself, and waits for a sync that many share.

Threads:  the loop that awaits; what is no plain case goes to the pool.
Holds:    (1) the loop never blocks: a put in the plain case waits for no lock, writes no file, and
          takes no more than 0.1 ms for a list; (2) on return the message is durable (`sync`), or
          outlives the process (`async`); (3) a coroutine that does nothing but put lets others run.
Fails:    as put and put_many of TimerStore.
Source:   docs/decisions/0002-group-commit.md.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore.aio.shared_sync import SharedSync
from timerstore.receipts import PutBatch, PutReceipt
from timerstore.store import TimerStore

_TURN = 64  # puts that are answered without a wait, before others have their turn
# Such a put answers with another's receipt, or takes another's place: it syncs by itself.
_BY_ITSELF = frozenset({"message_id", "key", "replace", "wait_at_most"})

Answer = TypeVar("Answer")


class Run(Protocol):
    """Carries a call out in the pool."""

    def __call__(self, call: Callable[[], Answer], /) -> Coroutine[Any, Any, Answer]:
        """Its answer, awaited."""
        ...


class Puts(Owner):
    """The way in for coroutines."""

    def __init__(self, store: TimerStore, run: Run) -> None:
        self._store = store
        self._run = run  # in the pool
        self._is_sync = store.config.flush == "sync"
        self._answered = 0  # without a wait, since others had their turn
        self.shared = SharedSync(store)

    async def put(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> PutReceipt:
        """As TimerStore.put."""
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
        """Put, and have it synced, also where nobody waits for that any more."""
        receipt = self._store.put(*given, **{**named, "flush": "async"})
        self.shared.begin(receipt.log_offset + 1)
        return receipt

    async def put_many(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> PutBatch:
        """As TimerStore.put_many."""
        begun: PutBatch | None = self._store._begin_put_many(*given, **named)
        if begun is not None:
            await self._settle(int(begun.log_offsets[-1]))
            return begun
        return await self._run(partial(self._store.put_many, *given, **named))

    async def _settle(self, log_offset: int) -> None:
        """Wait until it is durable, where it must be; else go on, or let others run."""
        if self._is_sync:
            await self.shared.through(log_offset + 1)
            return
        self._answered += 1
        if self._answered >= _TURN:
            self._answered = 0
            await asyncio.sleep(0)

    def _shares(self, named: Mapping[str, Any]) -> bool:
        """Whether the put is to be durable, and nothing but its append is."""
        flush = named.get("flush")
        is_sync = self._is_sync if flush is None else isinstance(flush, str) and flush == "sync"
        return is_sync and _BY_ITSELF.isdisjoint(named)
