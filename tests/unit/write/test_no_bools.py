"""A bool is rejected wherever the public API takes a number."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore.aio
from tests.support.bench import NOW, Bench, small
from timerstore import ConfigError, DelayQueue, MessageError, StoreConfig, TimerStore

BOOLS = [True, False, np.True_]

CALLS: dict[str, Callable[[TimerStore, Any], object]] = {
    "put delay": lambda store, it: store.put("t", b"x", delay=it),
    "put deliver_ms": lambda store, it: store.put("t", b"x", deliver_ms=it),
    "put level": lambda store, it: store.put("t", b"x", level=it),
    "put queue_id": lambda store, it: store.put("t", b"x", queue_id=it),
    "put_many delay": lambda store, it: store.put_many("t", [b"x"], delay=it),
    "put_many delays": lambda store, it: store.put_many("t", [b"x", b"y"], delay=[1, it]),
    "put_many delays, only": lambda store, it: store.put_many("t", [b"x"], delay=(it,)),
    "put_many deliver_ms": lambda store, it: store.put_many("t", [b"x"], deliver_ms=it),
    "put_many times": lambda store, it: store.put_many("t", [b"x", b"y"], deliver_ms=[NOW, it]),
    "put_many array": lambda store, it: store.put_many("t", [b"x"], deliver_ms=np.array([it])),
    "put_many level": lambda store, it: store.put_many("t", [b"x"], level=it),
    "put_many queue_id": lambda store, it: store.put_many("t", [b"x"], queue_id=it),
    "reschedule delay": lambda store, it: store.reschedule(_waits(store), delay=it),
    "reschedule deliver_ms": lambda store, it: store.reschedule(_waits(store), deliver_ms=it),
    "pull queue_id": lambda store, it: store.pull("t", it, 0),
    "pull offset": lambda store, it: store.pull("t", 0, it),
    "pull max_count": lambda store, it: store.pull("t", 0, 0, max_count=it),
    "pull wait": lambda store, it: store.pull("t", 0, 0, wait=it),
    "pull_batch wait": lambda store, it: store.pull_batch("t", 0, 0, wait=it),
    "begin_pull wait": lambda store, it: store.begin_pull("t", 0, 0, wait=it),
    "consumer wait": lambda store, it: store.consumer("t", "g", wait=it),
    "consumer queues": lambda store, it: store.consumer("t", "g", queues=[it]),
    "poll max_count": lambda store, it: store.consumer("t", "g").poll(it),
    "poll wait": lambda store, it: store.consumer("t", "g").poll(1, it),
    "begin_poll wait": lambda store, it: store.consumer("t", "g").begin_poll(1, it),
    "seek": lambda store, it: store.consumer("t", "g").seek(it),
    "seek time_ms": lambda store, it: store.consumer("t", "g").seek(time_ms=it),
    "seek queue_id": lambda store, it: store.consumer("t", "g").seek(0, queue_id=it),
    "commit": lambda store, it: store.consumer("t", "g").commit({0: it}),
    "offset_at queue_id": lambda store, it: store.offset_at("t", it, NOW),
    "offset_at time_ms": lambda store, it: store.offset_at("t", 0, it),
    "query begin_ms": lambda store, it: store.query("t", "k", begin_ms=it),
    "query end_ms": lambda store, it: store.query("t", "k", end_ms=it),
    "query max_count": lambda store, it: store.query("t", "k", max_count=it),
    "pending begin_ms": lambda store, it: list(store.pending(begin_ms=it)),
    "pending end_ms": lambda store, it: list(store.pending(end_ms=it)),
    "ingest version": lambda store, it: store.ingest("s", it, []),
    "delay queue add": lambda _store, it: DelayQueue().add("k", it),
    "delay queue expire": lambda _store, it: DelayQueue().expire(it),
}


def _waits(store: TimerStore) -> Any:
    return store.put("t", b"x", delay=10)


@pytest.mark.parametrize("it", BOOLS, ids=repr)
@pytest.mark.parametrize("name", CALLS)
def test_bool_argument_is_rejected(bench: Bench, name: str, it: Any) -> None:
    bench.store.put("t", b"there", queue_id=1)
    bench.turn()
    before = bench.store.stats()["put_messages"]
    with pytest.raises((MessageError, ValueError, TypeError)) as caught:
        CALLS[name](bench.store, it)
    assert "wanted" in str(caught.value) or "got" in str(caught.value)
    assert bench.store.stats()["put_messages"] == before + ("reschedule" in name)


@pytest.mark.parametrize(
    "name", [n for n, v in StoreConfig().__dict__.items() if type(v) in (int, float)]
    if hasattr(StoreConfig(), "__dict__")
    else [n for n in StoreConfig.__slots__ if type(getattr(StoreConfig(), n)) in (int, float)],
)  # fmt: skip
def test_bool_setting_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        StoreConfig(**{name: True})


def test_bool_worker_count_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers"):
        timerstore.aio.open(tmp_path, small(), workers=True)

    async def main() -> None:
        async with timerstore.aio.open(tmp_path, small()) as store:
            await store.put("t", b"x", flush="sync")
            consumer = await store.consumer("t", "g")
            with pytest.raises(MessageError, match="wait"):
                await store.pull("t", 0, 0, wait=True)
            with pytest.raises(MessageError, match="max_count"):
                await consumer.poll(True)

    asyncio.run(main())
