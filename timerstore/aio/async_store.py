"""AsyncTimerStore: an open store for asyncio.

Thread safety, invariants, errors: those of the package.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from timerstore._engine.base.owner import AsyncClosing, Making
from timerstore._engine.leases import AckResult, DeadLetter, LeaseCall, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest, Topics, lease_s
from timerstore._engine.leases.shared_receive import BegunReceive
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.waiting import Waitable, WaitingPull
from timerstore._engine.write.reschedule import ChangeCall
from timerstore.aio.async_consumer import AsyncConsumer
from timerstore.aio.async_leases import AsyncHeartbeat, AsyncLeaseConsumer
from timerstore.aio.gathered_calls import GatheredCalls
from timerstore.aio.loop_waiters import LoopWaiters, end_wait
from timerstore.aio.puts import Puts
from timerstore.aio.quick_work import QuickWork
from timerstore.errors import ClosedError
from timerstore.store import TimerStore
from timerstore.types.messages import MessageBatch, PullResult
from timerstore.types.receipts import PutBatch, PutReceipt
from timerstore.types.reports import CancelResult, PendingTimer

PAGE_COUNT = 256
"""Pending messages or dead letters that are read in one step."""
PAGE_BYTES = 1 << 20
"""The step ends when it has as many bytes of bodies."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Got = TypeVar("Got")
Pulled = TypeVar("Pulled", bound=PullResult | MessageBatch)


def _in_pool(
    method: Callable[Concatenate[TimerStore, Arguments], Answer],
) -> Callable[Concatenate["AsyncTimerStore", Arguments], Coroutine[Any, Any, Answer]]:
    """Return a coroutine function that makes the call in a thread of the pool."""

    @wraps(method)
    async def call(
        self: "AsyncTimerStore", /, *args: Arguments.args, **given: Arguments.kwargs
    ) -> Answer:
        # By name: a store may have a faster implementation in C.
        own: Callable[..., Answer] = getattr(self.blocking, method.__name__)
        return await self._run(partial(own, *args, **given))

    return call


def _waiting(
    method: Callable[Concatenate[TimerStore, Arguments], Pulled],
    begin: Callable[Concatenate[TimerStore, Arguments], WaitingPull[Pulled]],
) -> Callable[Concatenate["AsyncTimerStore", Arguments], Coroutine[Any, Any, Pulled]]:
    """Return a coroutine function for a pull. It uses no thread while it waits."""

    @wraps(method)
    async def call(
        self: "AsyncTimerStore", /, *args: Arguments.args, **given: Arguments.kwargs
    ) -> Pulled:
        return await self._wait(begin(self.blocking, *args, **given))

    return call


def _as(
    _method: Callable[Concatenate[TimerStore, Arguments], Answer],
) -> Callable[
    [Callable[..., Coroutine[Any, Any, Answer]]],
    Callable[Concatenate["AsyncTimerStore", Arguments], Coroutine[Any, Any, Answer]],
]:
    """Give a coroutine function the signature and the documentation of a call."""

    def same(
        call: Callable[..., Coroutine[Any, Any, Answer]],
    ) -> Callable[Concatenate["AsyncTimerStore", Arguments], Coroutine[Any, Any, Answer]]:
        return wraps(_method)(call)

    return same


def _drop(unwanted: Callable[[Answer], None], work: Future[Answer]) -> None:
    if not work.cancelled() and work.exception() is None:
        unwanted(work.result())


class AsyncTimerStore(AsyncClosing):
    """An open store for asyncio; `timerstore.aio.open` returns it."""

    def __init__(self, blocking: TimerStore, pool: Executor, *, may_block: bool = False) -> None:
        """`may_block`: see QuickWork."""
        self.blocking = blocking
        """The store itself. Its calls may block."""
        self.config = blocking.config
        self._pool = pool
        self._puts = Puts(blocking, self._run, may_block=may_block)
        check_open = blocking._check_open
        self._lease_calls: GatheredCalls[LeaseCall | ReceiveRequest, Any] = GatheredCalls(
            check_open, pool, blocking._make_each, self._drop_begun, may_block=may_block
        )
        self._changes = GatheredCalls(check_open, pool, blocking._change_each, may_block=may_block)
        self._looks = QuickWork(may_block=may_block)  # of a `receive` that was woken alone
        self._waiters: dict[asyncio.AbstractEventLoop, LoopWaiters] = {}  # by loop

    ingest = _in_pool(TimerStore.ingest)
    ingested = _in_pool(TimerStore.ingested)
    topics = _in_pool(TimerStore.topics)
    pull = _waiting(TimerStore.pull, TimerStore.begin_pull)
    pull_batch = _waiting(TimerStore.pull_batch, TimerStore.begin_pull_batch)
    query = _in_pool(TimerStore.query)
    cancel_many = _in_pool(TimerStore.cancel_many)
    put_every = _in_pool(TimerStore.put_every)
    recurring = _in_pool(TimerStore.recurring)
    cancel_every = _in_pool(TimerStore.cancel_every)
    backlog = _in_pool(TimerStore.backlog)
    delete_topic = _in_pool(TimerStore.delete_topic)
    requeue = _in_pool(TimerStore.requeue)
    committed = _in_pool(TimerStore.committed)
    offset_at = _in_pool(TimerStore.offset_at)
    stats = _in_pool(TimerStore.stats)
    timing_distribution = _in_pool(TimerStore.timing_distribution)
    congestion = _in_pool(TimerStore.congestion)
    pace = _in_pool(TimerStore.pace)
    histogram = _in_pool(TimerStore.histogram)
    explain = _in_pool(TimerStore.explain)
    flush = _in_pool(TimerStore.flush)
    verify = _in_pool(TimerStore.verify)
    backup = _in_pool(TimerStore.backup)

    @_as(TimerStore.put)
    async def put(self, *given: Any, **named: Any) -> PutReceipt:
        """Store one message, as TimerStore.put. The loop appends it; many puts share a sync."""
        return await self._puts.put(given, named)

    def _put_without_task(
        self,
        given: Sequence[Any],
        named: Mapping[str, Any],
        done: Callable[[PutReceipt | BaseException], None],
    ) -> bool:
        """Put one message without a task: for a server, which answers many puts in one turn.

        Return whether the loop could append it at once. Then `done` is called in a later turn with
        the receipt or with the error of the sync. Raises as `put`.
        """
        return self._puts.put_without_task(given, named, done)

    @_as(TimerStore.put_many)
    async def put_many(self, *given: Any, **named: Any) -> PutBatch:
        """Store many messages, as TimerStore.put_many; of a plain list up to 1,024 on the loop."""
        return await self._puts.put_many(given, named)

    @_as(TimerStore.receive)
    async def receive(self, topic: Topics, group: str, **options: Any) -> list[LeasedMessage]:
        """Lease messages, as TimerStore.receive. It uses no thread while it waits.

        Calls of one turn of the loop share a sync, and also a read if they differ only in
        `max_count` and `wait`.

        If it is cancelled, its leased messages are given back: they go to the next `receive` of the
        group, or to one that waits, with the same attempt.
        """
        return await self._receive(ReceiveRequest.from_options(topic, group, options))

    def _begin_lease_call(
        self, call: LeaseCall | ReceiveRequest, done: Callable[[Any], None]
    ) -> None:
        """Make a call without a task, for a server. `done` gets its answer or its error in a later
        turn; of a `receive` a BegunReceive, for `_received` or `_drop_begun`.
        """
        self._lease_calls.begin(call, done)

    async def _receive(self, request: ReceiveRequest) -> list[LeasedMessage]:
        return await self._received(await self._lease_calls.call(request))

    async def _received(self, begun: BegunReceive) -> list[LeasedMessage]:
        """Return the messages of a begun `receive`, after its wait if it has none."""
        if begun.waiting is None:
            found = begun.found
        else:
            found = await self._wait(begun.waiting, unwanted=self._give_back_unclaimed)
        return self.blocking._claim(found)

    def _drop_begun(self, begun: object) -> None:
        """Give back the messages of a `receive` whose caller was cancelled."""
        if not isinstance(begun, BegunReceive):
            return
        if begun.waiting is not None:
            begun.waiting.end()
        self._give_back_unclaimed(begun.found)

    def _give_back_unclaimed(self, messages: Sequence[LeasedMessage]) -> None:
        """Give back messages of a cancelled caller; for a loop, in a thread of the pool."""
        if not messages:
            return

        def give_back() -> None:
            with suppress(ClosedError):  # then `close` gives them back, or did so
                self.blocking._give_back_unclaimed(messages)

        try:
            asyncio.get_running_loop()
            Context().run(self._pool.submit, give_back)  # as no client of a server: none waits
        except RuntimeError:  # in a thread of the pool, or the pool is shut
            give_back()

    async def _has_topic(self, topic: str) -> bool:
        return self.blocking._has_topic(topic)

    async def _give_back(self, receipts: Sequence[str]) -> int:
        """Give back messages that no consumer saw (timerstore.net)."""
        return cast("int", await self._lease_calls.call(LeaseCall("give_back", receipts)))

    @_as(TimerStore.ack)
    async def ack(self, receipt: str | LeasedMessage) -> AckResult:
        """Acknowledge a message, as TimerStore.ack. Calls of one turn of the loop share a sync."""
        return cast("AckResult", await self._lease_calls.call(LeaseCall("ack", receipt)))

    @_as(TimerStore.ack_many)
    async def ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        """Acknowledge many messages, as TimerStore.ack_many. It shares syncs as `ack` does."""
        call = LeaseCall("ack_many", receipts)
        return cast("list[AckResult]", await self._lease_calls.call(call))

    @_as(TimerStore.nack)
    async def nack(
        self, receipt: str | LeasedMessage, *, delay: Any = None, error: str | None = None
    ) -> AckResult:
        """Return a message, as TimerStore.nack. It shares syncs as `ack` does."""
        call = LeaseCall("nack", receipt, delay, error=error)
        return cast("AckResult", await self._lease_calls.call(call))

    @_as(TimerStore.bury)
    async def bury(self, receipt: str | LeasedMessage, *, error: str | None = None) -> AckResult:
        """Make a message a dead letter, as TimerStore.bury. It shares syncs as `ack` does."""
        call = LeaseCall("bury", receipt, error=error)
        return cast("AckResult", await self._lease_calls.call(call))

    @_as(TimerStore.cancel)
    async def cancel(self, receipt_or_handle: PutReceipt | str) -> CancelResult:
        """Cancel a message, as TimerStore.cancel. Calls of one turn of the loop share a sync."""
        return cast(
            "CancelResult", await self._changes.call(ChangeCall("cancel", receipt_or_handle))
        )

    @_as(TimerStore.reschedule)
    async def reschedule(
        self,
        receipt_or_handle: PutReceipt | str,
        *,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        deliver_ms: int | None = None,
    ) -> PutReceipt:
        """Reschedule a message, as TimerStore.reschedule. It shares syncs as `cancel` does."""
        call = ChangeCall("reschedule", receipt_or_handle, (delay, deliver_at, deliver_ms))
        return cast("PutReceipt", await self._changes.call(call))

    @_as(TimerStore.commit)
    async def commit(self, half: PutReceipt | LeasedMessage | str) -> AckResult:
        """Commit a half message, as TimerStore.commit. It shares syncs as `cancel` does."""
        return cast("AckResult", await self._changes.call(ChangeCall("commit", half)))

    @_as(TimerStore.rollback)
    async def rollback(self, half: PutReceipt | LeasedMessage | str) -> AckResult:
        """Roll back a half message, as TimerStore.rollback. It shares syncs as `cancel` does."""
        return cast("AckResult", await self._changes.call(ChangeCall("rollback", half)))

    @_as(TimerStore.extend)
    async def extend(self, receipt: str | LeasedMessage, *, lease: Any = 30.0) -> str:
        """Extend a lease, as TimerStore.extend. It shares syncs as `ack` does."""
        return cast("str", await self._lease_calls.call(LeaseCall("extend", receipt, lease=lease)))

    @_as(TimerStore.renew)
    async def renew(self, receipt: str | LeasedMessage, *, lease: Any = 30.0) -> int:
        """Renew a lease, as TimerStore.renew. It shares syncs as `ack` does."""
        return cast("int", await self._lease_calls.call(LeaseCall("renew", receipt, lease=lease)))

    def heartbeat(
        self, receipt: str | LeasedMessage, *, lease: timedelta | float = 30.0
    ) -> AsyncHeartbeat:
        """Renew a lease while an `async with` block runs, as TimerStore.heartbeat."""
        return AsyncHeartbeat(partial(self.renew, receipt, lease=lease), lease_s(lease))

    def lease_consumer(
        self, topic: Topics, group: str, *, wait: float | None = None, **options: Any
    ) -> AsyncLeaseConsumer:
        """Return an iterator over leased messages, as TimerStore.lease_consumer."""
        self.blocking._check_open()
        return AsyncLeaseConsumer(self.receive, self.ack, self.nack, topic, group, wait, options)

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        queues: Sequence[int] | None = None,
        tags: str | None = None,
        sql: str | None = None,
        wait: float | None = None,
    ) -> Making[AsyncConsumer]:
        """Read a topic for a group, as TimerStore.consumer: `await` it, or use `async with`."""
        make = partial(
            self.blocking.consumer, topic, group, queues=queues, tags=tags, sql=sql, wait=wait
        )

        async def join() -> AsyncConsumer:
            return AsyncConsumer(await self._run_or(make, Consumer.close), self)

        return Making(join)

    def pending(
        self, *, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> AsyncIterator[PendingTimer]:
        """Yield pending messages, as TimerStore.pending. They are read 256 at a time."""
        found = self.blocking.pending(begin_ms=begin_ms, end_ms=end_ms, topic=topic)
        return self._paged(found)

    def dead_letters(self, group: str, *, topic: str | None = None) -> AsyncIterator[DeadLetter]:
        """Yield dead letters, as TimerStore.dead_letters. They are read 256 at a time."""
        return self._paged(self.blocking.dead_letters(group, topic=topic))

    async def _paged(self, found: Iterator[Answer]) -> AsyncIterator[Answer]:
        while page := await self._run(partial(_page_of, found)):
            for one in page:
                yield one

    async def _run(self, call: Callable[[], Answer]) -> Answer:
        self.blocking._check_open()  # a pool that is shut, or lost in a fork, accepts no work
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def _run_or(
        self, call: Callable[[], Answer], unwanted: Callable[[Answer], None]
    ) -> Answer:
        """Run a call in the pool. If the caller is cancelled, pass the result to `unwanted`."""
        self.blocking._check_open()
        work = self._pool.submit(call)
        try:
            return await asyncio.wrap_future(work)
        except BaseException:
            work.add_done_callback(partial(_drop, unwanted))
            raise

    async def _wait(
        self,
        waiting: Waitable[Got, Answer],
        *,
        unwanted: Callable[[Got], None] | None = None,
    ) -> Answer:
        loop = asyncio.get_running_loop()
        waiters = self._waiters.get(loop)
        waiters = waiters or LoopWaiters(loop, self._waiters, self.blocking._check_open)
        waiters.add(waiting)
        try:
            while True:
                woken: asyncio.Future[None] = loop.create_future()
                if waiting.enter(partial(waiters.wake, woken)):
                    timer = loop.call_later(waiting.left_s, end_wait, woken)
                    try:
                        await woken
                    finally:
                        timer.cancel()
                        waiters.leave(waiting)
                    if waiting.is_closed:
                        return waiting.when_closed()
                if unwanted is None:
                    got = await self._run(waiting.look)
                elif waiters.is_one_woken and self._looks.is_for_loop:
                    got = self._looks.timed(waiting.look)
                else:
                    got = await self._run_or(waiting.look, unwanted)
                if (answer := waiting.answer(got)) is not None:
                    return answer
        finally:
            waiters.end(waiting)

    async def close(self) -> None:
        """Wake waiting pulls, wait for running calls, and close the store.

        A second call does nothing. The close is completed even if the task that awaits it is
        cancelled.
        """
        self._check_process()
        # In a separate thread: all threads of the pool may be in calls that this close ends.
        loop, closer = asyncio.get_running_loop(), ThreadPoolExecutor(1, "timerstore-aio-close")
        try:
            closing = loop.run_in_executor(closer, self._close)
        except RuntimeError:  # no thread starts: the interpreter is ending
            self._close()
            return
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            loop.run_in_executor(None, closer.shutdown)  # asyncio.run waits for it at its end
            raise
        finally:
            closer.shutdown(wait=closing.done())

    def _check_process(self) -> None:
        self.blocking._check_process()

    def _close(self) -> None:
        self._end(self.blocking.close)

    def detach(self) -> None:
        """End the threads of this object after its running calls. The store stays open."""
        self._end(lambda: None)

    def _is_shut(self) -> bool:
        """Return whether the threads take no more calls, also because the interpreter ends."""
        try:
            self._pool.submit(int)
        except RuntimeError:
            return True
        return False

    def _end(self, close: Callable[[], None]) -> None:
        close()
        self._puts.shared.shut()
        self._pool.shutdown()  # calls have ended, or end now with ClosedError

    def __repr__(self) -> str:
        return f"<Async{repr(self.blocking)[1:]}"


def _page_of(found: Iterator[Answer]) -> list[Answer]:
    page: list[Answer] = []
    left_bytes = PAGE_BYTES
    for one in found:
        page.append(one)
        left_bytes -= body_bytes(one)
        if left_bytes <= 0 or len(page) == PAGE_COUNT:
            break
    return page


def body_bytes(one: object) -> int:
    """Return the bytes of a message's body; 0 of a pending message, which has none here."""
    return len(getattr(one, "raw_body", b""))
