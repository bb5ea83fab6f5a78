"""Fixtures of stores to back up and to verify."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backups import SEGMENT
from tests.support.bench import Bench, small
from tests.support.driver import abandon
from tests.support.filled_bench import FilledBench


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Bench]:
    """A store to back up."""
    one = Bench(tmp_path / "store", small(commit_log_segment_bytes=SEGMENT))
    yield one
    one.close()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledBench]:
    """A store with messages in every state."""
    one = FilledBench(tmp_path / "store")
    yield one
    abandon(one.store)
