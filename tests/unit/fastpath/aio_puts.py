"""Stores, puts and syncs for the tests of awaited puts."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import timerstore.aio
from tests.support.bench import small
from tests.support.held_sync import HeldSync
from timerstore import StoreConfig
from timerstore.aio import AsyncTimerStore

HOUR_S = 3600
Put = Callable[[AsyncTimerStore], Awaitable[Any]]
PLAIN: dict[str, Put] = {
    "put": lambda store: store.put("t", b"body", delay=HOUR_S),
    "put now": lambda store: store.put("t", b"body"),
    "put_many": lambda store: store.put_many("t", [b"one", b"two"], delay=HOUR_S),
}
SINGLE: dict[str, Put] = {
    "tags": lambda store: store.put("t", b"body", delay=HOUR_S, tags="paid"),
    "keys": lambda store: store.put("t", b"body", keys=["k", "l"], queue_id=0),
    "properties": lambda store: store.put("t", bytearray(b"body"), properties={"x": "y"}),
    "flush": lambda store: store.put("t", b"body", delay=HOUR_S, flush="sync"),
    "message_id": lambda store: store.put("t", b"body", delay=HOUR_S, message_id="7"),
    "message_id now": lambda store: store.put("t", b"body", message_id="8", tags="paid"),
}
OTHER: dict[str, Put] = {
    "topic": lambda store: store.put("new", b"body", delay=HOUR_S, message_id="7"),
    "level": lambda store: store.put("t", b"body", level=1, tags="paid"),
    "spread": lambda store: store.put("t", b"body", delay=HOUR_S, spread=5, message_id="7"),
    "key": lambda store: store.put("t", b"body", delay=HOUR_S, key="k", replace=True),
    "tuple": lambda store: store.put_many("t", (b"one", b"two"), delay=HOUR_S),
}
plain = pytest.mark.parametrize("put", list(PLAIN.values()), ids=list(PLAIN))
on_loop = pytest.mark.parametrize("put", [*PLAIN.values(), *SINGLE.values()], ids=[*PLAIN, *SINGLE])
EVERY = {**PLAIN, **SINGLE, **OTHER}
every = pytest.mark.parametrize("put", list(EVERY.values()), ids=list(EVERY))


def held_sync(store: AsyncTimerStore) -> HeldSync:
    return HeldSync(store.blocking._log.segments)


def with_store(
    tmp_path: Path,
    test: Callable[[AsyncTimerStore], Awaitable[None]],
    flush: str = "sync",
    make: Callable[..., StoreConfig] = small,
) -> None:
    async def run() -> None:
        config = make(flush=flush, dedupe_window_ms=60_000)
        async with timerstore.aio.open(tmp_path / "store", config, threads=False) as store:
            await store.put("t", b"first")
            await test(store)

    asyncio.run(run())


def without_pool(store: AsyncTimerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_call: object) -> NoReturn:
        raise AssertionError("it went to the pool")

    monkeypatch.setattr(store._puts, "_run", never)
