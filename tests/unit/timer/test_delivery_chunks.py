"""dequeue-put delivers thousands of messages in one call of C, which takes the append lock."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench
from tests.support.inside import delivery_chunk_count, inside
from timerstore import StoreConfig, TimerStore
from timerstore.testing import Stepper

PATIENCE_S = 30.0
COUNT = 3 * delivery_chunk_count() + 7


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store", StoreConfig())
    yield made
    made.close()


def due(bench: Bench, count: int = COUNT) -> None:
    """Put messages, and load them into the open slot when they are due."""
    bench.store.put_many("t", [b"%d" % n for n in range(count)], delay=1)
    bench.turn()
    bench.clock.advance(1000)
    for name in ("dequeue_get", "dequeue_get_message"):
        bench.stepper.step(name)


def test_step_delivers_many_chunks_in_order(bench: Bench) -> None:
    due(bench)
    assert bench.store.services()["dequeue_put"].step()
    bench.turn()
    assert bench.bodies() == [b"%d" % n for n in range(COUNT)]
    stats = bench.store.stats()
    assert stats["dequeue_put_messages"] == COUNT


def test_step_places_nothing_while_append_lock_is_taken(bench: Bench) -> None:
    due(bench)
    log = inside(bench.store).log
    thread = threading.Thread(target=bench.store.services()["dequeue_put"].step)
    with log.lock:
        end = log.end
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert log.end == end
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert log.end > end


def _deliver_during_fast_puts(store: TimerStore, bodies: list[bytes]) -> list[int]:
    """Deliver messages in chunks while another thread puts; return the log offsets of its puts."""
    for begin in range(0, len(bodies), 1000):
        store.put_many("t", bodies[begin : begin + 1000], delay=0.2)
    begin_put = inside(store).begin_put
    is_over, put = threading.Event(), []

    def put_on() -> None:
        while not is_over.is_set():
            receipt = begin_put("u", b"between")  # None if the lock is taken
            if receipt is not None:
                put.append(receipt.log_offset)

    thread = threading.Thread(target=put_on)
    delivered = store.stats()["dequeue_put_messages"]
    thread.start()
    services, until = store.services(), time.monotonic() + PATIENCE_S
    while store.stats()["dequeue_put_messages"] < delivered + len(bodies):
        assert time.monotonic() < until
        for service in services.values():
            service.step()
    is_over.set()
    thread.join(PATIENCE_S)
    Stepper(store).settle()
    return put


def test_fast_puts_append_between_chunks_of_a_step(tmp_path: Path) -> None:
    """Each record is complete, whichever thread wrote the one before.

    The test uses the system's clock, because puts are fast only with it.
    """
    with timerstore.open(tmp_path / "store", threads=False) as store:
        bodies, puts, is_between = list[bytes](), list[int](), False
        store.put("u", b"makes the topic")
        end = time.monotonic() + PATIENCE_S
        while not is_between:  # the other thread may have no core during the deliveries
            assert time.monotonic() < end, "nothing came between"
            first = len(bodies)
            bodies += [b"%d" % n for n in range(first, first + 20_000)]
            put = _deliver_during_fast_puts(store, bodies[first:])
            handed = [
                one.log_offset for one in store.pull("t", 0, first, max_count=30_000).messages
            ]
            is_between = any(handed[0] < at < handed[-1] for at in put)
            puts += put
        delivered = store.pull_batch("t", 0, 0, max_count=10**6)
        assert list(delivered.body_list()) == bodies
        assert len(store.pull_batch("u", 0, 0, max_count=10**6)) == 1 + len(puts)
        assert store.verify().clean
