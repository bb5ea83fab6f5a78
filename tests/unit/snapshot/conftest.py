"""Fixtures of stores that are read while their owner has them open."""

from collections.abc import Iterator

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.reader_and_owner import fill
from timerstore import (
    ReadOnlyStore,
)


@pytest.fixture
def read(bench: Bench) -> Iterator[ReadOnlyStore]:
    """A read-only store with messages, whose owner is in the same process."""
    fill(bench)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        yield one


@pytest.fixture
def bench_config(request: pytest.FixtureRequest) -> timerstore.StoreConfig:
    kept = {"retention_ms": 100_000} if "retention" in request.node.name else {}
    return small(**kept)
