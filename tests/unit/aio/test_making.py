"""Objects that are awaited into being are coroutines: `asyncio.run` and `create_task` take them."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
import timerstore.net
from tests.support.bench import small

Make = Callable[[Path], Any]


def _open(folder: Path) -> Any:
    return timerstore.aio.open(folder / "opened", small())


def _connect(folder: Path) -> Any:
    return timerstore.aio.connect(f"unix://{folder}/x.sock")


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    with (
        timerstore.open(tmp_path / "store", small()) as store,
        timerstore.net.serve(store, socket=tmp_path / "x.sock"),
    ):
        store.put("t", b"x")
        yield tmp_path


@pytest.mark.parametrize("make", [_open, _connect])
def test_run_takes_it(folder: Path, make: Make) -> None:
    with asyncio.Runner() as runner:
        store = runner.run(make(folder))

        async def use() -> None:
            async with store:
                assert (await store.put("t", b"y")).topic == "t"

        runner.run(use())


@pytest.mark.parametrize("make", [_open, _connect])
def test_consumer_is_a_coroutine_too(folder: Path, make: Make) -> None:
    async def main() -> None:
        async with make(folder) as store:
            consumer = await asyncio.create_task(store.consumer("t", "g"))
            await consumer.close()

    asyncio.run(main())


@pytest.mark.parametrize("make", [_open, _connect])
def test_cancelled_making_leaves_nothing_open(folder: Path, make: Make) -> None:
    async def main() -> None:
        task = asyncio.create_task(make(folder))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    while True:
        with contextlib.suppress(timerstore.LockedError):  # its thread has not closed it yet
            timerstore.open(folder / "opened", small()).close()
            return


def test_connect_of_asyncio_run_raises_the_error(tmp_path: Path) -> None:
    with pytest.raises(timerstore.UnavailableError):
        asyncio.run(timerstore.aio.connect(f"unix://{tmp_path}/none", retry_for=0))
    timerstore.aio.connect(f"unix://{tmp_path}/none").close()  # never begun
