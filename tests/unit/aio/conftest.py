"""A stepped asyncio store."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stepped_aio import Test, stepped_store


@pytest.fixture
def stepped(tmp_path: Path) -> Callable[[Test], None]:
    """Run a test on a store with an empty queue 0 of topic t."""

    async def run(test: Test) -> None:
        async with stepped_store(tmp_path) as one:
            await one.store.put("t", b"makes the topic", queue_id=1)
            one.stepper.settle()
            await test(one)
            report = await one.store.verify()
            assert report.clean, report
            assert one.waiting_count == 0, "an ended pull is still in the table"

    return lambda test: asyncio.run(run(test))
