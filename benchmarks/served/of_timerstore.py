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
    """A connected store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, body: bytes) -> None:
        self._store.put(TOPIC, body)

    def take(self, count: int) -> list[bytes]:
        found = self._store.receive(TOPIC, GROUP, max_count=count)
        if found:
            self._store.ack_many(found)
        return [one.body for one in found]

    def close(self) -> None:
        self._store.close()


class AsyncTimerstoreCaller:
    """A connected store for asyncio."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def put(self, body: bytes) -> None:
        await self._store.put(TOPIC, body)

    async def take(self, count: int) -> list[bytes]:
        found = await self._store.receive(TOPIC, GROUP, max_count=count)
        if found:
            await self._store.ack_many(found)
        return [one.body for one in found]

    async def close(self) -> None:
        await self._store.close()


SERVED = (
    Served("timerstore-sync", 'timerstore, flush="sync"', "each call", True,
           partial(TimerstoreServer, "sync"), partial(module_missing, "msgspec")),
    Served("timerstore-async", 'timerstore, flush="async"', "up to 0.5 s is lost in a power cut",
           False, partial(TimerstoreServer, "async"), partial(module_missing, "msgspec")),
)  # fmt: skip
