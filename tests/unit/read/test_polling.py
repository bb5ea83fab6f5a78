"""Polls of consumers that wait: whom a message wakes, who waits in whose stead, who is answered."""

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import consumer_pull, inside, wait_queue_of
from timerstore import Consumer, FailedError, Message
from timerstore._engine.read.groups import AssignedQueue
from timerstore._engine.read.waiting_poll import WaitingPoll


class Polling:
    """A poll without a thread: `step` goes on from wherever it is."""

    def __init__(self, consumer: Consumer, max_count: int = 32, wait: float | None = 60.0) -> None:
        self.rung = 0
        self.poll: WaitingPoll = consumer.begin_poll(max_count, wait)
        self.is_asleep = False
        self.answer: list[Message] | None = None
        self._got: list[AssignedQueue] = []

    def _ring(self) -> None:
        self.rung += 1

    def look(self) -> None:
        if self.is_asleep:
            self.poll.leave()
            self.is_asleep = False
        self._got = self.poll.look()
        if self.poll.is_done(self._got):
            self.answer = self.poll.final(self._got)
            self.poll.end()

    def enter(self) -> bool:
        self.is_asleep = self.answer is None and self.poll.enter(self._ring)
        return self.is_asleep

    def step(self) -> "Polling":
        """What its caller does at first, when it was rung, or when its time is over."""
        self.look()
        while self.answer is None and not self.enter():
            self.look()
        return self

    def give_up(self) -> None:
        """As a task that is cancelled."""
        if self.is_asleep:
            self.poll.leave()
        self.poll.end()
        self.is_asleep, self.answer = False, []

    @property
    def bodies(self) -> list[bytes] | None:
        return None if self.answer is None else [message.body for message in self.answer]


@pytest.fixture
def queues(bench: Bench) -> Bench:
    """Queues 0 to 3 of topic t; group g is done with what is in the last."""
    bench.store.put("t", b"makes the topic", queue_id=3)
    bench.turn()
    with bench.store.consumer("t", "g") as consumer:
        consumer.poll()
        consumer.commit()
    return bench


def holds(bench: Bench) -> int:
    return inside(bench.store).long_polls.count


def put(bench: Bench, body: bytes, queue_id: int = 0, **given: Any) -> None:
    bench.store.put("t", body, queue_id=queue_id, **given)
    bench.turn()


# --- whom a message wakes -------------------------------------------------------------------------


def test_a_message_wakes_the_consumer_of_its_queue(queues: Bench) -> None:
    consumers = [queues.store.consumer("t", "g") for _ in range(4)]
    polls = {one.queues[0]: Polling(one).step() for one in consumers}
    assert holds(queues) == 4
    put(queues, b"x", 2)
    assert {q: poll.rung for q, poll in polls.items()} == {0: 0, 1: 0, 2: 1, 3: 0}
    assert polls[2].step().bodies == [b"x"]
    assert holds(queues) == 3
    for poll in polls.values():
        poll.give_up()
    assert holds(queues) == 0


def test_of_several_polls_of_a_consumer_a_message_wakes_one(queues: Bench) -> None:
    consumer = queues.store.consumer("t", "g")
    polls = [Polling(consumer).step() for _ in range(5)]
    assert holds(queues) == 4, "the first stands at its four queues for all"
    for k in range(5):
        put(queues, b"%d" % k, k % 3)
        assert [poll.rung for poll in polls] == [1] * (k + 1) + [0] * (4 - k)
        assert polls[k].step().bodies == [b"%d" % k]
    assert (holds(queues), len(wait_queue_of(consumer))) == (0, 0)


def test_messages_that_one_leaves_wake_the_next(queues: Bench) -> None:
    consumer = queues.store.consumer("t", "g")
    polls = [Polling(consumer, 1).step() for _ in range(3)]
    queues.store.put_many("t", [b"0", b"1"], queue_id=0)
    queues.turn()
    assert [poll.rung for poll in polls] == [1, 0, 0]
    assert polls[0].step().bodies == [b"0"]
    assert [poll.rung for poll in polls] == [1, 1, 0]
    assert polls[1].step().bodies == [b"1"]
    assert [poll.rung for poll in polls] == [1, 1, 0]
    put(queues, b"2")
    assert polls[2].step().bodies == [b"2"]


@pytest.mark.parametrize("rung", [False, True])
def test_who_gives_up_leaves_the_next_in_his_stead(queues: Bench, rung: bool) -> None:
    consumer = queues.store.consumer("t", "g")
    first, last, second = (Polling(consumer).step() for _ in range(3))
    last.give_up()
    if rung:
        put(queues, b"x")
        assert (first.rung, second.rung) == (1, 0)
        first.give_up()
        assert second.rung == 1
    else:
        first.give_up()
        assert (holds(queues), second.rung) == (4, 0)
        put(queues, b"x")
        assert second.rung == 1
    assert second.step().bodies == [b"x"]
    assert holds(queues) == 0


def test_a_poll_that_looks_keeps_its_place(queues: Bench) -> None:
    consumer = queues.store.consumer("t", "g")
    first, second = Polling(consumer).step(), Polling(consumer).step()
    put(queues, b"taken by one who does not wait")
    assert len(consumer.poll()) == 1
    first.step()
    assert (first.answer, first.is_asleep, second.rung) == (None, True, 0)
    put(queues, b"x")
    assert (first.rung, second.rung) == (2, 0)
    first.give_up()
    assert second.step().bodies == [b"x"]


def test_other_groups_and_topics_sleep_on(queues: Bench) -> None:
    put(queues, b"before", 0)
    mine = Polling(queues.store.consumer("t", "g", queues=[1])).step()
    other = Polling(queues.store.consumer("elsewhere", "g")).step()
    put(queues, b"x", 0)
    queues.store.put("third", b"x")
    queues.turn()
    assert (mine.rung, other.rung) == (0, 0)
    mine.give_up()
    other.give_up()


@pytest.mark.parametrize("visibility", ["durable", "written"])
@pytest.mark.parametrize("has_before", [False, True])
def test_a_poll_never_sleeps_past_a_message_of_the_same_instant(
    tmp_path: Path, visibility: str, has_before: bool
) -> None:
    steps = ("put", "dispatch", "flush", "look", "enter")
    orders = [
        order
        for order in sorted(itertools.permutations(steps))
        if order.index("put") < min(order.index("dispatch"), order.index("flush"))
        and order.index("look") < order.index("enter")
    ]
    bench = Bench(tmp_path, small(visibility=visibility))
    for k, order in enumerate(orders):
        topic = f"t{k}"
        consumer = bench.store.consumer(topic, "g")
        if has_before:
            bench.store.put(topic, b"before")
            bench.turn()
            assert len(consumer.poll()) == 1
        polling = Polling(consumer)
        calls: dict[str, Callable[[], object]] = {
            "put": partial(bench.store.put, topic, b"now"),
            "dispatch": partial(bench.stepper.step, "dispatch"),
            "flush": partial(bench.stepper.step, "flush"),
            "look": polling.look,
            "enter": polling.enter,
        }
        for name in order:
            calls[name]()
        if polling.is_asleep:
            assert polling.rung >= 1, f"{order}: it sleeps, and its message is there"
        if polling.answer is None:
            polling.step()
        assert polling.bodies == [b"now"], order
        bench.turn()
    bench.close()


# --- what else wakes ------------------------------------------------------------------------------


def test_a_topic_that_comes_and_grows(bench: Bench) -> None:
    consumer = bench.store.consumer("new", "g")
    polls = [Polling(consumer).step() for _ in range(3)]
    assert holds(bench) == 0
    bench.store.put("new", b"0")
    bench.turn()
    assert polls[0].step().bodies == [b"0"]
    assert (holds(bench), polls[1].rung) == (1, 0)
    bench.store.put("new", b"5", queue_id=5)
    bench.turn()
    assert polls[1].step().bodies == [b"5"]
    assert consumer.queues == tuple(range(6))
    assert (holds(bench), polls[2].rung) == (6, 0)
    polls[2].give_up()


def test_who_leaves_gives_his_messages_to_who_waits(queues: Bench) -> None:
    put(queues, b"x", 0)
    first = queues.store.consumer("t", "g", queues=[0])
    assert len(first.poll()) == 1
    polling = Polling(queues.store.consumer("t", "g")).step()
    assert polling.rung == 0
    first.close()
    assert polling.rung == 1
    assert polling.step().bodies == [b"x"]


def test_a_message_for_a_consumer_that_nobody_holds_wakes_who_gets_its_queue(queues: Bench) -> None:
    first = queues.store.consumer("t", "g", queues=[0])
    polling = Polling(queues.store.consumer("t", "g")).step()
    del first
    put(queues, b"x", 0)
    assert polling.rung == 1
    assert polling.step().bodies == [b"x"]


def test_a_seek_wakes(queues: Bench) -> None:
    put(queues, b"x", 0)
    consumer = queues.store.consumer("t", "g")
    assert len(consumer.poll()) == 1
    polling = Polling(consumer).step()
    consumer.seek(0, queue_id=0)
    assert polling.rung == 1
    assert polling.step().bodies == [b"x"]


@pytest.mark.parametrize("what", ["consumer", "store", "clock"])
def test_all_who_wait_are_answered(queues: Bench, what: str) -> None:
    consumer = queues.store.consumer("t", "g")
    elsewhere = queues.store.consumer("not-there", "g")
    polls = [Polling(consumer).step() for _ in range(3)]
    if what != "consumer":
        polls.append(Polling(elsewhere).step())
    if what == "consumer":
        consumer.close()
    elif what == "store":
        queues.close()
    else:
        queues.clock.advance(60_000)
    for polling in polls:
        assert polling.rung == 1
        if what == "store":
            polling.poll.leave()
            assert polling.poll.is_closed
            assert polling.poll.when_closed() == []
            polling.poll.end()
        else:
            assert polling.step().bodies == []
    assert holds(queues) == 0


def test_a_store_that_fails_answers_all(queues: Bench) -> None:
    consumer = queues.store.consumer("t", "g")
    polls = [Polling(consumer).step(), Polling(consumer).step()]
    polls.append(Polling(queues.store.consumer("not-there", "g")).step())
    inside(queues.store).log.fail(FailedError("by a test"))
    for polling in polls:
        assert polling.rung >= 1
        with pytest.raises(FailedError):
            polling.step()
        polling.give_up()
    assert holds(queues) == 0


def test_it_is_over_when_nobody_rang(queues: Bench) -> None:
    """As by a clock that was turned by hand while real seconds passed."""
    assert Polling(queues.store.consumer("t", "g")).step().step().bodies == []


def test_for_ever_is_long(queues: Bench) -> None:
    polling = Polling(queues.store.consumer("t", "g"), wait=None).step()
    queues.clock.advance(10**12)
    assert polling.rung == 0
    put(queues, b"x")
    assert polling.step().bodies == [b"x"]


# --- filters, and places where nothing is for it --------------------------------------------------


def test_what_a_filter_leaves_out_wakes_nobody_and_is_done_with(
    queues: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = queues.store.consumer("t", "f", tags="Aa", queues=[0])
    first, second = Polling(consumer).step(), Polling(consumer).step()
    put(queues, b"no", tags="other")
    put(queues, b"no", tags="BB")  # of the same hash
    assert (first.rung, second.rung) == (0, 0)
    asked: list[int] = []
    pulling = consumer_pull(consumer)
    pull = pulling.value

    def noting(queue_id: int, offset: int, max_count: int) -> Any:
        asked.append(offset)
        return pull(queue_id, offset, max_count)

    with monkeypatch.context() as patched:
        patched.setattr(*pulling, noting)
        assert first.step().bodies == []  # its time is over
    assert asked == [2], "what the hold has looked at is not looked at again"
    assert consumer.commit() == {0: 2}
    put(queues, b"yes", tags="Aa")
    assert second.step().bodies == [b"yes"]


def test_a_place_beyond_the_end_is_waited_for(bench: Bench) -> None:
    """As where a group's offsets lay there before its topic was made."""
    bench.store.put("other", b"x")
    path = bench.root / "config/consumerOffset.json"
    bench.close()
    path.write_text('{"offsetTable":{"t@g":{0:2}}}')
    bench.open()
    consumer = bench.store.consumer("t", "g")
    polling = Polling(consumer).step()
    for k in range(2):
        bench.store.put("t", b"%d" % k)
        bench.turn()
        assert polling.rung == (k == 0), "but for the queue that came"
        polling.give_up()
        polling = Polling(consumer).step()
        assert polling.is_asleep, "it goes round and round"
    bench.store.put("t", b"2")
    bench.turn()
    assert polling.step().bodies == [b"2"]


def test_a_consumer_is_woken_where_polls_are_short(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(long_poll_enabled=False))
    bench.store.put("t", b"makes the topic", queue_id=1)
    bench.turn()
    polling = Polling(bench.store.consumer("t", "g", queues=[0])).step()
    pull = bench.store.begin_pull("t", 0, 0, wait=60.0)
    rung: list[int] = []
    assert pull.enter(lambda: rung.append(1))
    bench.store.put("t", b"x")
    bench.turn()
    assert (polling.rung, rung) == (1, [])
    assert polling.step().bodies == [b"x"]
    pull.leave()
    bench.close()


def test_a_read_error_is_for_who_looks(queues: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for whoever leaves the line before him."""
    consumer = queues.store.consumer("t", "g")
    first, second = Polling(consumer).step(), Polling(consumer).step()
    queue = inside(queues.store).routes.get("t", 1).queue

    def failing(_log_end: int) -> int:
        raise FailedError("by a test")

    with monkeypatch.context() as patched:
        patched.setattr(queue, "visible", failing)
        first.give_up()
        assert second.rung == 1
        with pytest.raises(FailedError, match="by a test"):
            second.look()
        second.give_up()
    assert holds(queues) == 0


def test_threads_of_one_consumer_share_what_comes(tmp_path: Path) -> None:
    import timerstore

    count = 300
    store = timerstore.open(tmp_path, small())
    consumer = store.consumer("t", "g")
    seen: list[bytes] = []

    def read() -> None:
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


def test_a_queue_that_left_and_came_back_begins_where_its_group_committed(queues: Bench) -> None:
    """While one sleeps another joins, takes the queue, reads, commits and goes."""
    first = queues.store.consumer("t", "g", tags="red")
    sleeping = Polling(first).step()
    put(queues, b"blue", 0, tags="blue")
    assert sleeping.rung == 0, "it was looked at, and is not for this group"
    with queues.store.consumer("t", "g", tags="red", queues=[0]) as second:
        put(queues, b"red", 0, tags="red")
        assert [one.body for one in second.poll()] == [b"red"]
        second.commit()
    assert 0 in first.queues
    assert sleeping.is_asleep
    put(queues, b"new", 0, tags="red")
    assert sleeping.step().bodies == [b"new"]
    first.close()
