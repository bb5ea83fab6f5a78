"""An asyncio store whose clock and services a test controls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.inside import inside
from timerstore.aio import AsyncTimerStore
from timerstore.testing import ManualClock, Stepper


class Stepped:
    """An asyncio store with a manual clock and stepped services."""

    def __init__(self, store: AsyncTimerStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.stepper = Stepper(store.blocking)

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
