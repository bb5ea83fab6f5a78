"""Tasks that are cancelled at any turn of a call: the call is made as a whole, or not at all."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from tests.support.bench import Bench
from tests.support.ways import run
from timerstore import AckResult, CancelResult

TURNS = 7
IN_POOL = {"put of a new topic, synced", "put with a key", "put_many"}
"""A task of the store's own process may be cancelled before a thread has begun with these."""


class Case(NamedTuple):
    """A call of what `prepare` returned, and whether it was made."""

    prepare: Callable[[Any], Any]
    call: Callable[[Any, Any], Awaitable[Any]]
    is_made: Callable[[Any, Any], Any]


def _nothing(_store: Any) -> None:
    return None


def _timer(store: Any) -> Any:
    return store.put("u", b"x", delay=60)


def _leased(store: Any) -> Any:
    (found,) = store.receive("t", "g", lease=60)
    return found


def _is_pending(store: Any, **wanted: Any) -> bool:
    return any(
        all(getattr(one, name) == value for name, value in wanted.items())
        for one in store.pending()
    )


CASES: dict[str, Case] = {
    "put": Case(
        _nothing,
        lambda store, _: store.put("t", b"x", delay=5),
        lambda store, _: _is_pending(store, topic="t"),
    ),
    "put of a new topic, synced": Case(
        _nothing,
        lambda store, _: store.put("new", b"x", delay=5, flush="sync"),
        lambda store, _: _is_pending(store, topic="new"),
    ),
    "put with a key": Case(
        _nothing,
        lambda store, _: store.put("u", b"x", delay=5, key="k", replace=True),
        lambda store, _: _is_pending(store, topic="u"),
    ),
    "put_many": Case(
        _nothing,
        lambda store, _: store.put_many("t", [b"x", b"y"], delay=5),
        lambda store, _: len(list(store.pending(topic="t"))) == 2,
    ),
    "cancel": Case(
        _timer,
        lambda store, one: store.cancel(one),
        lambda store, one: store.cancel(one) is CancelResult.ALREADY_CANCELLED,
    ),
    "reschedule": Case(
        _timer,
        lambda store, one: store.reschedule(one, delay=7),
        lambda store, one: not _is_pending(store, due_ms=one.due_ms),
    ),
    "ack": Case(
        _leased,
        lambda store, one: store.ack(one),
        lambda store, one: store.ack(one) is AckResult.SETTLED,
    ),
    "nack": Case(
        _leased,
        lambda store, one: store.nack(one, delay=9),
        lambda store, one: store.backlog("t", "g").in_backoff == 1,
    ),
    "bury": Case(
        _leased,
        lambda store, one: store.bury(one),
        lambda store, one: store.ack(one) is AckResult.SETTLED,
    ),
    "extend": Case(
        _leased,
        lambda store, one: store.extend(one, lease=90),
        lambda store, one: not _is_pending(store, due_ms=one.lease_until_ms),
    ),
    "renew": Case(
        _leased,
        lambda store, one: store.renew(one, lease=90),
        lambda store, one: not _is_pending(store, due_ms=one.lease_until_ms),
    ),
    "pull": Case(_nothing, lambda store, _: store.pull("t", 0, 0), lambda *_: True),
    "query": Case(_nothing, lambda store, _: store.query("t", "k"), lambda *_: True),
}


@pytest.mark.parametrize("name", CASES)
def test_cancelled_call_is_made_if_it_began(bench: Bench, name: str) -> None:
    """Whatever turn of the loop it is cancelled in; and the next call works."""
    case = CASES[name]
    for turns in range(1, TURNS):
        bench.store.put("t", b"x")
        bench.turn()
        prepared = case.prepare(bench.store)

        async def cancelled(store: Any, prepared: Any = prepared, turns: int = turns) -> None:
            task = asyncio.ensure_future(case.call(store, prepared))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        run(cancelled(bench.store.one))
        bench.store.stats()  # a later call of the same client
        for _ in range(1 if name in IN_POOL and not bench.is_connected else 2000):
            bench.turn()
            if case.is_made(bench.store, prepared):
                break
        else:
            assert name in IN_POOL, f"{name}, cancelled after {turns} turns, was not made"
            assert not bench.is_connected
        _clean(bench)


def _clean(bench: Bench) -> None:
    bench.turn(200_000)
    for one in bench.store.receive("t", "g", max_count=99):
        bench.store.ack(one)
    bench.turn()


def test_call_that_is_cancelled_before_its_first_turn_is_not_made(bench: Bench) -> None:
    async def body(store: Any) -> None:
        task = asyncio.ensure_future(store.put("u", b"x", delay=5))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(body(bench.store.one))
    assert list(bench.store.pending()) == []


def test_many_cancelled_calls_do_not_affect_others(bench: Bench) -> None:
    """Every second task of one turn is cancelled."""

    async def body(store: Any) -> None:
        await store.put_many("t", [b"%d" % k for k in range(40)])
        bench.turn()
        leased = await store.receive("t", "g", max_count=40)
        tasks = [asyncio.ensure_future(store.ack(one)) for one in leased]
        puts = [asyncio.ensure_future(store.put("t", b"x", flush="sync")) for _ in range(40)]
        await asyncio.sleep(0)
        for one in (*tasks[::2], *puts[::2]):
            one.cancel()
        acked = await asyncio.gather(*tasks[1::2])
        receipts = await asyncio.gather(*puts[1::2])
        assert acked == [AckResult.ACKED] * 20
        assert len({one.message_id for one in receipts}) == 20
        assert await store.ack_many(leased) == [AckResult.SETTLED] * 40

    run(body(bench.store.one))
    bench.turn()
    count = sum(len(bench.out("t", queue_id)) for queue_id in range(8))
    assert count == 80 if bench.is_connected else 60 <= count <= 80


def test_block_of_a_cancelled_task_returns_its_message(bench: Bench) -> None:
    async def body(store: Any) -> None:
        await store.put("t", b"a")
        bench.turn()
        (message,) = await store.receive("t", "g", backoff=0)
        is_handled = asyncio.Event()

        async def handle() -> None:
            async with store.lease_consumer("t", "g").handling(message):
                is_handled.set()
                await asyncio.Event().wait()

        handling = asyncio.create_task(handle())
        await is_handled.wait()
        handling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handling
        bench.turn()
        (again,) = await store.receive("t", "g")
        assert (again.body, again.attempt) == (b"a", 2)

    run(body(bench.store.one))
