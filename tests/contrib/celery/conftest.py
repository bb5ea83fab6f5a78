"""A server of a small store, and connections of kombu to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("celery", reason="celery is not installed: pip install timerstore[celery]")

from tests.contrib.celery.kombu_bench import KombuBench
from tests.support.celery_brokers import close_brokers
from tests.support.celery_plant import Plant


@pytest.fixture
def kombu_bench(tmp_path: Path) -> Iterator[KombuBench]:
    one = KombuBench(tmp_path)
    yield one
    one.close()
    close_brokers()


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """A server in a process of its own, and workers."""
    one = Plant(tmp_path)
    yield one
    one.close()
