"""Fixtures: a topic with messages."""

import pytest

from tests.support.bench import Bench


@pytest.fixture
def six(bench: Bench) -> Bench:
    """Two messages in each of three queues, and one pending message."""
    for k in range(6):
        bench.store.put("t", b"%d" % k, queue_id=k % 3)
    bench.store.put("t", b"later", delay=60)
    bench.turn()
    return bench
