"""A stepped store that is served to clients of RocketMQ, and a client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RocketmqBench]:
    one = RocketmqBench(Bench(tmp_path / "store"))
    yield one
    one.close()


@pytest.fixture
def caller(served: RocketmqBench) -> RawCaller:
    return served.caller()
