"""put(unique=True) of several clients and of tasks: one message of a key at a time."""

import asyncio
from pathlib import Path

import timerstore.aio
from tests.support.bench import Bench, small
from tests.support.served_bench import ServedBench
from tests.support.stepped_aio import stepped_store
from timerstore import AckResult
from timerstore.aio import AsyncTimerStore


def test_clients_see_the_messages_of_each_other(tmp_path: Path) -> None:
    served = ServedBench(Bench(tmp_path / "store", small(flush="sync")), tmp_path / "x.sock")
    first, second = served.connect(), served.connect()
    for number in range(3):
        stored = first.put("t", b"%d" % number, key="k", unique=True)
        known = second.put("t", b"no", key="k", unique=True)
        assert (stored.duplicate, known.duplicate) == (False, True)
        assert known.message_id == stored.message_id
        served.bench.turn()
        (message,) = second.receive("t", "g")
        assert message.body == b"%d" % number
        assert served.bench.store.put("t", b"no", key="k", unique=True).duplicate
        assert first.ack(message.receipt) is AckResult.ACKED
    served.close()


def test_tasks_store_one(tmp_path: Path) -> None:
    async def put_all(store: AsyncTimerStore) -> None:
        receipts = await asyncio.gather(
            *(store.put("t", b"x", key="k", unique=True, delay=9) for _ in range(20))
        )
        assert sum(not one.duplicate for one in receipts) == 1
        assert len({one.handle for one in receipts}) == 1

    async def test() -> None:
        async with stepped_store(tmp_path / "a") as opened:
            await put_all(opened.store)
        served = ServedBench(Bench(tmp_path / "b", small()), tmp_path / "x.sock")
        async with timerstore.aio.connect(served.url) as store:
            await put_all(store)
        served.close()

    asyncio.run(test())
