"""Puts of coroutines: the loop itself puts a single message, and many puts share one sync.

    plain, or with tags, keys, properties, an id     appended by the loop
    the first put to a topic, a level, a spread,
    a replacing put, a put that would have to wait   appended by a thread of the pool
    an id that was put before                        looked up by a thread of the pool

Thread safety: runs on the loop that awaits.
Invariants:
    1. The loop of a program never blocks: it waits for no lock, writes no file, and takes at most
       0.1 ms for a list. The loop of a server may sync (shared_sync.py).
    2. On return the message is durable (`sync`), or survives a crash of the process (`async`). The
       first message of a repeated id is durable in any case.
    3. A coroutine that only puts lets others run.
Raises: as put and put_many of TimerStore.
See also: docs/decisions/0002-group-commit.md.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.write.put_requests import REPEATABLE, PutRequest
from timerstore.aio.shared_sync import SharedSync
from timerstore.api import StoreApi
from timerstore.store import TimerStore
from timerstore.types.receipts import PutBatch, PutReceipt

_TURN = 64  # puts without a wait after which other tasks run
# Arguments of a put that the loop makes. Those of a replacing put are missing, because it may read
# the key index.
_ON_LOOP = frozenset(
    {"delay", "deliver_at", "deliver_ms", "tags", "keys", "properties", "queue_id", "message_id",
     "flush", "check_after", "expires_ms"}
)  # fmt: skip

Answer = TypeVar("Answer")


class RunInThread(Protocol):
    """Runs a call in the pool."""

    def __call__(self, call: Callable[[], Answer], /) -> Coroutine[Any, Any, Answer]:
        """Return the result, awaited."""
        ...


class Puts(NotCopyable):
    """The puts of all coroutines of a store."""

    def __init__(self, store: TimerStore, run: RunInThread, *, may_block: bool) -> None:
        """`may_block`: see QuickWork."""
        self._store = store
        self._run = run  # in the pool
        self._is_sync = store.config.flush == "sync"
        self._is_own_put = type(store).put is StoreApi.put  # else a subclass has another
        self._answered = 0  # puts without a wait since other tasks ran
        self.shared = SharedSync(store, may_block=may_block)

    def _append(self, given: Sequence[Any], named: Mapping[str, Any]) -> PutReceipt | None:
        """Append a message on the loop. Return None if the loop cannot."""
        begun: PutReceipt | None = self._store._begin_put(*given, **named)
        if (
            begun is None
            and self._is_own_put
            and len(given) == 2
            and _ON_LOOP.issuperset(named)
            and type(named.get("keys", ())) in REPEATABLE
        ):
            begun = self._store._begin_single(PutRequest(*given, **named))
        return begun

    def put_without_task(
        self,
        given: Sequence[Any],
        named: Mapping[str, Any],
        done: Callable[[PutReceipt | BaseException], None],
    ) -> bool:
        """Implement AsyncTimerStore._put_without_task."""
        begun = self._append(given, named)
        if begun is None:
            return False
        if self._is_to_sync(named):
            self.shared.call_when_durable(
                begun.log_offset + 1, lambda error: done(begun if error is None else error)
            )
        else:
            asyncio.get_running_loop().call_soon(done, begun)
        return True

    async def put(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> PutReceipt:
        """Implement AsyncTimerStore.put."""
        begun = self._append(given, named)
        if begun is not None:
            await self._settle(begun.log_offset, is_sync=self._is_to_sync(named))
            return begun
        if not self._is_to_sync(named):
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
            await self._settle(int(begun.log_offsets[-1]), is_sync=self._is_sync)
            return begun
        return await self._run(partial(self._store.put_many, *given, **named))

    async def _settle(self, log_offset: int, *, is_sync: bool) -> None:
        """Wait until the put is durable, if it must be. Otherwise let other tasks run at times."""
        if is_sync:
            await self.shared.through(log_offset + 1)
            return
        self._answered += 1
        if self._answered >= _TURN:
            self._answered = 0
            await asyncio.sleep(0)

    def _is_to_sync(self, named: Mapping[str, Any]) -> bool:
        """Return whether the put must be durable on return."""
        flush = named.get("flush")
        return self._is_sync if flush is None else isinstance(flush, str) and flush == "sync"
