"""The answers of a connection that its client has not taken yet."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from timerstore.net.answer_queue import AnswerQueue
from timerstore.net.frames import frame
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits


class Transport:
    """A transport whose client takes nothing until `take`."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.error: Exception | None = None
        self.closing = False
        self.is_broken = False  # whether a write finds that the client is gone

    def write(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.closing = self.is_broken
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes))

    def is_closing(self) -> bool:
        return self.closing


class Made:
    """A queue and its transport."""

    def __init__(self, **limits: int) -> None:
        self.transport = Transport()
        self.overflows = 0
        self.counters = ServerCounters()
        self.queue = AnswerQueue(
            cast("Any", self.transport), ServerLimits(**limits), self.counters, self._overflow
        )

    def _overflow(self) -> None:
        self.overflows += 1
        self.transport.closing = True


def _run(test: Callable[[], Any]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def test_answers_of_a_turn_are_written_together() -> None:
    async def test() -> None:
        made = Made()
        for one in (b"a", b"bc"):
            made.queue.add(one)
        assert made.transport.writes == []
        await asyncio.sleep(0)
        assert made.transport.writes == [frame(b"a") + frame(b"bc")]
        assert made.counters.net_sent_bytes == 11

    _run(test)


@pytest.mark.parametrize(("size", "is_written"), [(100, False), (101, True)])
def test_answers_above_unsent_bytes_are_written_before_the_turn_ends(
    size: int, is_written: bool
) -> None:
    async def test() -> None:
        made = Made(unsent_bytes=100)
        made.queue.add(bytes(60))
        made.queue.add(bytes(size - 60))
        assert bool(made.transport.writes) == is_written
        await asyncio.sleep(0)
        assert b"".join(made.transport.writes) == frame(bytes(60)) + frame(bytes(size - 60))

    _run(test)


@pytest.mark.parametrize(("size", "overflows"), [(96, 0), (97, 1)])
def test_client_that_leaves_more_than_unsent_bytes_max_is_closed(size: int, overflows: int) -> None:
    async def test() -> None:
        made = Made(unsent_bytes_max=100)
        made.queue.add(bytes(size))
        await asyncio.sleep(0)
        assert made.overflows == overflows

    _run(test)


def test_large_answers_are_not_copied() -> None:
    async def test() -> None:
        made = Made()
        large = bytes(64 << 10)
        for one in (b"a", large, b"b"):
            made.queue.add(one)
        await asyncio.sleep(0)
        first, second, third = made.transport.writes
        assert first == frame(b"a") + frame(large)[:4]
        assert second is large
        assert third == frame(b"b")

    _run(test)


def test_answers_that_cannot_be_written_close_the_connection() -> None:
    async def test() -> None:
        made = Made()
        made.transport.error = MemoryError()
        made.queue.add(b"a")
        await asyncio.sleep(0)
        assert made.overflows == 1

    _run(test)


def test_closed_connection_gets_no_answers() -> None:
    async def test() -> None:
        made = Made()
        made.transport.closing = True
        made.queue.add(b"a")
        await asyncio.sleep(0)
        assert (made.transport.writes, made.overflows) == ([], 0)

    _run(test)


@pytest.mark.parametrize(
    ("change", "unsent"),
    [
        ({}, []),
        ({"closing": True}, ["a", "b"]),
        ({"is_broken": True}, ["a", "b"]),
        ({"error": MemoryError()}, ["a", "b"]),
    ],
)
def test_receipts_in_answers_that_were_not_written_are_unsent(
    change: dict[str, Any], unsent: list[str]
) -> None:
    async def test() -> None:
        made = Made()
        made.queue.add(b"first", ["a"])
        made.queue.add(b"second")
        made.queue.add(b"third", ["b"])
        for name, value in change.items():
            setattr(made.transport, name, value)
        await asyncio.sleep(0)
        assert made.queue.unsent == unsent

    _run(test)


def test_receipts_in_answers_that_are_left_unread_are_unsent() -> None:
    async def test() -> None:
        made = Made(unsent_bytes_max=100)
        made.queue.add(bytes(97), ["a"])
        await asyncio.sleep(0)
        assert made.queue.unsent == ["a"]

    _run(test)


def test_answers_of_a_turn_are_counted_from_nothing() -> None:
    """A client may have acknowledged the messages of earlier answers: they are not given back."""

    async def test() -> None:
        made = Made(unsent_bytes=100)
        made.queue.add(bytes(60), ["a"])
        await asyncio.sleep(0)
        made.queue.add(bytes(60), ["b"])
        assert len(made.transport.writes) == 1, "the second answer waits for the end of its turn"
        made.transport.closing = True
        await asyncio.sleep(0)
        assert made.queue.unsent == ["b"]

    _run(test)
