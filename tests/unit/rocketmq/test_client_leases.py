"""What the server remembers of the leases of its clients."""

from tests.support.bench import NOW, Bench
from timerstore.rocketmq.client_leases import ClientLeases, ReceiveAttempt
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits

ATTEMPT = ReceiveAttempt("one", "t", "g", "attempt")


def test_attempt_that_was_answered_twice_keeps_the_newest_answer(bench: Bench) -> None:
    for _ in range(2):
        bench.store.put("t", b"body")
    bench.turn()
    leases = ClientLeases(RocketmqLimits(), lambda: NOW)
    first, second = bench.store.receive("t", "g"), bench.store.receive("t", "g")
    leases.keep(ATTEMPT, first)
    leases.keep(ATTEMPT, second)
    assert leases.replay(ATTEMPT) == second
    leases.settled(first[0].receipt)
    leases.settled(second[0].receipt)
    assert leases.replay(ATTEMPT) == []
