"""receive(ordered=True): the messages of a message group one after another."""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.bench import DAY, Bench, small
from tests.support.inside import inside
from tests.support.leasing import DEAD, RETRY, bodies
from tests.support.message_groups import (
    LEASE_S,
    OTHER,
    A,
    B,
    C,
    names_of_queue,
    numbers,
    put,
    queue_of,
    take,
)
from timerstore import AckResult, MessageError
from timerstore._engine.base.message_fields import MESSAGE_GROUP_QUEUE_COUNT
from timerstore._engine.leases import LeasedMessage

# --- one message of a group at a time ---


def test_group_hands_out_one_message_until_it_is_acked(bench: Bench) -> None:
    put(bench, A, A, A)
    for k in range(3):
        [one] = take(bench)
        assert (numbers([one]), one.message_group, one.attempt) == ([k], A, 1)
        assert take(bench) == []
        assert bench.store.ack(one) is AckResult.ACKED
    assert take(bench) == []


def test_other_groups_of_the_queue_are_handed_out_up_to_the_message_that_waits(
    bench: Bench,
) -> None:
    put(bench, A, B, A, C, OTHER)
    first, second, other = take(bench)
    assert [first.message_group, second.message_group, other.message_group] == [A, B, OTHER]
    assert take(bench) == []
    bench.store.ack(second)
    assert take(bench) == []
    bench.store.ack(first)
    assert numbers(take(bench)) == [2, 3]


def test_group_of_a_settled_message_goes_on_while_others_are_leased(bench: Bench) -> None:
    put(bench, A, B, B)
    first, second = take(bench)
    assert take(bench) == []
    bench.store.ack(second)
    [third] = take(bench)
    assert numbers([third]) == [2]
    assert bench.store.ack(first) is AckResult.ACKED


def test_messages_without_a_group_are_not_kept_in_order(bench: Bench) -> None:
    put(bench, None, None, A, None)
    assert len(take(bench)) == 4


@pytest.mark.parametrize("max_attempts", [None, 1])
@pytest.mark.parametrize("queue_id", [0, 3])
def test_leased_message_without_a_group_blocks_no_group(
    bench: Bench, queue_id: int, max_attempts: int | None
) -> None:
    bench.store.put("t", b"plain", queue_id=queue_id)
    bench.turn()
    [plain] = take(bench, max_attempts=max_attempts)
    name = names_of_queue(queue_id, 1)[0]
    put(bench, name, name)
    bench.reopen()
    [one] = take(bench)
    assert (one.message_group, numbers([one])) == (name, [0])
    bench.store.ack(one)
    assert numbers(take(bench)) == [1]
    assert bench.store.ack(plain) is AckResult.ACKED


def test_message_without_a_group_does_not_wait_for_a_leased_one(bench: Bench) -> None:
    name = names_of_queue(0, 1)[0]
    put(bench, name)
    [one] = take(bench)
    bench.store.put("t", b"plain", queue_id=0)
    bench.reopen()
    assert bodies(take(bench)) == [b"plain"]
    bench.store.put("t", b"later", message_group=name)
    bench.turn()
    assert take(bench) == []
    bench.store.ack(one)
    assert bodies(take(bench)) == [b"later"]


def test_lease_in_the_last_queue_that_a_topic_may_have(bench: Bench) -> None:
    bench.store.put("t", b"x", queue_id=1023)
    bench.turn()
    [one] = take(bench)
    assert bench.store.ack(one) is AckResult.ACKED


def test_a_call_that_is_not_ordered_takes_all(bench: Bench) -> None:
    put(bench, A, A, B)
    assert numbers(take(bench, ordered=False)) == [0, 1, 2]


def test_order_is_that_of_delivery(bench: Bench) -> None:
    put(bench, A, delay=20)
    bench.store.put("t", b"early-9", message_group=A, delay=10)
    bench.turn(20_000)
    [one] = take(bench)
    assert one.body == b"early-9"
    bench.store.ack(one)
    assert numbers(take(bench)) == [0]


# --- failed attempts ---


def test_expired_lease_comes_again_before_the_next_message(bench: Bench) -> None:
    put(bench, A, A)
    [one] = take(bench)
    bench.turn(LEASE_S * 1000)
    [again] = take(bench)
    assert (numbers([again]), again.attempt) == ([0], 2)
    assert bench.store.ack(one) is AckResult.EXPIRED
    assert take(bench) == []
    bench.store.ack(again)
    assert numbers(take(bench)) == [1]


def test_message_in_backoff_blocks_its_group(bench: Bench) -> None:
    put(bench, A, A)
    [one] = take(bench)
    assert bench.store.nack(one) is AckResult.NACKED
    assert take(bench) == []
    bench.turn(4_999)
    assert take(bench) == []
    bench.turn(1)
    [again] = take(bench)
    assert (numbers([again]), again.attempt) == ([0], 2)
    assert take(bench) == []


def test_retry_that_waits_to_be_received_blocks_its_group(bench: Bench) -> None:
    put(bench, A, A, OTHER)
    [one, _] = take(bench)
    bench.store.nack(one, delay=0)
    bench.turn()
    # One message a call: whichever side comes first, the retry is before the next message.
    found = [*take(bench, 1), *take(bench, 1), *take(bench, 1)]
    assert [(numbers([each]), each.attempt) for each in found] == [([0], 2)]


@pytest.mark.parametrize("call", ["extend", "renew"])
def test_longer_lease_blocks_its_group(bench: Bench, call: str) -> None:
    put(bench, A, A)
    [one] = take(bench)
    longer = getattr(bench.store, call)(one, lease=100)
    bench.turn(50_000)
    assert take(bench) == []
    assert bench.store.ack(longer if call == "extend" else one) is AckResult.ACKED
    assert numbers(take(bench)) == [1]


def test_message_given_back_comes_first_as_the_same_attempt(bench: Bench) -> None:
    put(bench, A, A)
    [one] = take(bench)
    assert bench.store._give_back([one.receipt]) == 1
    bench.turn()
    [again] = take(bench)
    assert (numbers([again]), again.attempt) == ([0], 1)
    assert take(bench) == []


# --- dead letters ---


def ended_by_bury(bench: Bench, one: LeasedMessage) -> None:
    assert bench.store.bury(one) is AckResult.BURIED


def ended_by_nack(bench: Bench, one: LeasedMessage) -> None:
    assert bench.store.nack(one) is AckResult.NACKED


def ended_by_time(bench: Bench, one: LeasedMessage) -> None:
    assert one.is_last_attempt
    bench.turn(LEASE_S * 1000)


@pytest.mark.parametrize("end", [ended_by_bury, ended_by_nack, ended_by_time])
def test_dead_letter_frees_its_group(
    bench: Bench, end: Callable[[Bench, LeasedMessage], None]
) -> None:
    put(bench, A, A)
    [one] = take(bench, max_attempts=1)
    assert take(bench) == []
    end(bench, one)
    assert numbers(take(bench)) == [1]
    assert [each.body for each in bench.store.dead_letters("g")] == [one.body]


def test_requeued_dead_letter_comes_at_once_and_then_blocks_its_group(bench: Bench) -> None:
    put(bench, A, A, A)
    [one] = take(bench)
    bench.store.bury(one)
    [two] = take(bench)
    assert bench.store.requeue("g") == 1
    bench.turn()
    [again] = take(bench)
    assert numbers([again, two]) == [0, 1]
    bench.store.ack(two)
    assert take(bench) == []
    bench.store.ack(again)
    assert numbers(take(bench)) == [2]


def test_cancelled_lease_frees_its_group(bench: Bench) -> None:
    put(bench, A, A)
    take(bench)
    [timer] = bench.store.pending(topic=RETRY)
    bench.store.cancel(timer.handle)
    assert numbers(take(bench)) == [1]


# --- restarts ---


def test_order_survives_a_restart(bench: Bench) -> None:
    put(bench, A, A, B, OTHER, OTHER)
    leased, other = take(bench, 2)
    bench.reopen()
    assert take(bench) == []
    for one in (leased, other):
        assert bench.store.ack(one) is AckResult.ACKED
    assert sorted(numbers(take(bench))) == [1, 2, 4]


@pytest.mark.parametrize("state", ["leased", "back-off", "retry", "last attempt", "given back"])
def test_order_survives_a_kill(tmp_path: Path, state: str) -> None:
    bench = Bench(tmp_path / "store")
    put(bench, A, A)
    [one] = take(bench, max_attempts=1 if state == "last attempt" else None)
    if state == "back-off":
        bench.store.nack(one)
    elif state == "retry":
        bench.store.nack(one, delay=0)
    elif state == "given back":
        bench.store._give_back([one.receipt])
    bench.stepper.settle()
    bench.kill(tmp_path / "copy")
    found = take(bench)
    assert numbers(found) == ([0] if state in ("retry", "given back") else [])
    bench.turn(LEASE_S * 1000)
    if state == "last attempt":
        assert numbers(take(bench)) == [1]
    else:
        found = take(bench)  # its lease or its back-off is over
        assert numbers(found) == [0]
        assert take(bench) == []
        bench.store.ack(found[0])
        assert numbers(take(bench)) == [1]
    bench.close()


def test_lease_past_the_wheel_blocks_its_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(delay_ms_max=40 * DAY))
    put(bench, A, A)
    [one] = take(bench, lease=30 * 86_400)
    for _ in range(29):
        bench.turn(DAY)
        assert take(bench) == []
    bench.reopen()
    assert take(bench) == []
    bench.turn(DAY)
    assert [each.attempt for each in take(bench)] == [2]
    assert bench.store.ack(one) is AckResult.EXPIRED
    bench.close()


# --- waiting ---


def waiting(bench: Bench, found: "deque[list[LeasedMessage]]", **more: Any) -> threading.Thread:
    """Start a thread that waits for a message."""
    local = inside(bench.local)
    before = local.long_polls.count
    thread = threading.Thread(target=lambda: found.append(take(bench, wait=60, **more)))
    thread.start()
    while local.long_polls.count == before:
        threading.Event().wait(0.001)
    return thread


@pytest.mark.parametrize("end", [ended_by_bury, ended_by_nack, ended_by_time, "ack"])
def test_waiting_receive_is_woken_by_the_end_of_the_earlier_message(bench: Bench, end: Any) -> None:
    put(bench, A, A)
    [one] = take(bench, max_attempts=1)
    found: deque[list[LeasedMessage]] = deque()
    thread = waiting(bench, found)
    if end == "ack":
        bench.store.ack(one)
    else:
        end(bench, one)
    thread.join(20)
    assert numbers(found.pop()) == [1]


def _acked(bench: Bench, one: LeasedMessage) -> None:
    assert bench.store.ack(one) is AckResult.ACKED


def _given_back(bench: Bench, one: LeasedMessage) -> None:
    assert bench.local._give_back([one.receipt]) == 1


@pytest.mark.parametrize("end", [_acked, _given_back, ended_by_bury, ended_by_nack, ended_by_time])
def test_waiting_receive_is_woken_by_the_end_of_a_last_attempt_of_another_topic(
    bench: Bench, end: Callable[[Bench, LeasedMessage], None]
) -> None:
    bench.store.put("u", b"other", message_group=B)
    bench.turn()
    [other] = bench.store.receive("u", "g", ordered=True, max_attempts=1, lease=LEASE_S)
    put(bench, A)
    assert take(bench) == []
    found: deque[list[LeasedMessage]] = deque()
    thread = waiting(bench, found)
    end(bench, other)
    thread.join(20)
    assert numbers(found.pop()) == [0]


def test_waiting_receive_is_woken_by_the_retry(bench: Bench) -> None:
    put(bench, A, A)
    [one] = take(bench)
    found: deque[list[LeasedMessage]] = deque()
    thread = waiting(bench, found)
    bench.store.nack(one)
    bench.turn(5_000)
    thread.join(20)
    assert [each.attempt for each in found.pop()] == [2]


def test_waiting_receive_is_woken_by_another_queue_while_one_is_blocked(bench: Bench) -> None:
    put(bench, A, A)
    take(bench)
    found: deque[list[LeasedMessage]] = deque()
    thread = waiting(bench, found)
    put(bench, OTHER)
    thread.join(20)
    assert [each.message_group for each in found.pop()] == [OTHER]


def test_each_of_several_waiting_callers_gets_its_message(bench: Bench) -> None:
    put(bench, A, A, B, B, OTHER, OTHER)
    first = [*take(bench), *take(bench)]
    assert len(first) == 2
    rest = [*first, *take(bench)]
    found: deque[list[LeasedMessage]] = deque()
    thread = waiting(bench, found, count=1)
    others = [threading.Thread(target=lambda: found.append(take(bench, 1, wait=60))) for _ in "ab"]
    for one in others:
        one.start()
    for message in rest:
        bench.store.ack(message)
    for one in (thread, *others):
        one.join(20)
    assert len(found) == 3
    assert all(found)


def test_mode_may_not_change_while_a_call_waits(bench: Bench) -> None:
    put(bench, A, A)
    take(bench)
    found: deque[list[LeasedMessage]] = deque()
    thread = waiting(bench, found)
    with pytest.raises(MessageError, match=r"ordered True.*; got tags None, sql None, ordered F"):
        take(bench, ordered=False)
    bench.turn(LEASE_S * 1000)
    thread.join(20)
    assert numbers(found.pop()) == [0]
    assert numbers(take(bench, ordered=False)) == [1]


def test_waiting_callers_are_served_in_order(bench: Bench) -> None:
    """Three callers wait, and each message is acknowledged as soon as it came."""
    put(bench, A, A, A)
    found: SimpleQueue[list[LeasedMessage]] = SimpleQueue()
    calls = [threading.Thread(target=lambda: found.put(take(bench, wait=60))) for _ in "123"]
    for one in calls:
        one.start()
    for k in range(3):
        [message] = found.get(timeout=30)
        assert numbers([message]) == [k]
        assert found.empty()
        assert bench.store.ack(message) is AckResult.ACKED
    for one in calls:
        one.join(20)


def test_several_topics_are_each_in_order(bench: Bench) -> None:
    for topic in "tu":
        for k in range(2):
            bench.store.put(topic, f"{topic}-{k}".encode(), message_group=A)
    bench.turn()
    found = bench.store.receive(["t", "u"], "g", ordered=True, max_count=10)
    assert bodies(found) == [b"t-0", b"u-0"]
    bench.store.ack(found[0])
    assert bodies(bench.store.receive(["u", "t"], "g", ordered=True, max_count=10)) == [b"t-1"]


def test_lease_consumer_is_ordered(bench: Bench) -> None:
    put(bench, A, A, A)
    seen = []
    consumer = bench.store.lease_consumer("t", "g", wait=0, ordered=True)
    for one in consumer:
        with consumer.handling(one):
            seen.append(one)
    assert numbers(seen) == [0, 1, 2]


# --- arguments ---


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"message_group": ""}, "message_group: wanted text of 1 to 128 bytes"),
        ({"message_group": "ä" * 65}, "message_group: wanted text of 1 to 128 bytes"),
        ({"message_group": "a\x02"}, "message_group: wanted text of 1 to 128 bytes"),
        ({"message_group": "\ud800"}, "message_group: wanted text of 1 to 128 bytes"),
        ({"message_group": 5}, "message_group: wanted text of 1 to 128 bytes.*got 5"),
        ({"message_group": "a", "priority": 0}, "message_group, priority: wanted one of them"),
        ({"message_group": "a", "queue_id": 1}, "message_group, queue_id: wanted one of them"),
        ({"properties": {"__SHARDINGKEY": "a"}}, "reserved; pass it as message_group="),
    ],
)
def test_put_names_wrong_arguments(bench: Bench, arguments: Any, match: str) -> None:
    with bench.refused(MessageError, match):
        bench.store.put("t", b"x", **arguments)


@pytest.mark.parametrize("ordered", [1, None, "yes"])
def test_receive_names_a_wrong_flag(bench: Bench, ordered: Any) -> None:
    with pytest.raises(MessageError, match="ordered: wanted True or False, got"):
        take(bench, ordered=ordered)


def test_topic_has_priorities_or_message_groups(bench: Bench) -> None:
    bench.store.put("t", b"x", priority=5)
    with bench.refused(MessageError, "message_group: wanted a topic without priorities, got 't'"):
        bench.store.put("t", b"x", message_group=A)
    bench.store.put("u", b"x", message_group=A)
    with bench.refused(MessageError, "priority: topic 'u' has messages in queue 3"):
        bench.store.put("u", b"x", priority=5)


def test_ordered_receive_ignores_priorities(bench: Bench) -> None:
    for priority in (1, 9, 5):
        bench.store.put("t", b"%d" % priority, priority=priority)
    bench.turn()
    assert bodies(take(bench)) == [b"1", b"5", b"9"]


def test_group_has_one_of_sixteen_queues(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"x", message_group=f"g{k}") for k in range(100)]
    assert {one.queue_id for one in receipts} == set(range(MESSAGE_GROUP_QUEUE_COUNT))
    assert queue_of("order-4711") == 15  # stored messages rely on it


def test_every_kind_of_put_keeps_the_message_group(bench: Bench) -> None:
    kinds: list[dict[str, Any]] = [
        {}, {"delay": 5}, {"level": 1}, {"message_id": "i"}, {"key": "k", "replace": True},
        {"key": "k", "unique": True}, {"spread": 5}, {"tags": "x", "properties": {"a": "b"}},
    ]  # fmt: skip
    for kind in kinds:
        bench.store.put("t", b"x", message_group=A, **kind)
    bench.turn(10_000)
    found = bench.out("t", queue_of(A))
    assert [one.message_group for one in found] == [A] * len(kinds)


def test_replacing_message_stays_in_its_queue(bench: Bench) -> None:
    bench.store.put("t", b"x", message_group=A, key="k", replace=True, delay=5)
    with bench.refused(MessageError, "message_group: a message with key 'k' is pending for queue"):
        bench.store.put("t", b"x", message_group=OTHER, key="k", replace=True, delay=5)


def test_dead_letter_of_a_group_lies_in_the_queue_of_the_group(bench: Bench) -> None:
    put(bench, A)
    [one] = take(bench, max_attempts=1)
    bench.turn(LEASE_S * 1000)
    assert [each.body for each in bench.out(DEAD, queue_of(A) + 1)] == [one.body]


def test_backlog_counts_messages_that_wait_for_their_turn(bench: Bench) -> None:
    put(bench, A, A, A)
    [one] = take(bench)
    backlog = bench.store.backlog("t", "g")
    assert (backlog.ready, backlog.leased) == (2, 1)
    bench.store.nack(one)
    backlog = bench.store.backlog("t", "g")
    assert (backlog.ready, backlog.leased, backlog.in_backoff) == (2, 0, 1)
