"""Fixtures of the unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from timerstore import StoreConfig


@pytest.fixture
def bench_config() -> StoreConfig:
    """Of `bench`; a module with one of its own has another store."""
    return small()


@pytest.fixture
def bench(tmp_path: Path, bench_config: StoreConfig) -> Iterator[Bench]:
    """A small store, checked and closed at the end."""
    one = Bench(tmp_path / "store", bench_config)
    yield one
    one.close()
