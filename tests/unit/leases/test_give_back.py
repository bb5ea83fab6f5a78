"""What no consumer saw is given back: its attempt does not count, and the next caller gets it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.inside import inside
from timerstore import AckResult, FailedError, LeasedMessage, MessageError
from timerstore._engine.base import failpoints
from timerstore._engine.leases.leases import Leases

TERMS: dict[str, Any] = {"lease": 60, "max_attempts": 2, "backoff": 0}


def take(bench: Bench, **more: Any) -> list[LeasedMessage]:
    found = bench.store.receive("t", "g", **(TERMS | more))
    bench.turn()
    return found


def give_back(bench: Bench, *messages: LeasedMessage) -> int:
    count = bench.store._give_back([one.receipt for one in messages])
    bench.turn()
    return count


def kill(bench: Bench, to: Path) -> None:
    bench.kill(to)
    bench.turn()


@pytest.fixture
def waiting_message(bench: Bench) -> Bench:
    bench.store.put("t", b"a", tags="x", keys=["k"], properties={"p": "v"})
    bench.turn()
    return bench


@pytest.mark.parametrize("is_killed", [False, True])
def test_each_attempt_comes_again_with_its_number(
    waiting_message: Bench, tmp_path: Path, is_killed: bool
) -> None:
    bench = waiting_message
    for attempt in (1, 2):
        for k in range(3):
            (one,) = take(bench)
            assert (one.attempt, one.is_last_attempt) == (attempt, attempt == 2)
            assert (one.body, one.tags, one.keys) == (b"a", "x", ("k",))
            assert (one.topic, one.queue_offset, one.properties["p"]) == ("t", 0, "v")
            assert give_back(bench, one) == 1
            bench.clock.advance(61_000)  # past the end of the lease
            if is_killed:
                kill(bench, tmp_path / f"{attempt} {k}")
            bench.turn()
        (one,) = take(bench)
        assert one.attempt == attempt
        bench.store.nack(one, delay=0)
        bench.turn()
    assert [one.attempt for one in bench.store.dead_letters("g")] == [2]
    assert take(bench) == []


def test_given_back_message_is_for_any_filter(waiting_message: Bench) -> None:
    bench = waiting_message
    (one,) = take(bench, tags="x")
    assert give_back(bench, one) == 1
    assert [again.attempt for again in take(bench, tags="other")] == [1]


def test_give_back_wakes_waiters_of_one_and_of_several_topics(waiting_message: Bench) -> None:
    bench = waiting_message
    for topics in ("t", ["t", "u"]):
        (one,) = take(bench)
        waiting = bench.store.begin_receive(topics, "g", wait=100, **TERMS)
        wakes: list[int] = []
        assert waiting.enter(lambda wakes=wakes: wakes.append(1))
        assert give_back(bench, one) == 1
        assert wakes
        waiting.leave()
        (again,) = waiting.look()
        assert again.attempt == 1
        waiting.end()
        give_back(bench, again)


def test_settled_lost_and_foreign_leases_are_not_given_back(
    waiting_message: Bench, tmp_path: Path
) -> None:
    bench = waiting_message
    (one,) = take(bench)
    assert give_back(bench, one, one) == 1
    (one,) = take(bench)
    assert bench.store.ack(one) is AckResult.ACKED
    assert give_back(bench, one) == 0
    bench.store.put("t", b"b")
    bench.turn()
    (one,) = take(bench, lease=1)
    bench.clock.advance(2000)
    bench.turn()
    assert give_back(bench, one) == 0
    (again,) = take(bench)
    assert again.attempt == 2
    other = Bench(tmp_path / "other")
    assert give_back(other, again) == 0
    other.close()
    with pytest.raises(MessageError, match=r"receipts\[1\]"):
        bench.store._give_back([again.receipt, "no receipt"])


def test_old_receipt_does_not_settle_the_next_lease(waiting_message: Bench) -> None:
    bench = waiting_message
    (old,) = take(bench)
    give_back(bench, old)
    (one,) = take(bench)
    assert bench.store.ack(old) is AckResult.SETTLED
    assert bench.store.ack(one) is AckResult.ACKED


def test_last_attempt_keeps_its_priority(bench: Bench) -> None:
    for priority in (3, 7, 5):
        bench.store.put("t", b"%d" % priority, priority=priority)
    bench.turn()
    found = take(bench, max_count=3, max_attempts=1)
    assert give_back(bench, *found) == 3
    again = take(bench, max_count=3, max_attempts=1)
    assert [(one.body, one.queue_id) for one in again] == [(b"7", 7), (b"5", 5), (b"3", 3)]


def test_first_attempt_that_is_given_back_marks_no_dead_letter(
    bench: Bench, tmp_path: Path
) -> None:
    """It is at queue 0, offset 0, as the dead letter of the other message is."""
    bench.store.put("t", b"buried", queue_id=1)
    bench.store.put("t", b"a", queue_id=0)
    bench.turn()
    found = {one.body: one for one in take(bench, max_count=2)}
    bench.store.bury(found[b"buried"])
    give_back(bench, found[b"a"])
    assert [one.body for one in bench.store.dead_letters("g")] == [b"buried"]
    kill(bench, tmp_path / "killed")
    assert [one.body for one in bench.store.dead_letters("g")] == [b"buried"]
    assert bench.store.requeue("g") == 1
    bench.turn()
    (one, other) = sorted(take(bench, max_count=2), key=lambda one: one.body)
    assert (one.body, one.attempt, other.body, other.attempt) == (b"a", 1, b"buried", 1)
    assert give_back(bench, other) == 1
    assert list(bench.store.dead_letters("g")) == []


class TimeLimitError(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize("topics", ["t", ["u", "t"]])
@pytest.mark.parametrize("at", ["lease_appended", "receive_answered"])
@pytest.mark.parametrize("error", [TimeLimitError, KeyboardInterrupt])
def test_interrupted_receive_gives_its_messages_back(
    waiting_message: Bench,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    topics: Any,
    error: type[BaseException],
) -> None:
    bench = waiting_message

    def hook(name: str) -> None:
        if name == at:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        with pytest.raises(error):
            bench.store.receive(topics, "g", **(TERMS | {"max_attempts": 1}))
    bench.turn()
    (one,) = take(bench, max_attempts=1)
    assert one.attempt == 1


def test_messages_of_a_failed_store_stay_leased(
    waiting_message: Bench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Nothing can be written any more; the error of `receive` is the one that is raised."""
    bench = waiting_message
    failed = FailedError("the disk failed")

    def settle(_leases: Leases) -> None:
        inside(bench.store).log.fail(failed)
        raise failed

    with monkeypatch.context() as patched:
        patched.setattr(Leases, "_settle_received", settle)
        with pytest.raises(FailedError, match="the disk failed"):
            take(bench)
    assert "not given back" in caplog.text
    kill(bench, tmp_path / "killed")
