"""A small directory of shards on a clock that the test sets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shards import ShardBench


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[ShardBench]:
    """Three small shards, checked and closed at the end."""
    one = ShardBench(tmp_path / "shards", 3)
    yield one
    one.close()
