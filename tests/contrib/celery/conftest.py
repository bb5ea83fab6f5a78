"""A server of a small store, and connections of kombu to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("celery", reason="celery is not installed: pip install timerstore[celery]")

from kombu import pools

from tests.contrib.celery.kombu_bench import KombuBench
from timerstore.contrib.celery import broker as broker_module


@pytest.fixture
def kombu_bench(tmp_path: Path) -> Iterator[KombuBench]:
    one = KombuBench(tmp_path)
    yield one
    one.close()
    pools.reset()
    for left in list(broker_module._open.values()):  # of connections that a test did not release
        left._user_count = 0
        left._close_if_unused()
