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


@pytest.fixture
def queues(bench: Bench) -> Bench:
    """Queues 0 to 3 of topic t, empty."""
    bench.store.put("t", b"makes the topic", queue_id=3)
    bench.turn()
    return bench


@pytest.fixture
def read_queues(bench: Bench) -> Bench:
    """Queues 0 to 3 of topic t; group g has committed the message of the last."""
    bench.store.put("t", b"makes the topic", queue_id=3)
    bench.turn()
    with bench.store.consumer("t", "g") as consumer:
        consumer.poll()
        consumer.commit()
    return bench
