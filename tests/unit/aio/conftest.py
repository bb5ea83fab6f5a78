"""A stepped asyncio store."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore.aio
from tests.support.bench import NOW, small
from tests.support.stepped_aio import Stepped, Test
from timerstore.testing import ManualClock


@pytest.fixture
def stepped(tmp_path: Path) -> Callable[[Test], None]:
    """Run a test on a store with an empty queue 0 of topic t."""

    async def run(test: Test) -> None:
        clock = ManualClock(NOW)
        async with timerstore.aio.open(tmp_path, small(), clock=clock, threads=False) as store:
            one = Stepped(store, clock)
            await store.put("t", b"makes the topic", queue_id=1)
            one.stepper.settle()
            await test(one)
            report = await store.verify()
            assert report.clean, report
            assert one.waiting_count == 0, "an ended pull is still in the table"

    return lambda test: asyncio.run(run(test))
