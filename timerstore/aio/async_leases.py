"""An iterator over leased messages, for asyncio.

    async for message in store.lease_consumer("orders", "billing", lease=60):
        async with consumer.handling(message): ...

Raises: MessageError for arguments that an iteration cannot have; the errors of TimerStore.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.leases import AckResult, LeasedMessage
from timerstore._engine.leases.lease_consumer import LONGEST_WAIT_S, Beats, described
from timerstore._engine.leases.receive_request import check_loop
from timerstore.errors import ClosedError, LeaseLostError, TimerStoreError


class AsyncLeaseConsumer(NotCopyable):
    """Leases the messages of a topic for a group, one at a time; as LeaseConsumer."""

    def __init__(
        self,
        receive: Callable[..., Awaitable[list[LeasedMessage]]],
        ack: Callable[[LeasedMessage], Awaitable[AckResult]],
        nack: Callable[..., Awaitable[AckResult]],
        topic: str | Sequence[str],
        group: str,
        wait: float | None,
        options: dict[str, Any],
    ) -> None:
        check_loop(options)
        self.topic = topic
        self.group = group
        self._receive = receive
        self._ack = ack
        self._nack = nack
        self._wait = wait
        self._options = options

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LeasedMessage:
        found = await self._next(())
        if found is None:
            raise StopAsyncIteration
        return found

    async def _next(self, acked: Sequence[LeasedMessage]) -> LeasedMessage | None:
        """Acknowledge messages, and return the next one; None at the end."""
        wait = LONGEST_WAIT_S if self._wait is None else self._wait
        while True:
            try:
                found = await self._receive(
                    self.topic, self.group, max_count=1, wait=wait, ack=acked, **self._options
                )
            except ClosedError:
                return None
            if found or self._wait is not None:
                return found[0] if found else None
            acked = ()

    async def acking(self) -> AsyncIterator[LeasedMessage]:
        """Iterate, and acknowledge each message with the next call; as LeaseConsumer.acking."""
        found = await self._next(())
        while found is not None:
            yield found
            found = await self._next((found,))

    @asynccontextmanager
    async def handling(self, message: LeasedMessage) -> AsyncIterator[LeasedMessage]:
        """Acknowledge the message at the end of the block. If the block raises, nack it with the
        error.
        """
        try:
            yield message
        except BaseException as error:
            try:
                await self._nack(message, error=described(error))
            except TimerStoreError as failed:  # it is delivered again when its lease ends
                error.add_note(f"and then the nack failed: {failed!r}")
            raise
        await self._ack(message)


class AsyncHeartbeat(NotCopyable):
    """Renews a lease while an `async with` block runs, in a task of its own; as Heartbeat."""

    def __init__(self, renew: Callable[[], Awaitable[int]], lease_s: float) -> None:
        self._renew = renew
        self._beats = Beats(lease_s)
        self._task: asyncio.Task[None] | None = None

    @property
    def lost(self) -> LeaseLostError | None:
        """Why the lease is not held any more; None while it is."""
        return self._beats.lost

    async def __aenter__(self) -> Self:
        self._beats.begin()
        await self._renew()
        self._beats.renewed()
        self._task = asyncio.create_task(self._run(), name="timerstore-heartbeat")
        return self

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._beats.interval_s)
            if not await self._beat():
                return

    async def _beat(self) -> bool:
        """Renew the lease; return whether to renew it again."""
        self._beats.begin()
        try:
            await self._renew()
        except TimerStoreError as error:
            return self._beats.failed(error)
        self._beats.renewed()
        return True

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        assert self._task is not None, "left without having been entered"
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._beats.may_be_lost:
            await self._beat()
        if error is None and self.lost is not None:
            raise self.lost
