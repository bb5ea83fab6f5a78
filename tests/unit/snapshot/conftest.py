"""Fixtures of stores that are read beside their owner."""

from collections.abc import Iterator

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.beside import fill
from timerstore import (
    ReadOnlyStore,
)


@pytest.fixture
def read(bench: Bench) -> Iterator[ReadOnlyStore]:
    """A store with messages, its owner in the same process, read beside it."""
    fill(bench)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        yield one


@pytest.fixture
def bench_config(request: pytest.FixtureRequest) -> timerstore.StoreConfig:
    kept = {"retention_ms": 100_000} if "retention" in request.node.name else {}
    return small(**kept)
