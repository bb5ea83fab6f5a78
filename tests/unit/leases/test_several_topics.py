"""receive over several topics: turns, waits, limits, errors and cancelled callers."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.support.bench import Bench, small
from timerstore import AckResult, FlowControlError, MessageError
from timerstore._engine.read.topic_reader import TopicReader


def put(bench: Bench, topics: str, each: int = 1) -> None:
    """Put so many messages to each topic of one letter; a body is its topic and number."""
    for k in range(each):
        for topic in topics:
            bench.store.put(topic, f"{topic}{k}".encode())
    bench.turn()


def take(bench: Bench, topics: Any, count: int = 1, **more: Any) -> list[str]:
    found = bench.store.receive(topics, "g", max_count=count, **{"lease": 60, **more})
    for one in found:
        assert one.body.decode().startswith(one.topic)
    return [one.body.decode() for one in found]


def test_topics_take_turns(bench: Bench) -> None:
    put(bench, "abc", 4)
    got = [take(bench, ["a", "b", "c"])[0] for _ in range(12)]
    assert got == [f"{topic}{k}" for k in range(4) for topic in "abc"]
    assert take(bench, ("a", "b", "c")) == []


def test_topic_with_few_messages_does_not_wait_for_one_with_many(bench: Bench) -> None:
    put(bench, "a", 100)
    put(bench, "c", 2)
    got = [take(bench, ["a", "b", "c"])[0] for _ in range(6)]
    assert got == ["a0", "c0", "a1", "c1", "a2", "a3"]


def test_max_count_is_for_all_topics_and_the_next_call_begins_after_the_last(bench: Bench) -> None:
    put(bench, "abc", 3)
    assert take(bench, ["a", "b", "c"], 4) == ["a0", "a1", "a2", "b0"]
    assert take(bench, ["a", "b", "c"], 4) == ["c0", "c1", "c2", "b1"]
    assert take(bench, ["a", "b", "c"], 4) == ["b2"]


def test_turns_belong_to_the_topics_and_positions_to_the_topic(bench: Bench) -> None:
    put(bench, "ab", 3)
    assert take(bench, ["a", "b"]) == ["a0"]
    assert take(bench, "a") == ["a1"]
    assert take(bench, ["b", "a"]) == ["b0"]
    assert take(bench, ["a", "b"]) == ["a2"]
    assert take(bench, ["b"]) == ["b1"]
    assert bench.store.receive(["a", "b"], "other", lease=60)[0].body == b"a0"


def test_retries_come_with_their_topic(bench: Bench) -> None:
    put(bench, "ab")
    first = bench.store.receive(["a", "b"], "g", max_count=2, lease=60)
    for one in first:
        assert bench.store.nack(one, delay=0) is AckResult.NACKED
    bench.turn()
    again = bench.store.receive(["a", "b"], "g", max_count=2, max_attempts=2, lease=1)
    assert [(one.topic, one.attempt) for one in again] == [("a", 2), ("b", 2)]
    bench.turn(1000)
    assert [one.topic for one in bench.store.dead_letters("g")] == ["a", "b"]
    bench.store.requeue("g")
    bench.turn()
    assert sorted(take(bench, ["a", "b"], 9)) == ["a0", "b0"]


def test_filters_apply_to_each_topic(bench: Bench) -> None:
    for topic in "ab":
        for tag in ("x", "y"):
            bench.store.put(topic, f"{topic}{tag}".encode(), tags=tag)
    bench.turn()
    assert take(bench, ["a", "b"], 9, tags="y") == ["ay", "by"]


def test_leases_survive_a_restart(bench: Bench) -> None:
    put(bench, "ab", 2)
    found = bench.store.receive(["a", "b"], "g", max_count=3, lease=60)
    bench.reopen()
    assert take(bench, ["a", "b"], 9) == ["b1"]
    assert bench.store.ack_many(found) == [AckResult.ACKED] * 3


def test_each_topic_is_named_in_an_error_and_nothing_is_leased(bench: Bench) -> None:
    put(bench, "ab")
    for wrong, why in (
        ([], "topics: wanted 1 to 1000, got 0"),
        (["t"] * 1001, "topics: wanted 1 to 1000, got 1001"),
        (["a", "b", "a"], "topics: wanted each topic once, got 'a' twice"),
        (["a", "b c"], r"topics\[1\]: wanted 1 to 255 of"),
        (["a", 5], r"topics\[1\]: wanted 1 to 255 of"),
        (["a", "x" * 127], "group and topic"),
        (5, "topics: wanted several"),
        (b"a", "topics: wanted several"),
        (None, "topics: wanted several"),
    ):
        with pytest.raises(MessageError, match=why):
            bench.store.receive(wrong, "g")
    with bench.store.consumer("b", "g"), pytest.raises(MessageError, match="a consumer of group"):
        bench.store.receive(["a", "b"], "g")
    assert take(bench, ["a", "b"], 9) == ["a0", "b0"]


def test_messages_leased_before_an_error_are_returned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topic b fails; the call after the one that raises it reads the other topics."""
    put(bench, "abc")
    put(bench, "a")
    pull, fails = TopicReader.pull, [True]

    def failing(self: TopicReader, *given: Any) -> Any:
        if self._topic == "b" and fails:
            raise FlowControlError("b is full")
        return pull(self, *given)

    monkeypatch.setattr(TopicReader, "pull", failing)
    assert take(bench, ["c", "b", "a"], 9) == ["c0"]
    with pytest.raises(FlowControlError, match="b is full"):
        take(bench, ["c", "b", "a"], 9)
    assert take(bench, ["c", "b", "a"], 9) == ["a0", "a0"]
    fails.clear()
    assert take(bench, ["c", "b", "a"], 9) == ["b0"]


def test_one_message_wakes_one_waiter_once(bench: Bench) -> None:
    wakes: list[str] = []
    waiting = {}
    for name in ("first", "second"):
        one = waiting[name] = bench.store.begin_receive(["a", "b"], "g", wait=100)
        assert one.enter(lambda name=name: wakes.append(name))
    put(bench, "b")
    assert wakes == ["first"]
    waiting["first"].leave()
    assert [one.body for one in waiting["first"].look()] == [b"b0"]
    waiting["first"].end()
    bench.turn()
    assert wakes == ["first"]
    put(bench, "a")
    assert wakes == ["first", "second"]
    waiting["second"].leave()
    assert [one.body for one in waiting["second"].look()] == [b"a0"]
    waiting["second"].end()


def test_waiting_threads_get_each_message_once(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, small()) as store:
        got: Counter[bytes] = Counter()
        lock = threading.Lock()

        def work(topics: list[str]) -> None:
            while found := store.receive(topics, "g", wait=10, lease=60):
                store.ack_many(found)
                with lock:
                    got.update(one.body for one in found)
                    if sum(got.values()) == 60:
                        for one in "aabbcc":  # each thread finds one, whatever the others take
                            store.put(one, b"end")
                if found[0].body == b"end":
                    return

        threads = [
            threading.Thread(target=work, args=(topics,))
            for topics in (["a", "b"], ["b", "c"], ["c", "a"])
        ]
        for one in threads:
            one.start()
        for k in range(20):
            for topic in "abc":
                store.put(topic, f"{topic}{k}".encode())
        for one in threads:
            one.join(60)
        assert not any(one.is_alive() for one in threads)
        del got[b"end"]
        assert got == Counter(f"{topic}{k}".encode() for topic in "abc" for k in range(20))


def test_begin_that_fails_in_one_topic_leaves_no_waiter(bench: Bench) -> None:
    """Another caller waits for b with another filter."""
    blocked = bench.store.begin_receive("b", "g", wait=100, tags="x")
    with pytest.raises(MessageError, match="waits for 'b' with"):
        bench.store.begin_receive(["a", "b"], "g", wait=100)
    blocked.end()
    put(bench, "a")
    assert take(bench, "a", tags="y") == []  # a waiter with another filter would be an error


def test_lease_consumer_over_topics(bench: Bench) -> None:
    put(bench, "ab", 2)
    consumer = bench.store.lease_consumer(["a", "b"], "g", wait=0.0)
    got = []
    for message in consumer:
        with consumer.handling(message):
            got.append(message.body.decode())
    assert got == ["a0", "b0", "a1", "b1"]


def test_order_of_a_list_makes_no_new_turn(bench: Bench) -> None:
    for topic in ("t", "u"):
        bench.store.put(topic, topic.encode())
        bench.store.put(topic, topic.encode())
    bench.turn()
    got = [bench.store.receive(one, "g") for one in (["t", "u"], ["u", "t"], ("t", "u"))]
    assert [one.topic for part in got for one in part] == ["t", "u", "t"]


def test_topics_without_an_order_are_rejected(bench: Bench) -> None:
    for wrong in ({"t", "u"}, frozenset({"t"}), {"t": 1}):
        with pytest.raises(MessageError, match="topics: wanted a list"):
            bench.store.receive(wrong, "g")  # type: ignore[arg-type]
