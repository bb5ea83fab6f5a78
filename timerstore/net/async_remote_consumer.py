"""A group's consumer in the server, for a client with asyncio; as remote_consumer.py.

Thread safety: use it on the loop of its connection.
Raises: as RemoteConsumer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Self

from timerstore._engine.base.owner import AsyncClosing
from timerstore.errors import ClosedError, ConnectionLostError, MessageError, TimerStoreError
from timerstore.net.async_channel import AsyncChannel
from timerstore.net.attempt_limits import RetryLimit
from timerstore.net.call_table import CONSUMER_CALLS
from timerstore.net.channel_parts import NotSentError
from timerstore.net.packed_arguments import packed_options
from timerstore.net.remote_consumer import (
    LONGEST_WAIT_S,
    commit_options,
    lost_pause_s,
    wait_seconds,
)
from timerstore.types.messages import Message

Join = Callable[[], Awaitable[tuple[int, AsyncChannel]]]


class AsyncRemoteConsumer(AsyncClosing):
    """A reader of a topic for a group; `AsyncRemoteStore.consumer` returns it. Close it, or use
    `async with`.
    """

    def __init__(
        self,
        join: Join,
        limit: Callable[[object], RetryLimit],
        number: int,
        channel: AsyncChannel,
        topic: str,
        group: str,
        wait: float | None,
    ) -> None:
        """`join`: makes the consumer in the server again; returns its number and connection.
        `limit`: makes the limit of the attempts of one call, which waits for some seconds.
        """
        self.topic = topic
        self.group = group
        self.wait = wait
        """How many seconds iterating waits for the next message; None: without a limit."""
        self._join = join
        self._limit = limit
        self._interrupted: tuple[int, AsyncChannel] | None = None
        self._number, self._channel = number, channel
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._has_rejoined = False

    async def poll(self, max_count: int = 32, wait: float = 0.0) -> list[Message]:
        """Return the next messages of its queues, as RemoteConsumer.poll."""
        loop = asyncio.get_running_loop()
        deadline, left = loop.time() + wait_seconds(wait), wait
        limit = self._limit(wait)
        while True:
            packed = packed_options("poll", {"max_count": max_count, "wait": left})
            number, channel = await self._joined()
            try:
                found: list[Message] = await channel.request(
                    CONSUMER_CALLS["poll"], [], packed, number
                )
            except (ConnectionLostError, NotSentError) as error:
                if not channel.is_lost:  # no answer came in time: messages may be on their way
                    self._interrupted = number, channel
                await asyncio.sleep(lost_pause_s(limit, error))
                left = max(deadline - loop.time(), 0.0)
            except (ClosedError, MessageError):
                self._check_open()
                if self._number == number:
                    raise
                # another task was interrupted in `poll`, and this consumer has joined again
            except TimerStoreError:
                raise
            except BaseException:  # messages may be on their way, which the server does not repeat
                self._interrupted = number, channel
                raise
            else:
                self._has_rejoined = False
                return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        wait = LONGEST_WAIT_S if self.wait is None else self.wait
        try:
            while not (found := await self.poll(1, wait)):
                if self.wait is not None:
                    raise StopAsyncIteration
        except ClosedError:
            raise StopAsyncIteration from None
        return found[0]

    async def commit(self, through: Message | Mapping[int, int] | None = None) -> dict[int, int]:
        """Commit the messages handed out here, as RemoteConsumer.commit."""
        options = commit_options(self.topic, through)
        number, channel = await self._joined(is_commit=bool(options))
        if self._has_rejoined:
            return {}
        try:
            done: dict[int, int] = await channel.request(
                CONSUMER_CALLS["commit"], [], options, number
            )
        except (ConnectionLostError, NotSentError):
            return {}
        return done

    async def seek(
        self,
        offset: int | None = None,
        *,
        time: datetime | None = None,
        time_ms: int | None = None,
        queue_id: int | None = None,
    ) -> dict[int, int]:
        """Continue at another position, as RemoteConsumer.seek."""
        given = {"offset": offset, "time": time, "time_ms": time_ms, "queue_id": queue_id}
        options = packed_options("seek", {k: one for k, one in given.items() if one is not None})
        at: dict[int, int] = await self._ask("seek", options)
        return at

    async def queues(self) -> tuple[int, ...]:
        """Return the queues that belong to this consumer now."""
        return tuple(await self._ask("queues", {}))

    async def _ask(self, name: str, options: Mapping[str, Any]) -> Any:
        number, channel = await self._joined()
        try:
            return await channel.request(CONSUMER_CALLS[name], [], options, number)
        except NotSentError as error:
            raise ConnectionLostError(f"the connection was lost before `{name}`") from error

    async def _joined(self, *, is_commit: bool = False) -> tuple[int, AsyncChannel]:
        """Return the consumer in the server, as RemoteConsumer._joined."""
        async with self._lock:
            self._check_open()
            present = self._number, self._channel
            is_interrupted = self._interrupted == present and not is_commit
            if not self._channel.is_lost:
                if not is_interrupted:
                    return present
                await self._leave()
            self._number, self._channel = await self._join()
            self._has_rejoined = True
            if self._is_closed:  # since then; in the server it would keep its queues
                await self._leave()
                self._check_open()
            return self._number, self._channel

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(
                "the consumer is closed", where=f"topic {self.topic} group {self.group}"
            )

    async def close(self) -> None:
        """Leave the group without a commit; the other consumers get its queues."""
        if self._is_closed or self._channel.is_lost:
            self._is_closed = True
            return
        self._is_closed = True
        await self._leave()

    async def _leave(self) -> None:
        try:
            await self._channel.request(CONSUMER_CALLS["close"], [], {}, self._number)
        except (NotSentError, TimerStoreError):
            return  # it has ended with its connection

    def __repr__(self) -> str:
        return f"<AsyncRemoteConsumer topic={self.topic!r} group={self.group!r}>"
