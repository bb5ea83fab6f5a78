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


@pytest.fixture(scope="module", params=[False, True], ids=["new topic", "known topic"])
def shared_bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """One small store for a table of refused calls, without and with a message in topic `new`."""
    one = Bench(tmp_path_factory.mktemp("shared") / "store")
    if request.param:
        one.store.put("new", b"first")
    yield one
    one.close()


@pytest.fixture
def bench(tmp_path: Path, bench_config: StoreConfig) -> Iterator[Bench]:
    """A small store, checked and closed at the end."""
    one = Bench(tmp_path / "store", bench_config)
    yield one
    one.close()
