"""An asyncio store whose clock and services a test controls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.inside import inside
from timerstore.aio import AsyncTimerStore
from timerstore.testing import ManualClock, Stepper


class Stepped:
    """An asyncio store on a clock turned by hand, its services stepped."""

    def __init__(self, store: AsyncTimerStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.stepper = Stepper(store.blocking)

    @property
    def holds(self) -> int:
        return inside(self.store.blocking).long_polls.count

    async def waiting(self, *args: Any, **given: Any) -> "asyncio.Task[Any]":
        """A pull that stands in the table."""
        before = self.holds
        task = asyncio.create_task(self.store.pull(*args, **given))
        await asyncio.sleep(0)  # it runs up to its wait
        assert self.holds == before + 1
        return task


Test = Callable[[Stepped], Awaitable[None]]
