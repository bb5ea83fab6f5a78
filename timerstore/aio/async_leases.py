"""An iterator over leased messages, for asyncio.

    async for message in store.lease_consumer("orders", "billing", lease=60):
        async with consumer.handling(message): ...

Raises: MessageError for arguments that an iteration cannot have; the errors of TimerStore.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from timerstore._engine.base.owner import Owner
from timerstore._engine.leases import AckResult, LeasedMessage
from timerstore._engine.leases.lease_consumer import LONGEST_WAIT_S, described
from timerstore._engine.leases.receive_request import check_loop
from timerstore.errors import ClosedError, TimerStoreError


class AsyncLeaseConsumer(Owner):
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
        wait = LONGEST_WAIT_S if self._wait is None else self._wait
        while True:
            try:
                found = await self._receive(
                    self.topic, self.group, max_count=1, wait=wait, **self._options
                )
            except ClosedError:
                raise StopAsyncIteration from None
            if found:
                return found[0]
            if self._wait is not None:
                raise StopAsyncIteration

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
