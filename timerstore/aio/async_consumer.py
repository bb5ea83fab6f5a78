"""A consumer for asyncio. It uses no thread while it waits.

    async with store.consumer("orders", "billing") as consumer:
        async for message in consumer:
            await handle(message)
            await consumer.commit()

Thread safety: use it on one loop. Steps that read or write files run in the store's thread pool.
Invariants: a poll that is cancelled loses no message. Messages are fetched in the pool and handed
out on the loop, where no other step runs before the poll returns them.
Raises: as Consumer.
See also: docs/decisions/0005-long-poll.md.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Protocol, Self, TypeVar

from timerstore._engine.base.owner import AsyncClosing
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.pull_request import wait_problems
from timerstore._engine.read.waiting import Waitable
from timerstore.errors import ClosedError, MessageError
from timerstore.types.messages import Message

Got = TypeVar("Got")
Answer = TypeVar("Answer")


class Host(Protocol):
    """The parts of a store that a consumer uses."""

    async def _run(self, call: Callable[[], Answer]) -> Answer:
        """Make a call in a thread of the pool."""

    async def _wait(self, waiting: Waitable[Got, Answer]) -> Answer:
        """Wait without a thread."""

    def _check_process(self) -> None:
        """Raise ForkedError in a forked child."""


class AsyncConsumer(AsyncClosing):
    """A group's reader of a topic; `AsyncTimerStore.consumer` returns it. Close it, or use `async
    with`.

    Tasks may share it, and threads may share `blocking`.
    """

    def __init__(self, blocking: Consumer, host: Host) -> None:
        self.blocking = blocking
        """The consumer itself. Its calls may block."""
        self.topic = blocking.topic
        self.group = blocking.group
        self._host = host

    async def poll(self, max_count: int = 32, wait: float = 0.0) -> list[Message]:
        """Return the next messages of its queues, at most `max_count`.

        If no message is there, wait up to `wait` seconds for the first, then return an empty list.
        Return an empty list also if the consumer or the store is closed during the wait.

        Raises:
            MessageError: an argument is invalid.
        """
        if problems := wait_problems(wait):  # also for None, which only an iteration may use
            raise MessageError(problems)
        return await self._poll(max_count, wait)

    async def _poll(self, max_count: int, wait_s: float | None) -> list[Message]:
        poll = self.blocking.begin_poll(max_count, wait_s)
        if found := self.blocking.take_buffered(max_count):
            return found
        return await self._host._wait(poll)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            found = await self._poll(1, self.blocking.wait)
        except ClosedError:
            found = []
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def commit(self, through: Message | Mapping[int, int] | None = None) -> dict[int, int]:
        """Commit the messages that this consumer has returned, as Consumer.commit.

        A commit that has begun is completed even if it is cancelled.
        """
        return await self._host._run(partial(self.blocking.commit, through))

    async def seek(
        self,
        offset: int | None = None,
        *,
        time: datetime | None = None,
        time_ms: int | None = None,
        queue_id: int | None = None,
    ) -> dict[int, int]:
        """Continue at another position, as Consumer.seek."""
        return await self._host._run(
            partial(self.blocking.seek, offset, time=time, time_ms=time_ms, queue_id=queue_id)
        )

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that belong to this consumer now."""
        return self.blocking.queues

    async def close(self) -> None:
        """Leave the group, and wake waiting polls. The other consumers of the group get the queues.

        The close is completed even if the task that awaits it is cancelled.
        """
        self._host._check_process()
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        try:
            await self._host._run(self.blocking.close)
        except ClosedError:
            return  # closed with the store

    def __repr__(self) -> str:
        return f"<Async{repr(self.blocking)[1:]}"
