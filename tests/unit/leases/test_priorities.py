"""Priorities: which message a group receives next, and what keeps its priority."""

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
import timerstore.aio
from tests.support.bench import DAY, Bench, small
from tests.support.driver import abandon
from tests.support.inside import APPEND_OWN, inside
from tests.support.leasing import DEAD, RETRY
from tests.support.placing_races import full
from tests.support.stepped_aio import stepped_store
from timerstore import (
    AckResult,
    CancelResult,
    ConflictError,
    FlowControlError,
    FullError,
    MessageError,
    StoreConfig,
)
from timerstore._engine.base.message_fields import PriorityQueueId, stored_queue_id
from timerstore._engine.leases.lease_reader import TURN_EVERY, PriorityOrder


def put(bench: Bench, *priorities: int | None, **more: Any) -> None:
    """Put a message for each priority; its body is the priority and a number."""
    for k, one in enumerate(priorities):
        bench.store.put("t", f"{one or 0}-{k}".encode(), priority=one, **more)
    bench.turn()


def take(bench: Bench, count: int = 10, **more: Any) -> list[Any]:
    return bench.store.receive("t", "g", max_count=count, **{"lease": 60, **more})


def seen(messages: list[Any]) -> list[str]:
    for one in messages:
        assert one.priority == int(one.body[:1])
    return [one.body.decode() for one in messages]


# --- order ---


def test_higher_priorities_come_first_and_each_in_order(bench: Bench) -> None:
    put(bench, 0, 5, None, 9, 5, 0, 9)
    assert seen(take(bench)) == ["9-3", "9-6", "5-1", "5-4", "0-0", "0-2", "0-5"]


def test_one_at_a_time_sees_what_came_since(bench: Bench) -> None:
    put(bench, 0, 3)
    assert seen(take(bench, 1)) == ["3-1"]
    put(bench, 9, 4)
    assert seen(take(bench, 1)) == ["9-0"]
    assert seen(take(bench, 1)) == ["4-1"]
    assert seen(take(bench, 1)) == ["0-0"]
    assert take(bench) == []


def test_messages_that_could_not_be_leased_take_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store")
    put(bench, *[9] * 12, 0)
    with monkeypatch.context() as patched:
        patched.setattr(*APPEND_OWN, lambda *_: full())
        with pytest.raises(FullError):
            take(bench, 9)
    got = [seen(take(bench, 1))[0][0] for _ in range(10)]
    assert got == ["9"] * 9 + ["0"]
    bench.close()


def test_each_tenth_message_is_of_the_priority_that_waited_longest(bench: Bench) -> None:
    put(bench, *[9] * 60, *[4] * 3, *[0] * 3)
    got = [seen(take(bench, 1))[0][0] for _ in range(60)]
    assert got == (["9"] * 9 + ["0"] + ["9"] * 9 + ["4"]) * 3
    assert [one[0] for one in seen(take(bench, 100))] == ["9"] * 6


def test_no_priority_starves_when_others_never_end(bench: Bench) -> None:
    """Priorities 9, 5 and 0 get new messages all the time; each gets its share of 30 messages."""
    put(bench, *[9] * 40, *[5] * 2, *[0] * 40)
    got: list[str] = []
    for _ in range(90):
        got += [one[0] for one in seen(take(bench, 1))]
        put(bench, *[9] * 2, 5, 0)
    for begin in range(61):
        assert set(got[begin : begin + 30]) == {"9", "5", "0"}


def test_batches_have_the_order_of_single_messages(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other")
    for one in (bench, other):
        put(one, *[7] * 30, *[1] * 9, None, 2, None)
    single = [seen(take(bench, 1))[0] for _ in range(42)]
    batches = [body for count in (1, 3, 20, 7, 11) for body in seen(take(other, count))]
    assert batches == single
    other.close()


def test_queues_past_the_priorities_come_last(bench: Bench) -> None:
    put(bench, 5, 0, 5)
    for queue_id in (12, 3, 30):
        bench.store.put("t", b"queue %d" % queue_id, queue_id=queue_id)
    bench.turn()
    order = [b"5-0", b"5-2", b"queue 3", b"0-1", b"queue 12", b"queue 30"]
    got = [take(bench, 1)[0] for _ in range(6)]
    assert [one.body for one in got] == order
    for one in got:
        assert bench.store.nack(one, delay=0) is AckResult.NACKED
    bench.turn()
    assert [one.body for one in take(bench)] == order  # the retries, too


@pytest.mark.parametrize("at_once", [10, 1])
def test_retries_and_new_messages_of_a_priority_take_turns(bench: Bench, at_once: int) -> None:
    put(bench, 5, 5, 1)
    for one in take(bench):
        assert bench.store.nack(one, delay=0) is AckResult.NACKED
    bench.turn()
    put(bench, 5, 5, 1)
    got = [one for _ in range(6) for one in take(bench, at_once)]
    assert Counter(one.attempt for one in got[:4]) == {1: 2, 2: 2}
    assert [one.attempt for one in got[:4]] in ([1, 2, 1, 2], [2, 1, 2, 1])
    assert [one.priority for one in got] == [5, 5, 5, 5, 1, 1]


@given(
    lists=st.lists(
        st.tuples(
            st.dictionaries(
                st.tuples(st.integers(0, 9), st.integers(0, 1)), st.integers(0, 12), max_size=8
            ),
            st.integers(1, 40),
        ),
        max_size=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_order_of_any_queues_serves_the_highest_and_the_longest_waiting(
    lists: list[tuple[dict[tuple[int, int], int], int]],
) -> None:
    """A model without plans: choose one message after another."""
    order, number, served = PriorityOrder(), 0, Counter[int]()
    for available, count in lists:
        runs = order.plan(available, count)
        assert order.turn_count(count) == sum(
            (number + k) % TURN_EVERY == 0 for k in range(1, count + 1)
        )
        left = Counter(available)
        for source, size in runs:
            for _ in range(size):
                number += 1
                there = {priority for (priority, _), n in left.items() if n > 0}
                if number % TURN_EVERY == 0:
                    oldest = min(served[one] for one in there)
                    assert source[0] == min(one for one in there if served[one] == oldest)
                else:
                    assert source[0] == max(there)
                served[source[0]] = number
                assert left[source] > 0
                left[source] -= 1
            order.taken(source, size)
        assert sum(size for _, size in runs) == min(count, sum(available.values()))


# --- what keeps a priority ---


def test_a_delayed_message_keeps_its_priority(bench: Bench) -> None:
    bench.store.put("t", b"0-a", delay=10)
    bench.store.put("t", b"9-b", delay=10, priority=9)
    moved = bench.store.put("t", b"7-c", delay=99, priority=7)
    gone = bench.store.put("t", b"8-d", delay=10, priority=8)
    assert moved.queue_id == 7
    assert bench.store.reschedule(moved.handle, delay=10).queue_id == 7
    assert bench.store.cancel(gone) is CancelResult.CANCELLED
    bench.reopen()
    bench.turn(10_000)
    assert seen(take(bench)) == ["9-b", "7-c", "0-a"]


def test_levels_ids_and_spread_take_a_priority(bench: Bench) -> None:
    bench.store.put("t", b"0-a")
    bench.store.put("t", b"1-b", level=1, priority=1)
    first = bench.store.put("t", b"2-c", message_id="x", priority=2)
    again = bench.store.put("t", b"2-c", message_id="x", priority=2)
    assert (again.duplicate, again.queue_id) == (True, first.queue_id)
    bench.store.put("t", b"3-d", spread=5, priority=3)
    bench.turn(DAY)
    assert seen(take(bench)) == ["3-d", "2-c", "1-b", "0-a"]


def test_replacement_keeps_the_priority(bench: Bench) -> None:
    how: dict[str, Any] = {"key": "k", "replace": True, "delay": 5}
    bench.store.put("t", b"6-a", priority=6, **how)
    assert bench.store.put("t", b"6-b", **how).queue_id == 6
    assert bench.store.put("t", b"6-c", priority=6, **how).queue_id == 6
    with pytest.raises(MessageError, match=r"^priority: a message with key 'k' is pending for"):
        bench.store.put("t", b"7-d", priority=7, **how)
    bench.turn(5000)
    assert seen(take(bench)) == ["6-c"]


def test_retries_dead_letters_and_requeued_messages_keep_it(bench: Bench) -> None:
    put(bench, 0, 9, 5)
    for one in take(bench):
        bench.store.nack(one, delay=0)
    bench.turn()
    assert [len(bench.out(RETRY, queue)) for queue in (0, 5, 9)] == [1, 1, 1]
    again = take(bench, lease=1, max_attempts=2)
    assert seen(again) == ["9-1", "5-2", "0-0"]
    assert [one.attempt for one in again] == [2, 2, 2]
    bench.turn(1000)
    assert len(bench.out(DEAD)) == 3
    assert sorted(seen(list(bench.store.dead_letters("g")))) == ["0-0", "5-2", "9-1"]
    bench.reopen()
    assert bench.store.requeue("g") == 3
    bench.turn()
    last = take(bench)
    assert seen(last) == ["9-1", "5-2", "0-0"]
    longer = bench.store.extend(last[0], lease=99)
    assert bench.store.ack_many([longer, *last[1:]]) == [AckResult.ACKED] * 3
    bench.turn(DAY)
    assert take(bench) == []


def test_buried_message_keeps_it(bench: Bench) -> None:
    put(bench, 0, 9)
    for one in take(bench):
        assert bench.store.bury(one) is AckResult.BURIED
    bench.turn()
    assert bench.store.requeue("g") == 2
    bench.turn()
    assert seen(take(bench)) == ["9-1", "0-0"]


def test_recurring_runs_have_it(bench: Bench) -> None:
    bench.store.put("t", b"0-plain")
    one = bench.store.put_every("t", b"4-run", every=10, name="n", priority=4)
    assert bench.store.put_every("t", b"4-run", every=10, name="n", priority=4) == one
    with pytest.raises(MessageError, match="recurs already"):
        bench.store.put_every("t", b"4-run", every=10, name="n", priority=5)
    with pytest.raises(MessageError, match="priority, queue_id"):
        bench.store.put_every("t", b"x", every=10, priority=5, queue_id=1)
    bench.turn(10_000)
    bench.reopen()
    bench.turn(10_000)
    assert seen(take(bench)) == ["4-run", "4-run", "0-plain"]


def test_priorities_survive_a_kill(bench: Bench, tmp_path: Path) -> None:
    put(bench, 0, 9, 5)
    shutil.copytree(bench.root, tmp_path / "killed")
    abandon(bench.store)
    bench.root = tmp_path / "killed"
    bench.open()
    put(bench, None, 9)
    assert seen(take(bench)) == ["9-1", "9-1", "5-2", "0-0", "0-0"]


# --- batches ---


def test_put_many_takes_one_priority_for_all_or_one_for_each(bench: Bench) -> None:
    bench.store.put_many("t", [b"3-a", b"3-b"], priority=3)
    receipts = bench.store.put_many(
        "t", [b"0-a", b"9-b", b"0-c", b"5-d"], priority=[0, 9, 0, 5],
        keys=["k0", "k1", "k2", "k3"], message_ids=["i0", None, "i2", "i3"], delay=[0, 0, 1, 0],
    )  # fmt: skip
    assert [one.queue_id for one in receipts] == [0, 9, 0, 5]
    assert [one.message_id for one in receipts][::2] == ["i0", "i2"]
    assert len(set(receipts.message_ids)) == 4
    again = bench.store.put_many(
        "t", [b"0-a", b"5-d"], priority=[0, 5], keys=["k0", "k3"], message_ids=["i0", "i3"]
    )
    assert [one.duplicate for one in again] == [True, True]
    assert [one.queue_id for one in again] == [0, 5]
    bench.turn(1000)
    got = take(bench)
    assert seen(got) == ["9-b", "5-d", "3-a", "3-b", "0-a", "0-c"]
    assert {one.body: one.keys for one in got}[b"5-d"] == ("k3",)
    (pending,) = bench.store.put_many("t", [b"x"], priority=[4], delay=50)
    assert bench.store.cancel(pending) is CancelResult.CANCELLED


def test_handles_of_a_batch_with_priorities_cancel_their_messages(bench: Bench) -> None:
    receipts = bench.store.put_many(
        "t", [b"%d-x" % (k % 3) for k in range(9)], priority=[k % 3 for k in range(9)], delay=50
    )
    assert bench.store.cancel_many(receipts.handles[3:]) == [CancelResult.CANCELLED] * 6
    bench.turn(50_000)
    assert seen(take(bench)) == ["2-x", "1-x", "0-x"]


def test_atomic_batch_has_one_priority(bench: Bench) -> None:
    bench.store.put_many("t", [b"6-a", b"6-b"], priority=[6, 6], atomic=True)
    with pytest.raises(MessageError, match="atomic: wanted messages of one priority"):
        bench.store.put_many("t", [b"x", b"y"], priority=[6, 5], atomic=True)
    bench.turn()
    assert seen(take(bench)) == ["6-a", "6-b"]


@pytest.mark.parametrize(
    ("bodies", "ids"),
    [(["7-new", "0-other"], ["b", "a"]), (["7-x", "0-x"], ["c", "c"]), (["1-x"], ["a"])],
)
def test_nothing_of_a_batch_with_a_conflict_is_stored(
    bench: Bench, bodies: list[str], ids: list[str]
) -> None:
    bench.store.put("t", b"0-first", message_id="a")
    with pytest.raises(ConflictError) as caught:
        bench.store.put_many(
            "t", [one.encode() for one in bodies],
            priority=[int(one[0]) for one in bodies], message_ids=ids,
        )  # fmt: skip
    assert caught.value.stored_count == 0
    bench.turn()
    assert seen(take(bench)) == ["0-first"]
    assert bench.store.topics()["t"] == 1


def test_single_put_with_a_conflict_does_not_make_a_priority_topic(bench: Bench) -> None:
    bench.store.put("t", b"0-first", message_id="a")
    with pytest.raises(ConflictError):
        bench.store.put("t", b"0-first", message_id="a", priority=1)
    assert bench.store.topics()["t"] == 1


def test_batch_with_priorities_and_a_full_slot_stores_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(slot_messages_max=1))
    with pytest.raises(FlowControlError) as caught:
        bench.store.put_many("t", [b"0-low", b"9-high"], priority=[0, 9], delay=50)
    assert caught.value.stored_count == 0
    bench.turn(60_000)
    assert bench.bodies() == []
    bench.close()


def test_stored_messages_of_a_failed_batch_are_its_first(bench: Bench) -> None:
    """The disk is full at the second part; the rest is repeated as the documentation says."""
    put(bench, 9)
    log = inside(bench.store).log
    serve = log.provide

    def no_space(status: int, need: int, what: str) -> None:
        serve(status, need, what)
        full()

    bodies, priorities = [b"0-a", b"0-b", b"9-c" + bytes(3000), b"0-d"], [0, 0, 9, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "provide", no_space)
        log.native.append_limit = log.end + 2000
        with pytest.raises(FullError) as caught:
            bench.store.put_many("t", bodies, priority=priorities)
    stored = caught.value.stored_count
    assert stored == 2
    bench.store.put_many("t", bodies[stored:], priority=priorities[stored:])
    bench.turn()
    assert [one[:3] for one in seen(take(bench))] == ["9-0", "9-c", "0-a", "0-b", "0-d"]


def test_repeated_id_with_another_priority_is_a_conflict(bench: Bench) -> None:
    first = bench.store.put("t", b"3", message_id="a", priority=3)
    again = bench.store.put("t", b"3", message_id="a", priority=3)
    assert (again.duplicate, again.log_offset) == (True, first.log_offset)
    for other in (None, 4):
        with pytest.raises(ConflictError) as caught:
            bench.store.put("t", b"3", message_id="a", priority=other)
        assert caught.value.differs == ("properties",)


def test_nothing_of_a_batch_with_a_wrong_priority_is_stored(bench: Bench) -> None:
    for wrong, why in (
        ([1], r"priority: wanted one for each of 2 bodies, got 1"),
        ([1, 10], r"priority\[1\]: priority: wanted 0 to 9, got 10"),
        ([1, True], r"priority\[1\]"),
        ("12", "priority: wanted 0 to 9"),
        (10, "priority: wanted 0 to 9, got 10"),
    ):
        with pytest.raises(MessageError, match=why):
            bench.store.put_many("t", [b"a", b"b"], priority=wrong)
    with pytest.raises(MessageError, match="priority, queue_id"):
        bench.store.put_many("t", [b"a", b"b"], priority=[1, 2], queue_id=1)
    with pytest.raises(MessageError):
        bench.store.put_many("t", [b"a", b"x" * (5 << 20)], priority=[1, 2])
    assert "t" not in bench.store.topics()


# --- topics ---


def test_topic_without_priorities_stays_as_it_is(bench: Bench) -> None:
    put(bench, None, 0)
    assert bench.store.topics()["t"] == 1
    assert bench.store.put("t", b"0-x", priority=0).queue_id == 0
    assert bench.store.topics()["t"] == 1
    assert bench.store.put("t", b"1-x", priority=1).queue_id == 1
    assert bench.store.topics()["t"] == 10
    assert [bench.store.put("t", b"0-x").queue_id for _ in range(3)] == [0, 0, 0]
    bench.reopen()
    assert [bench.store.put("t", b"0-x").queue_id for _ in range(3)] == [0, 0, 0]
    assert bench.store.put("u", b"x").queue_id == 0
    assert bench.store.topics()["u"] == 1


@pytest.mark.parametrize("first", [True, False])
def test_topic_with_many_queues_takes_priorities_only_from_its_beginning(
    tmp_path: Path, *, first: bool
) -> None:
    bench = Bench(tmp_path, StoreConfig(**{**small_values(), "topic_queue_count": 4}))
    if first:
        assert bench.store.put("t", b"5-x", priority=5).queue_id == 5
        assert [bench.store.put("t", b"0-x").queue_id for _ in range(3)] == [0, 0, 0]
        bench.turn()
        got = take(bench)
        assert seen(got) == ["5-x", "0-x", "0-x", "0-x"]
        for one in got:
            bench.store.nack(one, delay=0)
        bench.turn()
        assert seen(take(bench)) == ["5-x", "0-x", "0-x", "0-x"]
    else:
        for _ in range(4):
            bench.store.put("t", b"0-x", delay=5)
        for call in (
            lambda: bench.store.put("t", b"5-x", priority=5),
            lambda: bench.store.put_many("t", [b"a", b"b"], priority=[0, 5]),
            lambda: bench.store.put_every("t", b"a", every=5, priority=5),
        ):
            with pytest.raises(MessageError, match="topic 't' has messages in queue 1; wanted"):
                call()
        assert bench.store.recurring() == []
        assert bench.store.topics()["t"] == 4
    bench.close()


def small_values() -> dict[str, Any]:
    config = small()
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_a_group_that_leased_before_goes_on(bench: Bench) -> None:
    """The retries of the first messages are in a retry topic with one queue."""
    put(bench, None, None)
    (one, two) = take(bench)
    put(bench, 9, None)
    assert bench.store.nack(one, delay=0) is AckResult.NACKED
    bench.turn()
    got = take(bench)
    assert (seen(got)[0], sorted(seen(got)[1:])) == ("9-0", ["0-0", "0-1"])
    assert bench.store.ack_many([two, *got]) == [AckResult.ACKED] * 4


def test_wrong_priorities_are_errors_and_leave_nothing(bench: Bench) -> None:
    for wrong in (-1, 10, True, "5", 1.0, b"5"):
        with pytest.raises(MessageError, match="priority: wanted 0 to 9, got"):
            bench.store.put("t", b"x", priority=wrong)  # type: ignore[arg-type]
    for priority in (0, 5):
        with pytest.raises(MessageError, match="priority, queue_id: wanted one of them"):
            bench.store.put("t", b"x", priority=priority, queue_id=5)
    with pytest.raises(MessageError, match="'_SYS_MSG_PRIORITY_': this name is reserved; pass it"):
        bench.store.put("t", b"x", properties={"_SYS_MSG_PRIORITY_": "5"})
    with pytest.raises(MessageError, match="body"):
        bench.store.put("t", 5, priority=5)  # type: ignore[arg-type]
    assert bench.store.topics().keys() == {"rmq_sys_wheel_timer"}


def test_other_readers_see_the_queues(bench: Bench) -> None:
    put(bench, 0, 9, 5)
    (nine,) = bench.out("t", 9)
    assert (nine.priority, nine.properties["_SYS_MSG_PRIORITY_"]) == (9, "9")
    assert bench.out("t", 0)[0].priority == 0
    with bench.store.consumer("t", "readers") as consumer:
        assert sorted(one.body for one in consumer.poll(9)) == [b"0-0", b"5-2", b"9-1"]
    bench.store.flush()
    with timerstore.open(bench.root, read_only=True, clock=bench.clock) as reader:
        assert reader.topics()["t"] == 10
        assert reader.pull("t", 9, 0).messages[0].priority == 9


def test_waiting_receive_is_woken_by_any_priority(bench: Bench) -> None:
    put(bench, 5)
    take(bench)
    for priority in (0, 9):
        waiting = bench.store.begin_receive("t", "g", wait=100, lease=60)
        wakes: list[int] = []
        assert waiting.enter(lambda wakes=wakes: wakes.append(1))
        put(bench, priority)
        assert len(wakes) == 1
        waiting.leave()
        assert seen(waiting.look()) == [f"{priority}-0"]
        waiting.end()


def test_several_topics_with_priorities(bench: Bench) -> None:
    put(bench, 0, 9)
    bench.store.put("u", b"0-u")
    bench.turn()
    got = bench.store.receive(["t", "u"], "g", max_count=9, lease=60)
    assert seen(got) == ["9-1", "0-0", "0-u"]


def test_filters_apply_to_each_priority(bench: Bench) -> None:
    put(bench, 0, 9, 5, tags="x")
    put(bench, 1, 8, tags="y")
    assert seen(take(bench, tags="y")) == ["8-1", "1-0"]


def test_aio_puts_and_receives_with_priorities(tmp_path: Path) -> None:
    async def run() -> None:
        async with stepped_store(tmp_path) as opened:
            store = opened.store
            await store.put("t", b"0-a")
            await store.put("t", b"9-b", priority=9)
            await store.put_many("t", [b"3-c", b"4-d"], priority=[3, 4])
            opened.stepper.settle()
            found = await store.receive("t", "g", max_count=9, lease=60)
            assert seen(found) == ["9-b", "4-d", "3-c", "0-a"]

    asyncio.run(run())


def test_replacement_with_priority_0_is_rejected_for_a_higher_one(bench: Bench) -> None:
    bench.store.put("t", b"5-a", key="k", replace=True, delay=50, priority=5)
    with pytest.raises(MessageError, match=r"pending with priority 5.*got 0"):
        bench.store.put("t", b"0-b", key="k", replace=True, delay=50, priority=0)
    bench.turn(50_000)
    assert seen(take(bench)) == ["5-a"]


def test_property_that_contains_the_name_of_the_priority_is_none() -> None:
    assert type(stored_queue_id(3, b"X_SYS_MSG_PRIORITY_\x013\x02")) is int
    assert type(stored_queue_id(3, b"a\x01_SYS_MSG_PRIORITY_\x02")) is int
    assert type(stored_queue_id(3, b"a\x011\x02_SYS_MSG_PRIORITY_\x013\x02")) is PriorityQueueId
    assert type(stored_queue_id(3, b"_SYS_MSG_PRIORITY_\x013\x02")) is PriorityQueueId
