"""Fixtures of the tests of the page."""

from collections.abc import Iterator

import pytest

from tests.support.bench import Bench

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.support.paged import Paged


@pytest.fixture
def paged(bench: Bench) -> Paged:
    """The page of a store on a clock turned by hand."""
    return Paged.of(bench.store)


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paged]:
    """One page for all tests of a file that change nothing."""
    one = Bench(tmp_path_factory.mktemp("still") / "store")
    yield Paged.of(one.store)
    one.close()
