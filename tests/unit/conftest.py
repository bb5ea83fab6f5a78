"""Fixtures of the unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A small store, checked and closed at the end."""
    one = Bench(tmp_path / "store")
    yield one
    one.close()
