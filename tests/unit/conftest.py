"""Fixtures of the unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.tests_of_ways import ways_of
from tests.support.ways import WAYS
from timerstore import StoreConfig


@pytest.fixture
def bench_config() -> StoreConfig:
    """Return the config of `bench`; a module may override it."""
    return small()


@pytest.fixture(scope="module", params=[False, True], ids=["new topic", "known topic"])
def shared_bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """Open one small store for a table of rejected calls, with or without topic `new`."""
    one = Bench(tmp_path_factory.mktemp("shared") / "store")
    if request.param:
        one.store.put("new", b"first")
    yield one
    one.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the API in each way in which a store is reached (tests_of_ways.py)."""
    if "bench" in metafunc.fixturenames and (ways := ways_of(metafunc)):
        metafunc.parametrize("bench", ways, indirect=True)


@pytest.fixture
def bench(
    tmp_path: Path, bench_config: StoreConfig, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    """Open a small store, and verify and close it at the end."""
    one = WAYS[getattr(request, "param", "open")](tmp_path / "store", bench_config)
    yield one
    one.close()
