"""Heartbeats in each way: a lease lasts as long as its block."""

import pytest

from tests.support.bench import NOW, Bench
from tests.support.consuming import until
from timerstore import AckResult, LeaseLostError, MessageError


def test_lease_outlives_its_first_end_in_the_block(bench: Bench) -> None:
    bench.store.put("t", b"a")
    bench.turn()
    (one,) = bench.store.receive("t", "g", lease=0.1)
    with bench.store.heartbeat(one, lease=0.1) as beat:
        for passed_ms in (60, 120):
            bench.clock.set(NOW + passed_ms)
            end_ms = NOW + passed_ms + 100
            until(lambda end_ms=end_ms: [one.due_ms for one in bench.local.pending()] == [end_ms])
            bench.turn()
        assert bench.store.receive("t", "g") == []
        assert beat.lost is None
        assert bench.store.ack(one) is AckResult.ACKED
    with pytest.raises(LeaseLostError), bench.store.heartbeat(one):
        pass
    with pytest.raises(MessageError, match="lease"), bench.store.heartbeat(one, lease=0):
        pass


def test_block_raises_if_its_lease_ended(bench: Bench) -> None:
    bench.store.put("t", b"a")
    bench.turn()
    (one,) = bench.store.receive("t", "g", lease=0.1)

    def block() -> None:
        with bench.store.heartbeat(one, lease=0.1) as beat:
            bench.turn(1000)
            until(lambda: beat.lost is not None)

    with pytest.raises(LeaseLostError) as caught:
        block()
    assert caught.value.result is AckResult.EXPIRED
    (again,) = bench.store.receive("t", "g")
    assert (again.body, again.attempt) == (b"a", 2)
