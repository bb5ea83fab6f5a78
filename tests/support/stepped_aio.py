"""An asyncio store whose clock and services a test controls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import timerstore.aio
from tests.support.bench import NOW, small
from tests.support.inside import inside
from timerstore.aio import AsyncTimerStore
from timerstore.testing import ManualClock, Stepper


class Stepped:
    """An asyncio store with a manual clock and stepped services."""

    def __init__(self, store: AsyncTimerStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.stepper = Stepper(store.blocking)

    async def put(self, *bodies: bytes) -> None:
        """Put messages of topic t, and step the services until they can be read."""
        await self.store.put_many("t", list(bodies))
        self.stepper.settle()

    @property
    def waiting_count(self) -> int:
        return inside(self.store.blocking).long_polls.count

    async def waiting(self, *args: Any, **given: Any) -> "asyncio.Task[Any]":
        """Start a pull, and return it once it waits in the long-poll table."""
        before = self.waiting_count
        task = asyncio.create_task(self.store.pull(*args, **given))
        await asyncio.sleep(0)  # it runs up to its wait
        assert self.waiting_count == before + 1
        return task


Test = Callable[[Stepped], Awaitable[None]]


@asynccontextmanager
async def stepped_store(root: Path, *, flush: str = "async", **more: Any) -> AsyncIterator[Stepped]:
    """Open a store without service threads, and close it in the end."""
    clock, config = ManualClock(NOW), small(flush=flush)
    async with timerstore.aio.open(root, config, clock=clock, threads=False, **more) as store:
        yield Stepped(store, clock)
