"""A stepped store that is served to clients of RocketMQ, and a client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rocketmq_bench import RawCaller, RocketmqBench
from tests.support.ways import WAYS


@pytest.fixture(params=["open", "connect"])
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RocketmqBench]:
    """A server in the process that has the store open, and one that is connected to it."""
    one = RocketmqBench(WAYS[request.param](tmp_path / "store"))
    yield one
    one.close()


@pytest.fixture
def caller(served: RocketmqBench) -> RawCaller:
    return served.caller()
