"""One Spark session for all tests of this folder; they are skipped, with the reason, without Java.

Every test here is marked `spark`, and belongs to one group of pytest-xdist: with --dist loadgroup
they share a worker, and so its JVM.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark import session as spark_session

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(300))
            # py4j leaves sockets to the collector; a worker's end is none of a test's business.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session."""
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")
    session = spark_session.start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
