"""`receive(ack=)`: acknowledge messages and receive the next ones in one call, with one sync."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import inside
from tests.support.leasing import bodies, put, take
from tests.support.stepped_aio import stepped_store
from timerstore import AckResult, MessageError
from timerstore._engine.read.waiting import WaitingPoll
from timerstore.errors import FullError


@pytest.fixture
def syncing(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "s", small(flush="sync"))
    yield bench
    bench.close()


def counted_syncs(store: Any) -> list[int]:
    found: list[int] = []
    inside(store).signals.synced.subscribe(found.append)
    return found


@pytest.mark.parametrize("as_text", [False, True])
def test_acks_and_leases_share_a_sync(syncing: Bench, *, as_text: bool) -> None:
    put(syncing, b"a", b"b", b"c")
    first = take(syncing, 2)
    syncs = counted_syncs(syncing.store)
    done: list[Any] = [one.receipt if as_text else one for one in first]
    assert bodies(take(syncing, 5, ack=done)) == [b"c"]
    assert len(syncs) == 1
    assert inside(syncing.store).log.durable == inside(syncing.store).log.end
    assert syncing.store.ack_many(first) == [AckResult.SETTLED] * 2


def test_acks_are_durable_when_nothing_is_received(syncing: Bench) -> None:
    put(syncing, b"a")
    (first,) = take(syncing)
    syncs = counted_syncs(syncing.store)
    assert take(syncing, ack=iter([first])) == []
    assert len(syncs) == 1
    assert inside(syncing.store).log.durable == inside(syncing.store).log.end
    assert syncing.store.ack(first) is AckResult.SETTLED


def test_acks_are_durable_before_a_wait(syncing: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(syncing, b"a")
    (first,) = take(syncing)
    durable = []

    def enter(_self: WaitingPoll, _wake: Callable[[], None]) -> bool:
        log = inside(syncing.store).log
        durable.append(log.durable == log.end)
        raise FullError("no wait in this test")

    monkeypatch.setattr(WaitingPoll, "enter", enter)
    with pytest.raises(FullError):
        take(syncing, ack=[first], wait=60)
    assert durable == [True]
    assert syncing.store.ack(first) is AckResult.SETTLED


def test_begun_receive_acknowledges_first(syncing: Bench) -> None:
    put(syncing, b"a")
    (first,) = take(syncing)
    syncing.store.begin_receive("t", "g", ack=[first]).end()
    assert inside(syncing.store).log.durable == inside(syncing.store).log.end
    assert syncing.store.ack(first) is AckResult.SETTLED


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        (["{first}", "no receipt"], {}, r"ack\[1\]: "),
        ("{first}", {}, "ack: wanted several, got "),
        (7, {}, "ack: wanted several, got "),
        (["{first}"], {"max_count": 0}, "max_count: "),
    ],
)
def test_wrong_arguments_change_nothing(
    bench: Bench, given: Any, more: dict[str, Any], said: str
) -> None:
    put(bench, b"a", b"b")
    (first,) = take(bench, 1)
    if isinstance(given, list):
        given = [one.format(first=first.receipt) for one in given]
    with bench.refused(MessageError, said):
        bench.store.receive("t", "g", ack=given, **more)
    assert bodies(take(bench)) == [b"b"]
    assert bench.store.ack(first) is AckResult.ACKED


def test_lease_that_is_over_does_not_fail_the_call(bench: Bench) -> None:
    put(bench, b"a", b"b")
    (first,) = take(bench, 1, lease=1)
    bench.clock.advance(2000)
    bench.turn()
    assert sorted(bodies(take(bench, ack=[first]))) == [b"a", b"b"]


def test_awaited_calls_of_one_turn_share_a_sync(tmp_path: Path) -> None:
    """A task that settles, one that receives, and one that does both."""

    async def run() -> None:
        async with stepped_store(tmp_path / "s", flush="sync") as one:
            store = one.store
            await one.put(b"a", b"b", b"c", b"d")
            first, second, third = await store.receive("t", "g", max_count=3)
            syncs = counted_syncs(store.blocking)
            acked, nacked, found, none = await asyncio.gather(
                store.ack(first),
                store.nack(second, delay=5),
                store.receive("t", "g", ack=[third]),
                store.receive("t", "other", ack=["no receipt"]),
                return_exceptions=True,
            )
            assert (acked, nacked) == (AckResult.ACKED, AckResult.NACKED)
            assert isinstance(found, list)
            assert bodies(found) == [b"d"]
            assert isinstance(none, MessageError)
            assert len(syncs) == 1
            log = inside(store.blocking).log
            assert log.durable == log.end
            assert await store.ack(third) is AckResult.SETTLED

    asyncio.run(run())


# --- loops ---


def test_acking_loop_acknowledges_each_message_with_the_next_call(syncing: Bench) -> None:
    put(syncing, b"a", b"b", b"c")
    seen = []
    syncs: list[int] = []
    for message in syncing.store.lease_consumer("t", "g", wait=0).acking():
        if not seen:
            syncs = counted_syncs(syncing.store)
        seen.append(message)
    assert bodies(seen) == [b"a", b"b", b"c"]
    assert len(syncs) == 3
    assert syncing.store.ack_many(seen) == [AckResult.SETTLED] * 3


def test_acking_loop_leaves_the_message_at_which_it_ends(bench: Bench) -> None:
    put(bench, b"a", b"b", b"c")
    seen = []
    for message in bench.store.lease_consumer("t", "g", wait=0).acking():
        seen.append(message)
        if message.body == b"b":
            break
    assert bench.store.ack_many(seen) == [AckResult.SETTLED, AckResult.ACKED]
    assert bodies(take(bench)) == [b"c"]


def test_awaited_acking_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with stepped_store(tmp_path / "s") as one:
            await one.put(b"a", b"b")
            consumer = one.store.lease_consumer("t", "g", wait=0)
            seen = [message async for message in consumer.acking()]
            assert bodies(seen) == [b"a", b"b"]
            assert await one.store.ack_many(seen) == [AckResult.SETTLED] * 2

    asyncio.run(run())
