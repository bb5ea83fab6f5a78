"""Waiting polls of consumers: filters, and events other than messages that wake them."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import consumer_pull, inside
from tests.support.waiting_calls import PollCaller, long_poll_count, put_now
from timerstore import ClosedError, FailedError

# --- events that wake -----------------------------------------------------------------------------


def test_polls_are_woken_when_a_topic_is_created_and_grows(bench: Bench) -> None:
    consumer = bench.store.consumer("new", "g")
    polls = [PollCaller(consumer).step() for _ in range(3)]
    assert long_poll_count(bench) == 0
    bench.store.put("new", b"0")
    bench.turn()
    assert polls[0].step().bodies == [b"0"]
    assert (long_poll_count(bench), polls[1].wake_count) == (1, 0)
    bench.store.put("new", b"5", queue_id=5)
    bench.turn()
    assert polls[1].step().bodies == [b"5"]
    assert consumer.queues == tuple(range(6))
    assert (long_poll_count(bench), polls[2].wake_count) == (6, 0)
    polls[2].give_up()


def test_closed_consumer_passes_its_messages_to_a_waiting_poll(read_queues: Bench) -> None:
    put_now(read_queues, b"x", 0)
    first = read_queues.store.consumer("t", "g", queues=[0])
    assert len(first.poll()) == 1
    caller = PollCaller(read_queues.store.consumer("t", "g")).step()
    assert caller.wake_count == 0
    first.close()
    assert caller.wake_count == 1
    assert caller.step().bodies == [b"x"]


def test_message_for_a_collected_consumer_wakes_the_next_owner_of_its_queue(
    read_queues: Bench,
) -> None:
    first = read_queues.store.consumer("t", "g", queues=[0])
    caller = PollCaller(read_queues.store.consumer("t", "g")).step()
    del first
    put_now(read_queues, b"x", 0)
    assert caller.wake_count == 1
    assert caller.step().bodies == [b"x"]


def test_seek_wakes_a_poll(read_queues: Bench) -> None:
    put_now(read_queues, b"x", 0)
    consumer = read_queues.store.consumer("t", "g")
    assert len(consumer.poll()) == 1
    caller = PollCaller(consumer).step()
    consumer.seek(0, queue_id=0)
    assert caller.wake_count == 1
    assert caller.step().bodies == [b"x"]


@pytest.mark.parametrize("what", ["consumer", "store", "clock"])
def test_every_poll_is_answered_after_close_or_timeout(read_queues: Bench, what: str) -> None:
    consumer = read_queues.store.consumer("t", "g")
    elsewhere = read_queues.store.consumer("not-there", "g")
    polls = [PollCaller(consumer).step() for _ in range(3)]
    if what != "consumer":
        polls.append(PollCaller(elsewhere).step())
    if what == "consumer":
        consumer.close()
    elif what == "store":
        read_queues.close()
    else:
        read_queues.clock.advance(60_000)
    for caller in polls:
        assert caller.wake_count == 1
        if what == "store":
            caller.poll.leave()
            assert caller.poll.is_closed
            assert caller.poll.when_closed() == []
            caller.poll.end()
        else:
            assert caller.step().bodies == []
    assert long_poll_count(read_queues) == 0


def test_failed_store_wakes_every_poll(read_queues: Bench) -> None:
    consumer = read_queues.store.consumer("t", "g")
    polls = [PollCaller(consumer).step(), PollCaller(consumer).step()]
    polls.append(PollCaller(read_queues.store.consumer("not-there", "g")).step())
    inside(read_queues.store).log.fail(FailedError("by a test"))
    for caller in polls:
        assert caller.wake_count >= 1
        with pytest.raises(FailedError):
            caller.step()
        caller.give_up()
    assert long_poll_count(read_queues) == 0


def test_poll_ends_when_its_time_passed_without_a_wake(read_queues: Bench) -> None:
    """A manual clock may advance while real seconds pass."""
    assert PollCaller(read_queues.store.consumer("t", "g")).step().step().bodies == []


def test_poll_without_a_limit_keeps_waiting(read_queues: Bench) -> None:
    caller = PollCaller(read_queues.store.consumer("t", "g"), wait=None).step()
    read_queues.clock.advance(10**12)
    assert caller.wake_count == 0
    put_now(read_queues, b"x")
    assert caller.step().bodies == [b"x"]


# --- filters and errors ---------------------------------------------------------------------------


def test_message_that_does_not_match_wakes_no_poll_and_counts_as_read(
    read_queues: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = read_queues.store.consumer("t", "f", tags="Aa", queues=[0])
    first, second = PollCaller(consumer).step(), PollCaller(consumer).step()
    put_now(read_queues, b"no", tags="other")
    put_now(read_queues, b"no", tags="BB")  # of the same hash
    assert (first.wake_count, second.wake_count) == (0, 0)
    asked: list[int] = []
    pulling = consumer_pull(consumer)
    pull = pulling.value

    def noting(queue_id: int, offset: int, *given: Any) -> Any:
        asked.append(offset)
        return pull(queue_id, offset, *given)

    with monkeypatch.context() as patched:
        patched.setattr(*pulling, noting)
        assert first.step().bodies == []  # its time is over
    assert asked == [], "messages that the table has scanned are read again"
    assert consumer.commit() == {0: 2}
    put_now(read_queues, b"yes", tags="Aa")
    assert second.step().bodies == [b"yes"]


def test_poll_waits_for_an_offset_past_the_end(bench: Bench) -> None:
    """The group's offsets may be older than its topic."""
    bench.store.put("other", b"x")
    path = bench.root / "config/consumerOffset.json"
    bench.close()
    path.write_text('{"offsetTable":{"t@g":{0:2}}}')
    bench.open()
    consumer = bench.store.consumer("t", "g")
    caller = PollCaller(consumer).step()
    for k in range(2):
        bench.store.put("t", b"%d" % k)
        bench.turn()
        assert caller.wake_count == (k == 0), "but for the queue that came"
        caller.give_up()
        caller = PollCaller(consumer).step()
        assert caller.is_waiting, "it does not sleep"
    bench.store.put("t", b"2")
    bench.turn()
    assert caller.step().bodies == [b"2"]


def test_message_wakes_a_consumer_when_pulls_are_short_polls(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(long_poll_enabled=False))
    bench.store.put("t", b"makes the topic", queue_id=1)
    bench.turn()
    caller = PollCaller(bench.store.consumer("t", "g", queues=[0])).step()
    pull = bench.store.begin_pull("t", 0, 0, wait=60.0)
    wake_count: list[int] = []
    assert pull.enter(lambda: wake_count.append(1))
    bench.store.put("t", b"x")
    bench.turn()
    assert (caller.wake_count, wake_count) == (1, [])
    assert caller.step().bodies == [b"x"]
    pull.leave()
    bench.close()


def test_read_error_is_raised_in_the_poll_that_reads(
    read_queues: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that leaves the queue before it does not raise the error."""
    consumer = read_queues.store.consumer("t", "g")
    first, second = PollCaller(consumer).step(), PollCaller(consumer).step()
    engine = inside(read_queues.store)

    def failing(*_given: object) -> int:
        raise FailedError("by a test")

    with monkeypatch.context() as patched:
        patched.setattr(engine.routes.get("t", 1).queue, "visible", failing)
        patched.setattr(engine.puller, "is_at_end", failing)
        first.give_up()
        assert second.wake_count == 1
        with pytest.raises(FailedError, match="by a test"):
            second.look()
        second.give_up()
    assert long_poll_count(read_queues) == 0


def test_threads_of_one_consumer_share_its_messages(tmp_path: Path) -> None:
    import timerstore

    count = 300
    store = timerstore.open(tmp_path, small())
    consumer = store.consumer("t", "g")
    seen: list[bytes] = []

    def read() -> None:
        with suppress(ClosedError):  # the others may have read all before this thread begins
            for message in consumer:
                seen.append(message.body)  # noqa: PERF401 - as it comes

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for k in range(count):
        store.put("t", b"%d" % k, queue_id=k % 3)
    while len(seen) < count:
        threading.Event().wait(0.005)
    store.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(map(int, seen)) == list(range(count))


def test_reassigned_queue_begins_at_the_committed_offset(read_queues: Bench) -> None:
    """While one consumer sleeps, another joins, gets the queue, reads, commits and leaves."""
    first = read_queues.store.consumer("t", "g", tags="red")
    sleeping = PollCaller(first).step()
    put_now(read_queues, b"blue", 0, tags="blue")
    assert sleeping.wake_count == 0, "a message that does not match woke it"
    with read_queues.store.consumer("t", "g", tags="red", queues=[0]) as second:
        put_now(read_queues, b"red", 0, tags="red")
        assert [one.body for one in second.poll()] == [b"red"]
        second.commit()
    assert 0 in first.queues
    assert sleeping.is_waiting
    put_now(read_queues, b"new", 0, tags="red")
    assert sleeping.step().bodies == [b"new"]
    first.close()
