"""Stores without threads, whose wake-ups a test reads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import small
from timerstore import TimerStore
from timerstore.testing import Stepper


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    """A store with a topic and a delay level, all services idle."""
    with timerstore.open(tmp_path / "store", small(), threads=False) as made:
        made.put("t", b"first")
        made.put("t", b"first", level=18)
        Stepper(made).settle()
        yield made


@pytest.fixture
def synced(tmp_path: Path) -> Iterator[TimerStore]:
    """A store that syncs each put."""
    with timerstore.open(tmp_path / "store", small(flush="sync"), threads=False) as made:
        made.put("t", b"first")
        yield made
