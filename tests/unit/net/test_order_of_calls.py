"""The order of calls: an answered call is visible to the calls that are sent after it.

The loop of a server makes some calls itself, and threads make others. The work of a thread is held
here, so that a call that could overtake another one does.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.held_sync import PATIENCE_S
from tests.support.served_bench import ServedBench
from timerstore import AckResult, TimerStore
from timerstore.aio import quick_work
from timerstore.aio.gathered_calls import GatheredCalls
from timerstore.net import server_connection
from timerstore.net.fair_pool import FairPool, PoolClient, pool_client
from timerstore.net.server_connection import ServerConnection
from timerstore.net.wire_messages import encode, memory_of


@pytest.fixture(params=["quick", "slow"])
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ServedBench]:
    """A server. quick: its loop makes syncs and leases. slow: threads make them."""
    monkeypatch.setattr(quick_work, "_QUICK_S", 1e9 if request.param == "quick" else -1.0)
    one = ServedBench(Bench(tmp_path / "store", small(flush="sync")), tmp_path / "x.sock")
    yield one
    one.close()


class Held:
    """A call of the store that waits in its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(TimerStore, name)
        self.is_reached, self.is_released = Event(), Event()

        def call(*given: Any, **named: Any) -> Any:
            self.is_reached.set()
            self.is_released.wait(PATIENCE_S)
            return real(*given, **named)

        monkeypatch.setattr(TimerStore, name, call)


def _bodies(served: ServedBench, topic: str) -> list[bytes]:
    served.bench.turn()
    return served.bench.bodies(topic)


def test_put_after_the_answer_to_another_follows_it(served: ServedBench) -> None:
    """The first put of a topic needs a thread, the others are made by the loop."""
    remote = served.connect()
    receipts = [remote.put("new", b"%d" % number) for number in range(5)]
    assert [one.log_offset for one in receipts] == sorted(one.log_offset for one in receipts)
    assert _bodies(served, "new") == [b"0", b"1", b"2", b"3", b"4"]


def test_put_in_flight_with_another_may_overtake_it_and_none_is_lost(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.bench.store.put("old", b"makes the topic")
    raw = served.raw()
    raw.hello()
    held = Held(monkeypatch, "put")
    raw.send_all([[2, 1, "put", ["new", b"a"]], [2, 2, "put", ["old", b"b"]]])
    assert held.is_reached.wait(PATIENCE_S)
    assert raw.reply()[:2] == [5, 2]
    raw.send([2, 3, "put", ["old", b"c"]])  # after the answer to b
    assert raw.reply()[:2] == [5, 3]
    held.is_released.set()
    assert raw.reply()[:2] == [5, 1]
    assert _bodies(served, "old") == [b"makes the topic", b"b", b"c"]
    assert _bodies(served, "new") == [b"a"]


def test_calls_of_another_connection_see_what_was_answered(served: ServedBench) -> None:
    first, second = served.connect(), served.connect()
    for number in range(10):
        first.put("t", b"%d" % number, message_id=f"m{number}")
        assert second.put("t", b"%d" % number, message_id=f"m{number}").duplicate
        served.bench.turn()
        (message,) = second.receive("t", "g")
        assert message.body == b"%d" % number
        assert second.ack(message) is AckResult.ACKED
        assert first.ack(message.receipt) is AckResult.SETTLED
        assert first.receive("t", "g") == []


def test_settling_after_an_answer_sees_it_while_a_thread_is_busy(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.bench.store.put("t", b"x")
    served.bench.turn()
    raw, remote = served.raw(), served.connect()
    raw.hello()
    held = Held(monkeypatch, "topics")
    raw.send([2, 1, "topics"])
    assert held.is_reached.wait(PATIENCE_S)
    (message,) = remote.receive("t", "g")
    longer = remote.extend(message, lease=60)
    assert remote.ack(longer) is AckResult.ACKED
    assert remote.ack(message) is AckResult.SETTLED
    held.is_released.set()
    assert raw.reply()[:2] == [5, 1]


@pytest.mark.parametrize("limit", [2, 3])
def test_connection_starts_a_limited_number_of_calls_in_a_turn(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Then other connections start theirs."""
    monkeypatch.setattr(server_connection, "_TURN_CALLS", limit)
    assert _most_calls_in_a_turn(served, monkeypatch) == limit


@pytest.mark.parametrize("limit", [2, 3])
def test_connection_starts_calls_of_a_limited_memory_in_a_turn(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    one_bytes = memory_of(encode([2, 1, "put", [5, b"x"]]))
    monkeypatch.setattr(server_connection, "_TURN_BYTES", limit * one_bytes - 1)
    assert _most_calls_in_a_turn(served, monkeypatch) == limit


def _most_calls_in_a_turn(served: ServedBench, monkeypatch: pytest.MonkeyPatch) -> int:
    """Send 11 calls together; return how many begin in one turn of the loop."""
    raw = served.raw()
    raw.hello()
    turn, counts = count(), Counter[int]()
    real = ServerConnection._start

    def start(self: ServerConnection, *given: Any) -> None:
        nonlocal now
        counts[now] += 1
        if counts[now] == 1:
            self._loop.call_soon(next_turn)  # runs after the calls that this turn starts
        real(self, *given)

    def next_turn() -> None:
        nonlocal now
        now = next(turn)

    now = next(turn)
    monkeypatch.setattr(ServerConnection, "_start", start)
    raw.send_all([2, k, "put", [5, b"x"]] for k in range(1, 12))
    assert sorted(raw.reply()[1] for _ in range(11)) == list(range(1, 12))
    return max(counts.values())


def test_turn_is_made_although_the_client_of_its_first_call_may_begin_no_job() -> None:
    """A client that takes no answers must not keep those of the others in its turn."""

    async def test() -> None:
        pool, stopped = FairPool(1, "pool", asyncio.get_running_loop()), PoolClient(None)
        pool.pause(stopped)
        gathered: GatheredCalls[int, int] = GatheredCalls(lambda: None, pool, list, may_block=False)

        async def call(client: PoolClient, value: int) -> int:
            pool_client.set(client)
            return await gathered.call(value)

        calls = [asyncio.create_task(call(one, 1)) for one in (stopped, PoolClient(None))]
        assert await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_S) == [1, 1]
        pool.shutdown()

    asyncio.run(test())


def test_turn_is_not_made_by_the_loop_while_a_thread_makes_an_earlier_one() -> None:
    """Else its calls would overtake those of the earlier turn, and wait for their locks."""
    made: list[tuple[str, bool]] = []
    is_reached, is_released = Event(), Event()

    def make_all(names: Sequence[str]) -> list[str]:
        is_on_loop = current_thread() is main_thread()
        made.extend((one, is_on_loop) for one in names)
        if names == ["first"]:
            is_reached.set()
            is_released.wait(PATIENCE_S)
        return list(names)

    async def test(pool: ThreadPoolExecutor) -> None:
        gathered = GatheredCalls(lambda: None, pool, make_all, may_block=True)
        gathered._quick._quick_from_s = float("inf")  # a thread makes the first
        first = asyncio.create_task(gathered.call("first"))
        while not is_reached.is_set():
            await asyncio.sleep(0)
        gathered._quick._quick_from_s = 0.0
        second = asyncio.create_task(gathered.call("second"))
        while len(made) < 2:
            await asyncio.sleep(0)
        is_released.set()
        assert await asyncio.gather(first, second) == ["first", "second"]
        while gathered.running:  # a thread ends its turn after the answers
            await asyncio.sleep(0)
        gathered._quick._quick_from_s = 0.0
        assert await gathered.call("third") == "third"

    with ThreadPoolExecutor(2) as pool:
        asyncio.run(test(pool))
    assert made == [("first", False), ("second", False), ("third", True)]
