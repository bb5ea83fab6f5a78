"""`timerstore serve` and its clients."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import timerstore
import timerstore.aio
from benchmarks.peers.contract import module_missing
from benchmarks.served.contract import Served, start_process
from timerstore import StoreConfig

TOPIC, GROUP = "net", "group"


class TimerstoreServer:
    """A server of its own, on a socket in its directory."""

    def __init__(self, flush: str, root: Path) -> None:
        self._socket = root / "store.sock"
        timerstore.open(root / "store", StoreConfig(flush=flush)).close()
        command = [sys.executable, "-m", "timerstore.cli", "serve", str(root / "store"),
                   "--socket", str(self._socket), "-c", f"flush={flush}"]  # fmt: skip
        self._process = start_process(command, self._socket, root / "serve.log")

    def caller(self) -> TimerstoreCaller:
        return TimerstoreCaller(timerstore.connect(f"unix://{self._socket}"))

    async def async_caller(self) -> AsyncTimerstoreCaller:
        return AsyncTimerstoreCaller(await timerstore.aio.connect(f"unix://{self._socket}"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class TimerstoreCaller:
    """A connected store. As in a loop of `acking`, a call acknowledges the messages before it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._taken: list[Any] = []

    def put(self, body: bytes) -> None:
        self._store.put(TOPIC, body)

    def take(self, count: int) -> list[bytes]:
        self._taken = self._store.receive(TOPIC, GROUP, max_count=count, ack=self._taken)
        return [one.body for one in self._taken]

    def close(self) -> None:
        self._store.ack_many(self._taken)
        self._store.close()


class AsyncTimerstoreCaller:
    """A connected store for asyncio, as TimerstoreCaller."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._taken: list[Any] = []  # of all tasks

    async def put(self, body: bytes) -> None:
        await self._store.put(TOPIC, body)

    async def take(self, count: int) -> list[bytes]:
        done, self._taken = self._taken, []
        found = await self._store.receive(TOPIC, GROUP, max_count=count, ack=done)
        self._taken += found
        return [one.body for one in found]

    async def close(self) -> None:
        await self._store.ack_many(self._taken)
        await self._store.close()


SERVED = (
    Served("timerstore-sync", 'timerstore, flush="sync"', "each call", True,
           partial(TimerstoreServer, "sync"), partial(module_missing, "msgspec")),
    Served("timerstore-async", 'timerstore, flush="async"', "up to 0.5 s is lost in a power cut",
           False, partial(TimerstoreServer, "async"), partial(module_missing, "msgspec")),
)  # fmt: skip
