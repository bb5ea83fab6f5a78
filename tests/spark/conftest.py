"""Fixtures of the Spark tests: one session for all of them, and small shards.

The tests are skipped with a reason if Java is missing. Each has the mark `spark`, and is in one
group of pytest-xdist, so that with --dist loadgroup they share a worker and its JVM.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark import session as spark_session

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this directory."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(300))
            # py4j leaves open sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The shared Spark session."""
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")
    session = spark_session.start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def shards(spark: Any, tmp_path: Path) -> Path:
    """Three small shards."""
    from tests.support.spark import jobs

    return jobs.make_shards(tmp_path / "shards", 3, tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A Parquet file of 500 rows."""
    from tests.support.spark import jobs

    return jobs.write_table(tmp_path / "rows.parquet", jobs.some_rows(500))
