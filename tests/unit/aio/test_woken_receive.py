"""A `receive` that a message woke alone reads on the loop of a server, others in threads."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.inside import inside
from timerstore._engine.leases.leases import Leases
from timerstore.aio import AsyncTimerStore


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that have read messages of topic t for a lease."""
    threads: list[int] = []
    take: Callable[..., Any] = Leases._take

    def taken(self: Leases, *given: Any, **named: Any) -> Any:
        found = take(self, *given, **named)
        if found:
            threads.append(threading.get_ident())
        return found

    monkeypatch.setattr(Leases, "_take", taken)
    return threads


def _received(bench: Bench, reads: list[int], count: int, *, may_block: bool) -> list[bytes]:
    """Let `count` calls wait, put as many messages at once, and return what the calls receive."""

    async def body(pool: ThreadPoolExecutor) -> list[bytes]:
        store: Any = AsyncTimerStore(bench.local, pool, may_block=may_block)
        topics = [f"t{k}" for k in range(count)]
        for one in topics:  # makes the topic, and that of its retries
            bench.local.put(one, b"first")
            bench.turn()
            bench.local.ack_many(bench.local.receive(one, "g"))
        reads.clear()
        calls = [asyncio.ensure_future(store.receive(one, "g", wait=60)) for one in topics]
        while inside(bench.local).long_polls.count < 2 * count:
            await asyncio.sleep(0.0005)
        for one in topics:
            bench.local.put(one, b"x")
        bench.turn()  # wakes all of them before the loop turns
        found = [one for call in calls for one in await asyncio.wait_for(call, 20)]
        store._puts.shared.shut()
        return [one.body for one in found]

    with ThreadPoolExecutor(2) as pool:
        return asyncio.run(body(pool))


@pytest.mark.parametrize("may_block", [True, False])
def test_one_receive_reads_on_the_loop_of_a_server(
    bench: Bench, reads: list[int], may_block: bool
) -> None:
    assert _received(bench, reads, 1, may_block=may_block) == [b"x"]
    assert [one == threading.get_ident() for one in reads] == [may_block]


def test_several_receives_read_in_threads(bench: Bench, reads: list[int]) -> None:
    assert _received(bench, reads, 3, may_block=True) == [b"x"] * 3
    assert threading.get_ident() not in reads
