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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of three small shards, closed."""
    from tests.support.staging import make_root  # it needs pyarrow, which may be missing

    return make_root(tmp_path / "s")
