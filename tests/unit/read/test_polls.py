"""Waiting polls of consumers: a message wakes one of them, and one that ends wakes the next."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import wait_queue_of, waiters_of
from tests.support.waiting_calls import PollCaller, long_poll_count, put_now


def test_message_wakes_the_consumer_of_its_queue(read_queues: Bench) -> None:
    consumers = [read_queues.store.consumer("t", "g") for _ in range(4)]
    polls = {one.queues[0]: PollCaller(one).step() for one in consumers}
    assert long_poll_count(read_queues) == 4
    put_now(read_queues, b"x", 2)
    assert {q: poll.wake_count for q, poll in polls.items()} == {0: 0, 1: 0, 2: 1, 3: 0}
    assert polls[2].step().bodies == [b"x"]
    assert long_poll_count(read_queues) == 3
    for poll in polls.values():
        poll.give_up()
    assert long_poll_count(read_queues) == 0


def test_message_wakes_one_of_several_polls_of_a_consumer(read_queues: Bench) -> None:
    consumer = read_queues.store.consumer("t", "g")
    polls = [PollCaller(consumer).step() for _ in range(5)]
    assert long_poll_count(read_queues) == 4, "the first has a long poll at each of its four queues"
    for k in range(5):
        put_now(read_queues, b"%d" % k, k % 3)
        assert [poll.wake_count for poll in polls] == [1] * (k + 1) + [0] * (4 - k)
        assert polls[k].step().bodies == [b"%d" % k]
    assert (long_poll_count(read_queues), len(waiters_of(wait_queue_of(consumer)))) == (0, 0)


def test_messages_left_by_one_poll_wake_the_next(read_queues: Bench) -> None:
    consumer = read_queues.store.consumer("t", "g")
    polls = [PollCaller(consumer, 1).step() for _ in range(3)]
    read_queues.store.put_many("t", [b"0", b"1"], queue_id=0)
    read_queues.turn()
    assert [poll.wake_count for poll in polls] == [1, 0, 0]
    assert polls[0].step().bodies == [b"0"]
    assert [poll.wake_count for poll in polls] == [1, 1, 0]
    assert polls[1].step().bodies == [b"1"]
    assert [poll.wake_count for poll in polls] == [1, 1, 0]
    put_now(read_queues, b"2")
    assert polls[2].step().bodies == [b"2"]


@pytest.mark.parametrize("is_woken", [False, True])
def test_next_poll_takes_over_when_one_gives_up(read_queues: Bench, is_woken: bool) -> None:
    consumer = read_queues.store.consumer("t", "g")
    first, last, second = (PollCaller(consumer).step() for _ in range(3))
    last.give_up()
    if is_woken:
        put_now(read_queues, b"x")
        assert (first.wake_count, second.wake_count) == (1, 0)
        first.give_up()
        assert second.wake_count == 1
    else:
        first.give_up()
        assert (long_poll_count(read_queues), second.wake_count) == (4, 0)
        put_now(read_queues, b"x")
        assert second.wake_count == 1
    assert second.step().bodies == [b"x"]
    assert long_poll_count(read_queues) == 0


def test_poll_keeps_its_position_while_it_reads(read_queues: Bench) -> None:
    consumer = read_queues.store.consumer("t", "g")
    first, second = PollCaller(consumer).step(), PollCaller(consumer).step()
    put_now(read_queues, b"taken by another poll")
    assert len(consumer.poll()) == 1
    first.step()
    assert (first.answer, first.is_waiting, second.wake_count) == (None, True, 0)
    put_now(read_queues, b"x")
    assert (first.wake_count, second.wake_count) == (2, 0)
    first.give_up()
    assert second.step().bodies == [b"x"]


def test_message_wakes_no_poll_of_another_group_or_topic(read_queues: Bench) -> None:
    put_now(read_queues, b"before", 0)
    mine = PollCaller(read_queues.store.consumer("t", "g", queues=[1])).step()
    other = PollCaller(read_queues.store.consumer("elsewhere", "g")).step()
    put_now(read_queues, b"x", 0)
    read_queues.store.put("third", b"x")
    read_queues.turn()
    assert (mine.wake_count, other.wake_count) == (0, 0)
    mine.give_up()
    other.give_up()


@pytest.mark.parametrize("visibility", ["durable", "written"])
@pytest.mark.parametrize("has_before", [False, True])
def test_poll_misses_no_message_in_any_order_of_steps(
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
        caller = PollCaller(consumer)
        calls: dict[str, Callable[[], object]] = {
            "put": partial(bench.store.put, topic, b"now"),
            "dispatch": partial(bench.stepper.step, "dispatch"),
            "flush": partial(bench.stepper.step, "flush"),
            "look": caller.look,
            "enter": caller.enter,
        }
        for name in order:
            calls[name]()
        if caller.is_waiting:
            assert caller.wake_count >= 1, f"{order}: it sleeps although its message has arrived"
        if caller.answer is None:
            caller.step()
        assert caller.bodies == [b"now"], order
        bench.turn()
    bench.close()
