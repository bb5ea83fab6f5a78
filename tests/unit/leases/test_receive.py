"""receive, ack, nack, extend: one message, one lease at a time, nothing lost, whoever dies."""

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.driver import abandon
from timerstore import AckResult, Backoff, LeaseLostError, MessageError, StoreConfig, failpoint
from timerstore.errors import FlowControlError, FullError
from timerstore.layout.lease import read_receipt, write_receipt
from timerstore.leases import LeasedMessage, Leases
from timerstore.leases.leasing import Leasing

RETRY = "%RETRY%g|t"
DEAD = "%DLQ%g"


def put(bench: Bench, *bodies: bytes, **more: Any) -> None:
    for body in bodies:
        bench.store.put("t", body, **more)
    bench.turn()


def take(bench: Bench, count: int = 10, **more: Any) -> list[LeasedMessage]:
    return bench.store.receive("t", "g", max_count=count, **more)


def bodies(messages: list[LeasedMessage]) -> list[bytes]:
    return [one.body for one in messages]


def test_acked_is_done_with(bench: Bench) -> None:
    put(bench, b"a", b"b")
    (a, b) = take(bench, lease=30)
    assert (a.body, a.attempt, a.lease_until_ms, a.is_last_attempt) == (
        b"a",
        1,
        NOW + 30_000,
        False,
    )
    assert take(bench) == []
    assert bench.store.ack(a) is AckResult.ACKED
    assert bench.store.ack(json.loads(json.dumps(b.receipt))) is AckResult.ACKED
    bench.turn(DAY)
    assert take(bench) == []
    assert list(bench.store.pending()) == []
    assert bench.out(RETRY) == []


def test_a_lease_that_is_over_before_it_is_appended_cancels_no_other_timer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short one, a long pause, a clock that is set forward: it is a timer all the same."""
    bench.store.put("t", b"other", delay=60)
    put(bench, b"a")
    row = Leasing._row

    def late(self: Leasing, *given: Any) -> Any:
        bench.clock.set(bench.clock.now_ms + 10)
        return row(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Leasing, "_row", late)
        (a,) = take(bench, lease=0.005)
    bench.turn()
    (again,) = take(bench, lease=60)
    assert (again.body, again.attempt) == (b"a", 2)
    assert bench.store.ack(a) is AckResult.EXPIRED
    assert bench.store.ack(again) is AckResult.ACKED
    bench.turn(60_000)
    assert sorted(bench.bodies()) == [b"a", b"other"]


def test_an_extension_that_is_over_before_it_is_appended_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, b"a")
    (a,) = take(bench, lease=60)
    move = Leases._move

    def late(self: Leases, *given: Any) -> Any:
        bench.clock.set(bench.clock.now_ms + 10)
        return move(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Leases, "_move", late)
        with pytest.raises(LeaseLostError) as caught:
            bench.store.extend(a, lease=0.005)
    assert caught.value.result == AckResult.EXPIRED
    bench.turn()
    assert [(one.body, one.attempt) for one in take(bench)] == [(b"a", 2)]


def test_comes_again_at_the_lease_end_and_not_before(bench: Bench) -> None:
    put(bench, b"a")
    (first,) = take(bench, lease=2.5)
    bench.turn(2499)
    assert take(bench) == []
    bench.turn(1)
    (second,) = take(bench, lease=timedelta(seconds=1))
    assert (second.body, second.attempt, second.lease_until_ms) == (b"a", 2, NOW + 3500)
    assert bench.store.ack(first) is AckResult.EXPIRED
    assert bench.store.ack(second) is AckResult.ACKED
    assert bench.store.ack(second) is AckResult.SETTLED
    assert bench.store.ack(first) is AckResult.EXPIRED
    bench.turn(DAY)
    assert take(bench) == []


def test_the_message_stays_what_it_was(bench: Bench) -> None:
    bench.turn(5)
    bench.store.put(
        "t", b"x" * 1000, delay=3, tags="Aa", keys=["k1", "k2"], properties={"colour": "grün"},
        message_id="order-17",
    )  # fmt: skip
    bench.turn(4000)
    (plain,) = bench.out()
    assert plain.delivered_ms != plain.born_ms
    shown = ("topic", "queue_id", "queue_offset", "body", "tags", "keys", "message_id", "due_ms",
             "delivered_ms", "born_ms", "flag")  # fmt: skip
    for attempt in range(1, 5):
        (leased,) = take(bench, lease=1)
        assert leased.attempt == attempt == leased.reconsume_times + 1
        for name in shown:
            assert getattr(leased, name) == getattr(plain, name), name
        assert leased.properties["colour"] == "grün"
        assert "TS_LEASE" not in leased.properties
        assert "RETRY_TOPIC" not in leased.properties
        bench.turn(1000)


def test_a_receipt_survives_a_restart_and_a_kill(bench: Bench, tmp_path: Path) -> None:
    put(bench, b"a", b"b", b"c", b"d")
    a, b, c, d = take(bench, lease=60)
    bench.close()
    bench.open()
    assert take(bench) == []
    assert bench.store.ack(a.receipt) is AckResult.ACKED
    assert bench.store.ack(a.receipt) is AckResult.SETTLED
    longer = bench.store.extend(b.receipt, lease=100)
    shutil.copytree(bench.root, tmp_path / "killed")
    abandon(bench.store)
    bench.root = tmp_path / "killed"
    bench.open()
    assert take(bench) == []
    assert bench.store.ack(b.receipt) is AckResult.SETTLED
    assert bench.store.nack(c.receipt, delay=1) is AckResult.NACKED
    bench.turn(1000)
    assert bodies(take(bench, lease=1000)) == [b"c"]
    bench.turn(60_000)
    assert bodies(take(bench, lease=1000)) == [b"d"]
    assert bench.store.ack(d.receipt) is AckResult.EXPIRED
    assert bench.store.ack(longer) is AckResult.ACKED
    bench.turn(100_000)
    assert take(bench, lease=1000) == []


def killed(bench: Bench, to: Path) -> None:
    shutil.copytree(bench.root, to)
    abandon(bench.store)
    bench.root = to
    bench.open()


def test_a_group_goes_on_where_its_leases_say_after_a_kill(bench: Bench, tmp_path: Path) -> None:
    """No commit was written: the leases in the log are all there is."""
    put(bench, *(b"%d" % k for k in range(6)))
    assert bodies(take(bench, 4, lease=60)) == [b"0", b"1", b"2", b"3"]
    assert bench.store.committed("t", "g") == {}
    killed(bench, tmp_path / "a")
    assert bench.store.committed("t", "g") == {0: 4}
    assert bodies(take(bench, lease=60)) == [b"4", b"5"]
    bench.turn(60_000)
    again = take(bench, 3, lease=60)
    assert [one.attempt for one in again] == [2, 2, 2]
    killed(bench, tmp_path / "b")
    assert bench.store.committed(RETRY, "g") == {0: 3}
    again += take(bench, lease=60)
    assert sorted(bodies(again)) == [b"%d" % k for k in range(6)]
    assert bench.store.ack_many(again) == [AckResult.ACKED] * 6
    killed(bench, tmp_path / "c")
    bench.turn(DAY)
    assert take(bench) == []


def test_a_checkpoint_commits_what_its_watermark_covers(bench: Bench, tmp_path: Path) -> None:
    """Else an acked message would come again after a kill: its lease is not read any more."""
    put(bench, b"a", b"b")
    (a,) = take(bench, 1)
    bench.store.ack(a)
    assert bench.store.committed("t", "g") == {}
    bench.store.flush()
    assert bench.store.committed("t", "g") == {0: 1}
    killed(bench, tmp_path / "k")
    assert bodies(take(bench)) == [b"b"]


@pytest.mark.parametrize("point", ["checkpoint_taken", "checkpoint_log_synced",
                                   "lease_progress_committed", "commit_written",
                                   "checkpoint_watermark_written"])  # fmt: skip
def test_killed_in_a_checkpoint(bench: Bench, tmp_path: Path, point: str) -> None:
    put(bench, b"a", b"b")
    (a,) = take(bench, 1)
    bench.store.ack(a)

    def hook(name: str) -> None:
        if name == point and not (tmp_path / "k").exists():
            shutil.copytree(bench.root, tmp_path / "k")

    failpoint.hook = hook
    try:
        bench.store.flush()
    finally:
        failpoint.hook = None
    abandon(bench.store)
    bench.root = tmp_path / "k"
    bench.open()
    assert bodies(take(bench)) == [b"b"]
    bench.turn(DAY)
    assert bodies(take(bench)) == [b"b"]


def test_dead_letters_after_the_last_attempt(bench: Bench) -> None:
    put(bench, b"a", tags="Aa")
    for attempt in (1, 2, 3):
        (one,) = take(bench, lease=1, max_attempts=3)
        assert (one.attempt, one.is_last_attempt) == (attempt, attempt == 3)
        bench.turn(1000)
    assert take(bench, max_attempts=3) == []
    (dead,) = bench.out(DEAD)
    assert (dead.body, dead.tags, dead.message_id) == (b"a", "Aa", one.message_id)
    assert dead.properties["RETRY_TOPIC"] == "t"
    assert bench.store.ack(one) is AckResult.EXPIRED
    bench.turn(DAY)
    assert take(bench, max_attempts=3) == []
    assert len(bench.out(DEAD)) == 1


def test_one_attempt_and_no_end(bench: Bench) -> None:
    put(bench, b"a", b"b")
    (a,) = take(bench, 1, lease=1, max_attempts=1)
    (b,) = take(bench, 1, lease=1, max_attempts=None)
    assert (a.is_last_attempt, b.is_last_attempt) == (True, False)
    bench.turn(1000)
    assert [m.body for m in bench.out(DEAD)] == [b"a"]
    for attempt in range(2, 30):
        (b,) = take(bench, lease=1, max_attempts=None)
        assert b.attempt == attempt
        bench.turn(1000)


def test_attempts_below_what_was_used_already(bench: Bench) -> None:
    """A group whose limit was lowered: its next attempt is the last."""
    put(bench, b"a")
    for _ in range(4):
        take(bench, lease=1, max_attempts=None)
        bench.turn(1000)
    (one,) = take(bench, lease=1, max_attempts=2)
    assert (one.attempt, one.is_last_attempt) == (5, True)
    bench.turn(1000)
    assert [m.body for m in bench.out(DEAD)] == [b"a"]


def test_nack_waits_for_the_backoff(bench: Bench) -> None:
    put(bench, b"a")
    backoff = [1, 5]
    for attempt, delay_ms in ((1, 1000), (2, 5000), (3, 5000)):
        (one,) = take(bench, lease=60, backoff=backoff)
        assert one.attempt == attempt
        assert bench.store.nack(one) is AckResult.NACKED
        assert bench.store.nack(one) is AckResult.SETTLED
        assert bench.store.ack(one) is AckResult.SETTLED
        bench.turn(delay_ms - 1)
        assert take(bench, backoff=backoff) == []
        bench.turn(1)
    (one,) = take(bench, lease=60)
    assert bench.store.nack(one, delay=0) is AckResult.NACKED
    bench.turn()
    (one,) = take(bench, lease=60)
    assert one.attempt == 5
    assert bench.store.nack(one.receipt, delay=timedelta(seconds=2)) is AckResult.NACKED
    bench.turn(2000)
    assert len(take(bench, lease=1)) == 1


def test_nack_of_the_last_attempt_goes_to_the_dead_letters_at_once(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=60, max_attempts=1)
    assert bench.store.nack(one, delay=30) is AckResult.NACKED
    bench.turn()
    assert [m.body for m in bench.out(DEAD)] == [b"a"]


def test_nack_after_the_lease(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=1)
    bench.turn(1000)
    assert bench.store.nack(one) is AckResult.EXPIRED
    (again,) = take(bench)
    assert again.attempt == 2


def test_extend(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=10)
    bench.turn(9000)
    second = bench.store.extend(one, lease=10)
    assert bench.store.ack(one) is AckResult.SETTLED
    bench.turn(9999)
    assert take(bench) == []
    third = bench.store.extend(second, lease=timedelta(seconds=1))
    with pytest.raises(LeaseLostError, match="SETTLED") as caught:
        bench.store.extend(second)
    assert caught.value.result is AckResult.SETTLED
    bench.turn(1000)
    with pytest.raises(LeaseLostError) as caught:
        bench.store.extend(third)
    assert caught.value.result is AckResult.EXPIRED
    (again,) = take(bench)
    assert again.attempt == 2
    bench.store.ack(again)
    with pytest.raises(LeaseLostError) as caught:
        bench.store.extend(again)
    assert caught.value.result is AckResult.SETTLED


@pytest.mark.parametrize(
    ("lease", "said"),
    [(0, "more than 0"), (0.0, "more than 0"), (timedelta(0), "more than 0"), (-1, "0 or more"),
     (-0.001, "0 or more"), (float("nan"), "finite"), (float("inf"), "finite"), ("30", "seconds"),
     (None, "seconds"), (True, "seconds")],
)  # fmt: skip
def test_a_lease_that_is_none(bench: Bench, lease: Any, said: str) -> None:
    put(bench, b"a")
    with bench.refused(MessageError, said):
        take(bench, lease=lease)
    (one,) = take(bench)
    with pytest.raises(MessageError, match=said):
        bench.store.extend(one, lease=lease)
    assert bench.store.ack(one) is AckResult.ACKED


def test_bounds_of_a_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(delay_ms_max=60_000))
    put(bench, b"a", b"b")
    for wrong in (60.001, 61, timedelta(days=1)):
        with pytest.raises(MessageError, match="at most 60000 ms"):
            take(bench, lease=wrong)
    (one,) = take(bench, 1, lease=60)
    assert one.lease_until_ms == NOW + 60_000
    with pytest.raises(MessageError, match="at most 60000 ms"):
        bench.store.nack(one, delay=60.001)
    (two,) = take(bench, 1, lease=0.001)
    assert two.lease_until_ms == NOW + 1
    bench.close()


@pytest.mark.parametrize(
    "wrong",
    [{"max_count": 0}, {"max_count": 10_001}, {"max_count": True}, {"wait": -1}, {"wait": "1"},
     {"max_attempts": 0}, {"max_attempts": 1_000_001}, {"max_attempts": 2.0},
     {"max_attempts": True}, {"backoff": -1}, {"backoff": []}, {"backoff": "fast"},
     {"backoff": [1] * 101}, {"tags": 5}],
)  # fmt: skip
def test_bad_arguments_take_nothing(bench: Bench, wrong: dict[str, Any]) -> None:
    put(bench, b"a")
    name = next(iter(wrong))
    with bench.refused(MessageError, name):
        bench.store.receive("t", "g", **wrong)
    assert bodies(take(bench)) == [b"a"]


def test_everything_wrong_is_said_at_once(bench: Bench) -> None:
    with pytest.raises(MessageError) as caught:
        bench.store.receive("t", "g", lease=0, max_count=0, max_attempts=0, backoff=-1, wait=-1)
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize(
    ("topic", "group"), [("t", ""), ("t", "a b"), ("t", "a|b"), ("", "g"), ("t", "g" * 119),
                         ("t", 5), ("ä", "g")]
)  # fmt: skip
def test_names(bench: Bench, topic: Any, group: Any) -> None:
    with bench.refused(MessageError):
        bench.store.receive(topic, group)


def test_the_longest_names(bench: Bench) -> None:
    group = "g" * 118
    bench.store.put("t", b"a")
    bench.turn()
    (one,) = bench.store.receive("t", group, lease=1)
    bench.turn(1000)
    (again,) = bench.store.receive("t", group)
    assert (again.body, again.attempt) == (b"a", 2)
    assert bench.store.ack(one) is AckResult.EXPIRED


@pytest.mark.parametrize("wrong", ["", "x", "!!!!", "bDEg", 5, None, b"bDEg", "A" * 2000, "ä"])
def test_what_is_no_receipt(bench: Bench, wrong: Any) -> None:
    for call in (bench.store.ack, bench.store.nack, bench.store.extend):
        with bench.refused(MessageError, "receipt"):
            call(wrong)


def test_a_damaged_receipt(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench)
    whole = read_receipt(one.receipt)
    for changed in ({"timer_id": -1}, {"until_ms": 2**63}, {"attempt": -5}):
        with pytest.raises(MessageError, match="range"):
            bench.store.ack(write_receipt(whole._replace(**changed)))
    for k in range(len(one.receipt)):
        cut = one.receipt[:k]
        with pytest.raises(MessageError):
            bench.store.ack(cut)
    assert bench.store.ack(one) is AckResult.ACKED


def test_receipts_that_name_no_lease_of_this_store(bench: Bench, tmp_path: Path) -> None:
    put(bench, b"a")
    (one,) = take(bench)
    whole = read_receipt(one.receipt)
    strangers = [
        whole._replace(store_id=whole.store_id ^ 1),
        whole._replace(group="other"),
        whole._replace(topic="other"),
        whole._replace(opening=whole.opening ^ 1, message_id="x"),
        whole._replace(opening=whole.opening ^ 1, until_ms=whole.until_ms + DAY),
        whole._replace(opening=whole.opening ^ 1, timer_id=10_000, message_id="y"),
        whole._replace(opening=whole.opening ^ 1, group="other"),
    ]
    for stranger in map(write_receipt, strangers):
        assert bench.store.ack(stranger) is AckResult.UNKNOWN
        assert bench.store.nack(stranger) is AckResult.UNKNOWN
        with pytest.raises(LeaseLostError) as caught:
            bench.store.extend(stranger)
        assert caught.value.result is AckResult.UNKNOWN
    assert bench.store.ack(one) is AckResult.ACKED


def test_a_receipt_of_another_store(bench: Bench, tmp_path: Path) -> None:
    put(bench, b"a")
    other = Bench(tmp_path / "other")
    put(other, b"b")
    (theirs,) = take(other)
    (mine,) = take(bench)
    assert bench.store.ack(theirs) is AckResult.UNKNOWN
    assert bench.store.ack_many([theirs, mine, theirs]) == ["UNKNOWN", "ACKED", "UNKNOWN"]
    assert other.store.ack(theirs) is AckResult.ACKED
    other.close()


def test_ack_many_settles_nothing_where_one_is_no_receipt(bench: Bench) -> None:
    put(bench, b"a", b"b")
    a, b = take(bench)
    with pytest.raises(MessageError):
        bench.store.ack_many([a, "x", b])
    assert bench.store.ack_many([a.receipt, b, a]) == ["ACKED", "ACKED", "SETTLED"]
    assert bench.store.ack_many([]) == []


@pytest.mark.parametrize("wrong", [None, 7, "text", np.array(5)])
def test_ack_many_of_one_alone(bench: Bench, wrong: Any) -> None:
    with bench.refused(MessageError, "receipts: wanted several, got"):
        bench.store.ack_many(wrong)


def test_groups_do_not_know_each_other(bench: Bench) -> None:
    put(bench, b"a")
    (mine,) = bench.store.receive("t", "g", lease=1)
    (theirs,) = bench.store.receive("t", "h", lease=1)
    assert bench.store.ack(mine) is AckResult.ACKED
    bench.turn(1000)
    assert bench.store.receive("t", "g") == []
    (again,) = bench.store.receive("t", "h")
    assert (again.attempt, again.body) == (2, b"a")
    assert bench.store.ack(theirs) is AckResult.EXPIRED


def test_topics_of_a_group_do_not_mix(bench: Bench) -> None:
    put(bench, b"a")
    bench.store.put("u", b"b")
    bench.turn()
    bench.store.receive("t", "g", lease=1)
    bench.store.receive("u", "g", lease=1)
    bench.turn(1000)
    assert bodies(bench.store.receive("u", "g", max_count=9)) == [b"b"]
    assert bodies(bench.store.receive("t", "g", max_count=9)) == [b"a"]


def test_several_queues_in_turn(bench: Bench) -> None:
    for k in range(12):
        bench.store.put("t", b"%d" % k, queue_id=k % 3)
    bench.turn()
    found = [one for _ in range(12) for one in take(bench, 1, lease=5)]
    assert sorted(int(one.body) for one in found) == list(range(12))
    for queue_id in range(3):
        offsets = [one.queue_offset for one in found if one.queue_id == queue_id]
        assert offsets == [0, 1, 2, 3]
    assert bench.store.ack_many(found[:6]) == [AckResult.ACKED] * 6
    bench.turn(5000)
    assert sorted(bodies(take(bench, 100))) == sorted(bodies(found[6:]))


def test_what_comes_again_does_not_starve_the_topic(bench: Bench) -> None:
    put(bench, b"bad", *(b"%d" % k for k in range(5)))
    seen = []
    for _ in range(12):
        for one in take(bench, 1, lease=60, max_attempts=None):
            seen.append(one.body)
            if one.body == b"bad":
                bench.store.nack(one, delay=0)
                bench.turn()
            else:
                bench.store.ack(one)
    assert [body for body in seen if body != b"bad"] == [b"%d" % k for k in range(5)]
    assert seen.count(b"bad") >= 4


def test_filters(bench: Bench) -> None:
    for k, tag in enumerate(("Aa", "c", "Aa")):
        bench.store.put("t", b"%d" % k, tags=tag)
    bench.turn()
    assert bodies(take(bench, lease=1, tags="Aa")) == [b"0", b"2"]
    bench.turn(1000)
    assert bodies(take(bench, tags="Aa")) == [b"0", b"2"]
    bench.store.put("t", b"3", tags="c")
    bench.turn()
    assert bodies(take(bench, tags="c")) == [b"3"]  # others: from where the group is
    assert take(bench) == []


def test_a_consumer_of_the_same_group_is_refused(bench: Bench) -> None:
    put(bench, b"a")
    consumer = bench.store.consumer("t", "h")
    with pytest.raises(MessageError, match="consumer"):
        bench.store.receive("t", "h")
    consumer.close()
    (one,) = bench.store.receive("t", "h")
    with pytest.raises(MessageError, match="leases"):
        bench.store.consumer("t", "h")
    assert bench.store.ack(one) is AckResult.ACKED


def test_a_topic_that_comes_later(bench: Bench) -> None:
    assert take(bench) == []
    put(bench, b"a")
    assert bodies(take(bench)) == [b"a"]


def test_timers_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(timer_enabled=False))
    put(bench, b"a")
    with pytest.raises(MessageError, match="timers are off"):
        take(bench)
    bench.close()


def test_flow_control_leaves_the_message_where_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(slot_messages_max=2))
    put(bench, b"a", b"b", b"c")
    assert bodies(take(bench, 3, lease=10)) == [b"a"]  # three would not fit: it tries half of them
    assert bodies(take(bench, 1, lease=10)) == [b"b"]
    with pytest.raises(FlowControlError):
        take(bench, 1, lease=10)
    (c,) = take(bench, 1, lease=20)
    assert c.body == b"c"
    assert bench.store.ack(c) is AckResult.ACKED
    bench.turn(10_000)
    assert sorted(bodies(take(bench, lease=30))) == [b"a", b"b"]
    bench.close()


def test_a_full_disk_leases_a_prefix(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench, *(b"%d" % k for k in range(5)))
    putting = bench.store._putting
    original = putting._append_many

    def one_then_full(way: Any, rows: Any, *rest: Any, **named: Any) -> None:
        original(way, rows, *rest, **{**named, "end": 2})
        raise FullError("disk")

    monkeypatch.setattr(putting, "_append_many", one_then_full)
    first = take(bench, lease=9)
    monkeypatch.undo()
    assert bodies(first) == [b"0", b"1"]
    assert bodies(take(bench, lease=9)) == [b"2", b"3", b"4"]
    bench.turn(9000)
    assert sorted(bodies(take(bench))) == [b"%d" % k for k in range(5)]


def test_nothing_leased_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench, b"a")

    def full(*_: Any, **__: Any) -> None:
        raise FullError("disk")

    monkeypatch.setattr(bench.store._putting, "_append_many", full)
    with pytest.raises(FullError):
        take(bench)
    monkeypatch.undo()
    (a,) = take(bench)
    assert a.attempt == 1


def test_a_message_without_room_for_its_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(properties_bytes_max=1500))
    room = 0
    for size in range(1400, 100, -10):
        try:
            bench.store.put("t", b"big", properties={"p": "x" * size})
        except MessageError:
            continue
        room = size
        break
    assert room
    bench.store.put("t", b"small")
    bench.turn()
    with pytest.raises(MessageError, match="message 0 of 't', queue 0"):
        take(bench)
    with pytest.raises(MessageError, match="message 0 of 't', queue 0"):
        take(bench)
    assert [m.body for m in bench.out()] == [b"big", b"small"]
    bench.close()


def test_each_byte_of_an_id_counts_for_the_room_of_a_lease(tmp_path: Path) -> None:
    """The largest message that can be leased is smaller by what its id is longer than ours."""
    bench = Bench(tmp_path / "s", small(properties_bytes_max=700))

    def has_room(size: int, message_id: str | None) -> bool:
        topic = f"t{size:03}-{len(message_id or ''):03}"  # its length counts, too
        bench.store.put(topic, b"x", properties={"p": "x" * size}, message_id=message_id)
        bench.turn()
        try:
            (leased,) = bench.store.receive(topic, "g")
        except MessageError:
            return False
        return bench.store.ack(leased) is AckResult.ACKED

    most = next(size for size in range(300, 0, -1) if has_room(size, None))
    for more in (1, 50):
        assert has_room(most - more, "i" * (32 + more))
        assert not has_room(most - more + 1, "i" * (32 + more))
    bench.close()


def test_leases_roll_and_move(tmp_path: Path) -> None:
    """A lease of months rolls around the wheel; its receipt stays good."""
    bench = Bench(tmp_path / "s")
    put(bench, b"a", b"b")
    a, b = take(bench, lease=timedelta(days=90))
    for _ in range(9):
        bench.turn(10 * DAY - 1)
    assert take(bench) == []
    assert bench.store.ack(a) is AckResult.ACKED
    longer = bench.store.extend(b, lease=timedelta(days=90))
    bench.turn(DAY)
    assert take(bench) == []
    bench.turn(89 * DAY)
    (again,) = take(bench)
    assert (again.body, again.attempt) == (b"b", 2)
    assert bench.store.ack(longer) is AckResult.EXPIRED
    bench.close()


def test_a_compressed_body_of_a_broker(bench: Bench) -> None:
    """Read once as it is, and inflated in every copy, which has no flag to say so."""
    import zlib
    from dataclasses import replace

    from timerstore.leases.leasing import _body_of

    put(bench, b"a")
    (message,) = bench.out()
    packed = replace(message, raw_body=zlib.compress(b"long" * 50), sys_flag=0x301)
    assert _body_of(packed) == b"long" * 50
    lz4 = replace(message, raw_body=b"??", sys_flag=0x101)
    assert _body_of(lz4) == b"??"


def test_a_stranger_in_the_retry_topic(bench: Bench) -> None:
    bench.store.put(RETRY, b"s", properties={"TS_LEASE": "00000001 7 0 0 0 0 0 0 0 0 0"})
    bench.turn()
    (one,) = take(bench, lease=1)
    assert (one.body, one.attempt, one.topic) == (b"s", 1, "t")
    bench.turn(1000)
    (again,) = take(bench)
    assert again.attempt == 2


def test_default_backoff_is_exponential(bench: Bench) -> None:
    put(bench, b"a")
    for k in range(12):
        (one,) = take(bench, lease=60)
        wait_ms = read_receipt(one.receipt).backoff_ms
        full = min(1000 * 2**k, 600_000)
        assert full * 0.8 <= wait_ms <= full
        bench.store.nack(one)
        bench.turn(wait_ms)


def test_sync_store(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync"))
    put(bench, b"a", b"b")
    found = take(bench)
    assert bench.store.stats()["log_durable_bytes"] == bench.store.stats()["log_end_bytes"]
    bench.store.ack_many(found)
    assert bench.store.stats()["log_durable_bytes"] == bench.store.stats()["log_end_bytes"]
    bench.close()


def test_read_by_threads_each_message_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with timerstore.open(tmp_path / "s", StoreConfig(flush="async")) as store:
        store.put_many("t", [b"%d" % k for k in range(500)])

        def work(_: int) -> list[bytes]:
            mine = []
            while found := store.receive("t", "g", max_count=7, lease=60, wait=0.2):
                mine += [one.body for one in found]
                assert set(store.ack_many(found)) == {AckResult.ACKED}
            return mine

        with ThreadPoolExecutor(4) as pool:
            got = [body for mine in pool.map(work, range(4)) for body in mine]
        assert sorted(map(int, got)) == list(range(500))
        assert store.stats()["pending_messages"] == 0


def test_waits_for_a_message_and_for_one_that_comes_again(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", StoreConfig(flush="async")) as store:
        assert store.receive("t", "g", wait=0.01) == []
        store.put("t", b"a", delay=0.05)
        (a,) = store.receive("t", "g", wait=30, lease=0.05)
        assert a.body == b"a"
        (again,) = store.receive("t", "g", wait=30)
        assert (again.body, again.attempt) == (b"a", 2)


def test_lease_consumer(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    put(bench, b"a", b"b", b"c")
    seen = []
    consumer = bench.store.lease_consumer("t", "g", wait=0, lease=30, backoff=0)
    for message in consumer:
        seen.append((message.body, message.attempt))
        try:
            with consumer.handling(message):
                if message.body == b"b" and message.attempt < 3:
                    raise ValueError
        except ValueError:
            bench.turn()
    assert seen[0] == (b"a", 1)
    assert sorted(seen) == [(b"a", 1), (b"b", 1), (b"b", 2), (b"b", 3), (b"c", 1)]
    assert bench.store.stats()["pending_messages"] == 0
    bench.close()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_count": 5}, "max_count: wanted none, a loop leases one at a time, got 5"),
        ({"wiat": 1.0}, "lease_consumer: wanted some of backoff, .*, wait, got wiat"),
        ({"max_count": 1, "b": 2, "a": 1}, "max_count: .*, got 1; lease_consumer: .*, got a, b"),
    ],
)
def test_what_a_loop_does_not_take(bench: Bench, asked: dict[str, Any], said: str) -> None:
    """It hands out one message at a time: others of a batch were leased, and nobody's."""
    put(bench, b"a")
    with bench.refused(MessageError, said):
        bench.store.lease_consumer("t", "g", **asked)
    assert bodies(take(bench)) == [b"a"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), ValueError("why")])
def test_handling_raises_what_its_block_raised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    """Also where giving back fails: the lease ends by itself."""

    def full(*_: Any) -> None:
        raise FullError("no space")

    put(bench, b"a")
    consumer = bench.store.lease_consumer("t", "g", wait=0)
    message = next(consumer)
    with monkeypatch.context() as patched:
        patched.setattr(Leases, "nack", full)
        with pytest.raises(type(raised)) as caught, consumer.handling(message):
            raise raised
    assert caught.value is raised
    assert raised.__notes__ == ["and then, giving it back: FullError('no space')"]
    assert bench.store.ack(message) is AckResult.ACKED


class TestBackoff:
    def test_fixed(self) -> None:
        assert [Backoff.fixed(2.5).delay_ms(k, "x") for k in (1, 2, 1000)] == [2500] * 3

    def test_exponential(self) -> None:
        policy = Backoff.exponential(1, factor=3, longest=60, jitter=0)
        assert [policy.delay_ms(k, "x") for k in range(1, 7)] == [
            1000, 3000, 9000, 27_000, 60_000, 60_000,
        ]  # fmt: skip
        assert policy.delay_ms(1_000_000, "x") == 60_000
        assert Backoff.exponential(0, jitter=0).delay_ms(1_000_000, "x") == 0
        assert Backoff.exponential(1, factor=1, jitter=0).delay_ms(1_000_000, "x") == 1000

    def test_jitter(self) -> None:
        policy = Backoff.exponential(10, jitter=0.5)
        drawn = {policy.delay_ms(1, f"m{k}") for k in range(200)}
        assert len(drawn) > 100
        assert min(drawn) >= 5000
        assert max(drawn) <= 10_000
        assert max(drawn) - min(drawn) > 4000
        assert policy.delay_ms(3, "m") == policy.delay_ms(3, "m")

    @pytest.mark.parametrize(
        "make",
        [lambda: Backoff.fixed(-1), lambda: Backoff.fixed(float("inf")),
         lambda: Backoff.exponential(1, factor=0.5), lambda: Backoff.exponential(1, factor=101),
         lambda: Backoff.exponential(1, jitter=1.1), lambda: Backoff.exponential(1, jitter=-0.1),
         lambda: Backoff.exponential(1, jitter=True), lambda: Backoff.steps([]),
         lambda: Backoff.steps([1, -1]), lambda: Backoff.steps(5)],  # type: ignore[arg-type]
    )  # fmt: skip
    def test_refused(self, make: Any) -> None:
        with pytest.raises(MessageError, match="backoff"):
            make()
