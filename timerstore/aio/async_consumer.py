"""A consumer for asyncio: the same calls, awaited; while it waits it has no thread.

    async with store.consumer("orders", "billing") as consumer:
        async for message in consumer:
            await handle(message)
            await consumer.commit()

Threads:  the loop's own; what reads or writes files runs in the store's pool.
Holds:    a poll that is cancelled takes no message with it: messages are fetched in the pool and
          handed out on the loop, where nothing comes between that and the answer.
Fails:    as the calls of Consumer.
Source:   docs/decisions/0005-long-poll.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from timerstore._engine.base.closing import AsyncClosing
from timerstore._engine.base.owner import Owner
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.validation import wait_problems
from timerstore._engine.read.waiting_pull import Waits
from timerstore.errors import ClosedError, MessageError
from timerstore.messages import Message

Got = TypeVar("Got")
Answer = TypeVar("Answer")


class Host(Protocol):
    """What a consumer needs of its store."""

    async def _run(self, call: Callable[[], Answer]) -> Answer:
        """Make a call in a thread of the pool."""

    async def _wait(self, waiting: Waits[Got, Answer]) -> Answer:
        """Wait without a thread."""

    def _check_process(self) -> None:
        """Raise ForkedError in a forked child."""


class AsyncConsumer(AsyncClosing):
    """One reader of a topic for a group; `AsyncTimerStore.consumer` makes it. Close it, or use
    `async with`. Tasks may share it; so do threads with `blocking`.
    """

    def __init__(self, blocking: Consumer, host: Host) -> None:
        self.blocking = blocking
        """The consumer itself; its calls may block."""
        self.topic = blocking.topic
        self.group = blocking.group
        self._host = host

    async def poll(self, max_count: int = 32, wait: float = 0.0) -> list[Message]:
        """Give the next messages, at most `max_count`, of any of its queues; waits up to `wait`
        seconds for the first. None came, or all was closed meanwhile: an empty list.
        """
        if problems := wait_problems(wait):  # None as well: that is for iterating
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
        """Note that the group is done with what was handed out here; as Consumer.commit.

        Cancelled, it is carried out all the same once it has begun.
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
        """Go on elsewhere; as Consumer.seek."""
        return await self._host._run(
            partial(self.blocking.seek, offset, time=time, time_ms=time_ms, queue_id=queue_id)
        )

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that it has at present."""
        return self.blocking.queues

    async def close(self) -> None:
        """Leave the group; polls that wait are answered, the other consumers get its queues.

        It is carried out also where the task that awaits it is cancelled.
        """
        self._host._check_process()
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        try:
            await self._host._run(self.blocking.close)
        except ClosedError:
            return  # with the store

    def __repr__(self) -> str:
        return f"<Async{repr(self.blocking)[1:]}"


class Joining(Owner):
    """A consumer that joins its group: await it, or use it with `async with`."""

    def __init__(self, join: Callable[[], Awaitable[AsyncConsumer]]) -> None:
        self._join = join
        self._consumer: AsyncConsumer | None = None

    def __await__(self) -> Generator[Any, None, AsyncConsumer]:
        return self._join().__await__()

    async def __aenter__(self) -> AsyncConsumer:
        self._consumer = await self
        return self._consumer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._consumer is not None, "left without having been entered"
        await self._consumer.__aexit__(kind, error, trace)
