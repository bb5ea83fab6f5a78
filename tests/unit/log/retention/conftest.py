"""A store whose retention drops files of its log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.retaining import RetentionBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RetentionBench]:
    """A small store, checked and closed at the end."""
    one = RetentionBench(tmp_path / "store")
    yield one
    one.check()
    one.store.close()
