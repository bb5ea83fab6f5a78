"""The calls of a store as coroutines.

    async with timerstore.aio.open("orders.store") as store:
        await store.put("orders", b"close 4711", delay=1800)
        page = await store.pull("orders", 0, 0, wait=30.0)

Calls run in a pool of `workers` threads. Most puts use none (puts.py). Calls that settle leases,
and those that cancel or reschedule messages, share one (gathered_calls.py). A waiting pull or
consumer uses none (async_consumer.py): it is registered in the store's long-poll table and is woken
on the loop that awaits it.

Thread safety: any loop may await. The store may outlive a loop.
Invariants:
    1. Cancelling a waiting pull removes it from the table. It takes no message from others: pulls
       only read.
    2. Messages that a cancelled receive has leased are given back; the next one gets them.
    3. Any other call that has begun is completed even if it is cancelled; its caller does not see
       the result.
Raises: as TimerStore.
See also: docs/decisions/0005-long-poll.md and docs/decisions/0002-group-commit.md.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from timerstore import store as blocking_store
from timerstore._engine.base.owner import Making
from timerstore._engine.storage.anchor import absolute_path
from timerstore.aio.async_consumer import AsyncConsumer
from timerstore.aio.async_leases import AsyncHeartbeat, AsyncLeaseConsumer
from timerstore.aio.async_store import AsyncTimerStore
from timerstore.aio.connecting import connect
from timerstore.errors import ConfigError, quoted
from timerstore.store import TimerStore
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig

__all__ = [
    "AsyncConsumer",
    "AsyncHeartbeat",
    "AsyncLeaseConsumer",
    "AsyncTimerStore",
    "connect",
    "open",
]

WORKERS_MAX = 64


async def _opened(opener: Callable[[], TimerStore], workers: int) -> AsyncTimerStore:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="timerstore-aio")
    opening = pool.submit(opener)
    try:
        store = await asyncio.wrap_future(opening)
    except BaseException:
        # Cancelled: close the store if it opens all the same.
        opening.add_done_callback(_close_unwanted)
        pool.shutdown(wait=False)
        raise
    return AsyncTimerStore(store, pool)


def _close_unwanted(opening: Future[TimerStore]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def open(  # noqa: A001 - read as `timerstore.aio.open`
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    read_only: bool = False,
    workers: int = 4,
) -> Making[AsyncTimerStore]:
    """Open a store as timerstore.open does: `await` it, or use `async with`.

    workers: threads that run calls, 1 to 64. Any number of tasks can wait in a synchronous `put` or
    a plain `put_many`; they share syncs. Other lists are limited to the number of threads.

    threads: False to run no services; step those of `store.blocking`.

    read_only: not supported; use timerstore.open.

    Raises:
        ConfigError: an argument is invalid, or `read_only=True`.

    When the result is awaited, it raises the errors of timerstore.open.
    """
    if read_only:
        raise ConfigError(
            "read_only: timerstore.aio opens a store for writing; timerstore.open(path, "
            "read_only=True) opens one for reading"
        )
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        raise ConfigError(f"workers: wanted 1 to {WORKERS_MAX}, got {quoted(workers)}")
    # Resolved now: the process may change its working directory before it awaits this.
    absolute = absolute_path("path", path)
    opener = partial(blocking_store.open, absolute, config, clock=clock, threads=threads)
    return Making(partial(_opened, opener, workers))
