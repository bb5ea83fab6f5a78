"""Half messages: no consumer receives one before its commit, and each has one outcome."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, copied_at, small
from tests.support.driver import abandon
from tests.support.inside import end_half_message, inside
from tests.support.leasing import put, take
from tests.support.stepped_aio import stepped_store
from timerstore import AckResult, CancelResult, LeasedMessage, MessageError, PutReceipt, TimerStore
from timerstore.errors import FlowControlError
from timerstore.testing import ManualClock, Stepper

COMMITTED, ROLLED_BACK = AckResult.COMMITTED, AckResult.ROLLED_BACK
EXPIRED, SETTLED, UNKNOWN = AckResult.EXPIRED, AckResult.SETTLED, AckResult.UNKNOWN
HALVES = "%HALF%t"
AFTER_S = 30


def half(bench: Bench, body: bytes = b"a", **more: Any) -> PutReceipt:
    return bench.store.put("t", body, **{"check_after": AFTER_S, **more})


def check(bench: Bench, count: int = 1, **more: Any) -> list[LeasedMessage]:
    """Return the half messages that are due for their check."""
    options = {"max_count": count, "lease": 60, "max_attempts": 15} | more
    return bench.store.receive(HALVES, "shop", **options)


def checked(bench: Bench, body: bytes = b"a") -> tuple[PutReceipt, LeasedMessage]:
    """Put a half message and lease it for its check; return both receipts."""
    receipt = half(bench, body)
    bench.turn(AFTER_S * 1000)
    (one,) = check(bench)
    assert one.body == body
    return receipt, one


# --- commit and rollback ---


def test_half_message_is_received_once_after_its_commit_and_not_before(bench: Bench) -> None:
    given = {"tags": "Aa", "keys": ["k"], "properties": {"colour": "red"}, "message_id": "order-1"}
    receipt = half(bench, **given)
    bench.turn(AFTER_S * 1000 - 1)
    assert (take(bench), bench.out()) == ([], [])
    assert bench.store.commit(receipt) is COMMITTED
    bench.turn()
    (one,) = take(bench, 9)
    assert (one.body, one.tags, one.keys, one.message_id) == (b"a", "Aa", ("k",), "order-1")
    assert (one.properties["colour"], one.born_ms, one.attempt) == ("red", NOW, 1)
    assert bench.store.ack(one) is AckResult.ACKED
    bench.turn(DAY)
    assert (take(bench), check(bench), list(bench.store.pending())) == ([], [], [])
    assert bench.bodies() == [b"a"]


def test_rolled_back_message_is_never_received_nor_checked(bench: Bench) -> None:
    receipt = half(bench)
    assert bench.store.rollback(receipt.handle) is ROLLED_BACK
    bench.turn(DAY)
    assert (take(bench), check(bench), bench.out(), bench.out(HALVES)) == ([], [], [], [])


def test_commit_needs_only_the_handle_in_another_opening(bench: Bench, tmp_path: Path) -> None:
    handles = json.loads(json.dumps([half(bench, b"a").handle, half(bench, b"b").handle]))
    bench.reopen()
    assert bench.store.commit(handles[0]) is COMMITTED
    bench.kill(tmp_path / "killed")
    answers = [bench.store.commit(handles[0]), bench.store.rollback(handles[1])]
    assert answers == [COMMITTED, ROLLED_BACK]
    bench.turn(DAY)
    assert (bench.bodies(), check(bench)) == ([b"a"], [])


def test_commit_wakes_a_receive_that_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with stepped_store(tmp_path / "store") as one:
            await one.put(b"first")
            assert len(await one.store.receive("t", "g", max_count=9, lease=600)) == 1
            receipt = await one.store.put("t", b"a", check_after=60)
            waiting = asyncio.create_task(one.store.receive("t", "g", wait=30))
            while not one.waiting_count:
                await asyncio.sleep(0)
            assert await one.store.commit(receipt) is COMMITTED
            one.stepper.settle()
            assert [each.body for each in await waiting] == [b"a"]

    asyncio.run(run())


# --- the check ---


def test_check_waits_for_a_producer_and_is_answered_by_its_lease(bench: Bench) -> None:
    for body in (b"a", b"b"):
        half(bench, body)
    bench.turn(3 * DAY)  # no producer is alive
    first, second = check(bench, 9)
    assert ([first.body, second.body], first.attempt) == ([b"a", b"b"], 1)
    assert bench.store.commit(first) is COMMITTED
    assert bench.store.rollback(json.loads(json.dumps(second.receipt))) is ROLLED_BACK
    bench.turn(DAY)
    assert (bench.bodies(), check(bench, 9)) == ([b"a"], [])
    (one,) = take(bench, 9)
    assert one.message_id == first.message_id
    assert not {"TS_LEASE", "RETRY_TOPIC", "TS_ERROR"} & one.properties.keys()


def test_check_comes_again_without_an_answer_and_is_a_dead_letter_at_last(bench: Bench) -> None:
    half(bench)
    bench.turn(AFTER_S * 1000)
    for attempt in range(1, 16):
        (one,) = check(bench)
        assert (one.attempt, one.is_last_attempt) == (attempt, attempt == 15)
        bench.turn(60_000)
    assert (check(bench), bench.out()) == ([], [])
    (letter,) = bench.store.dead_letters("shop")
    assert (letter.body, letter.topic, letter.attempt) == (b"a", HALVES, 15)
    assert bench.store.commit(one) is EXPIRED
    assert bench.store.requeue("shop") == 1
    (one,) = check(bench)
    assert bench.store.commit(one) is COMMITTED
    bench.turn()
    assert bench.bodies() == [b"a"]


def test_nacked_and_renewed_checks_are_committed_by_their_last_receipt(bench: Bench) -> None:
    _, one = checked(bench)
    assert bench.store.nack(one, delay=1, error="unknown") is AckResult.NACKED
    assert bench.store.commit(one) is SETTLED
    bench.turn(1000)
    (again,) = check(bench)
    bench.store.renew(again, lease=600)
    assert bench.store.commit(again) is COMMITTED
    bench.turn(DAY)
    (came,) = take(bench, 9)
    assert not {"TS_RENEWED", "TS_ERROR"} & came.properties.keys()
    assert check(bench) == []


def test_receipt_of_a_check_survives_a_restart(bench: Bench, tmp_path: Path) -> None:
    _, one = checked(bench)
    bench.reopen()
    assert bench.store.commit(one.receipt) is COMMITTED
    bench.kill(tmp_path / "killed")
    assert bench.store.commit(one.receipt) is COMMITTED
    bench.turn(DAY)
    assert (bench.bodies(), check(bench)) == ([b"a"], [])


# --- repeated and late calls ---


def test_repeated_calls_get_the_true_outcome(bench: Bench) -> None:
    store, a, b = bench.store, half(bench, b"a"), half(bench, b"b")
    store.commit(a)
    store.rollback(b)
    assert [store.commit(a), store.rollback(a), store.commit(a.handle)] == [COMMITTED] * 3
    assert [store.rollback(b), store.commit(b)] == [SETTLED] * 2
    assert store.cancel(a) is CancelResult.ALREADY_CANCELLED
    bench.turn()
    assert bench.bodies() == [b"a"]


@pytest.mark.parametrize("call", ["commit", "rollback"])
def test_commit_of_another_call_is_durable_before_the_answer(tmp_path: Path, call: str) -> None:
    """The other call has appended it, and not synced yet."""
    bench = Bench(tmp_path / "store", small(flush="async"))
    receipt, log = half(bench), inside(bench.store).log
    bench.turn()
    end_half_message(bench.store)("commit", receipt, lambda _: None)
    assert log.durable < log.end
    assert getattr(bench.store, call)(receipt) is COMMITTED
    assert log.durable == log.end
    bench.close()


def test_handle_is_expired_from_the_check_on_until_the_check_has_committed(bench: Bench) -> None:
    receipt, one = checked(bench)
    store = bench.store
    assert [store.commit(receipt), store.rollback(receipt)] == [EXPIRED] * 2
    assert store.commit(one) is COMMITTED
    assert [store.commit(receipt), store.rollback(receipt), store.rollback(one)] == [COMMITTED] * 3
    assert store.ack(one) is SETTLED
    bench.turn()
    assert bench.bodies() == [b"a"]


def test_plain_message_with_the_same_id_is_not_taken_for_a_committed_one(bench: Bench) -> None:
    receipt = half(bench, message_id="x")
    bench.store.rollback(receipt)
    bench.store.put("t", b"plain", message_id="x")
    assert bench.store.commit(receipt) is SETTLED


def test_without_the_index_a_second_commit_is_settled(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(index_enabled=False))
    receipt = half(bench)
    assert [bench.store.commit(receipt), bench.store.commit(receipt)] == [COMMITTED, SETTLED]
    bench.turn()
    assert bench.bodies() == [b"a"]
    bench.close()


@pytest.mark.parametrize("kind", ["handle", "check"])
@pytest.mark.parametrize("call", ["commit", "rollback"])
@pytest.mark.parametrize("point", ["half_appended", "reschedule_encoded", "reschedule_appended"])
def test_call_that_a_kill_interrupts_has_one_outcome_and_is_repeated(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, call: str, point: str
) -> None:
    receipt, target = half(bench), None
    if kind == "check":
        bench.turn(AFTER_S * 1000)
        (target,) = check(bench, lease=600)
    target = target or receipt
    copy = tmp_path / "copy"
    with copied_at(monkeypatch, point, bench.root, copy):
        assert getattr(bench.store, call)(target) in (COMMITTED, ROLLED_BACK)
    if not copy.exists():
        assert call == "rollback", f"{call} does not pass {point}"
        return
    abandon(bench.store)
    bench.root = copy
    bench.open()
    was_appended = point != "reschedule_encoded"
    if call == "commit":
        assert bench.store.commit(target) is COMMITTED
    else:
        assert bench.store.rollback(target) is (SETTLED if was_appended else ROLLED_BACK)
    bench.turn(DAY)
    assert bench.bodies() == ([b"a"] if call == "commit" else [])
    assert check(bench) == []


# --- message ids ---


def test_repeated_put_of_a_half_message_stores_nothing(bench: Bench) -> None:
    first = half(bench, message_id="x")
    again = half(bench, message_id="x")
    assert (again.duplicate, again.handle) == (True, first.handle)
    assert bench.store.commit(first) is COMMITTED
    for _ in range(2):
        again = half(bench, message_id="x")
        assert again.duplicate
        assert bench.store.commit(again) is COMMITTED
        bench.reopen()
    bench.turn(DAY)
    assert (bench.bodies(), check(bench)) == ([b"a"], [])


def test_id_of_a_committed_message_is_not_one_of_its_topic(bench: Bench) -> None:
    """Before and after a restart that reads the log: ids are remembered by topic."""
    bench.store.commit(half(bench, message_id="x"))
    assert not bench.store.put("t", b"b", message_id="x").duplicate
    bench.store.commit(half(bench, message_id="y"))
    bench.reopen()
    assert not bench.store.put("t", b"c", message_id="y").duplicate
    bench.turn()
    assert bench.bodies() == [b"a", b"b", b"a", b"c"]


# --- arguments ---


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"delay": 5}, "delay"),
        ({"deliver_ms": NOW + 5}, "deliver_ms"),
        ({"level": 1}, "level"),
        ({"spread": 5}, "spread"),
        ({"queue_id": 0}, "queue_id"),
        ({"priority": 1}, "priority"),
        ({"key": "k", "replace": True}, "key"),
        ({"key": "k", "unique": True}, "unique"),
    ],
)
def test_check_after_goes_with_no_time_queue_or_key(
    bench: Bench, given: dict[str, Any], name: str
) -> None:
    with bench.refused(MessageError, f"check_after: does not go with {name}"):
        half(bench, **given)


@pytest.mark.parametrize("value", [-1, "soon", float("nan"), True, 10**10])
def test_wrong_check_after_is_named(bench: Bench, value: Any) -> None:
    with bench.refused(MessageError, "^check_after: wanted"):
        half(bench, check_after=value)


@pytest.mark.parametrize("topic", ["", "no topic", "t" * 125, 5])
def test_wrong_topic_is_named(bench: Bench, topic: Any) -> None:
    with bench.refused(MessageError, "^topic: wanted"):
        bench.store.put(topic, b"a", check_after=1)


def test_call_rejects_what_is_no_half_message(bench: Bench) -> None:
    plain = bench.store.put("t", b"later", delay=60)
    put(bench, b"now")
    (leased,) = take(bench, lease=60)
    calls: list[Callable[[Any], AckResult]] = [bench.store.commit, bench.store.rollback]
    for call in calls:
        for target in (plain, plain.handle, leased, leased.receipt):
            with bench.refused(MessageError, "^half: wanted .* of topic 't'"):
                call(target)
        for wrong in ("", "nothing", "bDEgwrong", 5, None):
            with bench.refused(MessageError):
                call(wrong)


def test_half_message_of_another_store_is_unknown(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other", small())
    receipt, one = checked(other)
    assert [bench.store.commit(receipt), bench.store.commit(one)] == [UNKNOWN] * 2
    assert [bench.store.rollback(receipt), bench.store.rollback(one)] == [UNKNOWN] * 2
    assert other.store.commit(one) is COMMITTED
    other.close()


def test_check_after_of_zero_is_due_at_once(bench: Bench) -> None:
    receipt = half(bench, check_after=0)
    assert bench.store.commit(receipt) is EXPIRED
    bench.turn()
    (one,) = check(bench)
    assert bench.store.commit(one) is COMMITTED


# --- with other features ---


def test_commit_and_rollback_free_a_slot_of_flow_control(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(slot_messages_max=1))
    for call in (bench.store.commit, bench.store.rollback):
        receipt = half(bench)
        with pytest.raises(FlowControlError):
            half(bench)
        assert call(receipt) in (COMMITTED, ROLLED_BACK)
    bench.close()


def test_retention_keeps_half_messages_and_what_became_of_them(tmp_path: Path) -> None:
    """A half message that waits for its check moves with the log; a removed one is settled."""
    bench = Bench(tmp_path / "store", small(retention_ms=1000, commit_log_segment_bytes=4096))
    done, waits = half(bench, b"done"), half(bench, b"waits", check_after=600)
    assert bench.store.commit(done) is COMMITTED
    bench.turn()
    assert bench.bodies() == [b"done"]
    for _ in range(60):
        bench.store.put("fill", bytes(300))
        bench.turn(2000)
    assert inside_begin(bench.store) > waits.log_offset
    assert bench.store.commit(done) in (SETTLED, UNKNOWN)
    assert bench.store.commit(waits) is COMMITTED
    bench.turn()
    (one,) = take(bench, 9)
    assert one.body == b"waits"
    bench.close()


def inside_begin(store: TimerStore) -> int:
    return int(store.stats()["log_begin_bytes"])


def test_shards_commit_by_receipt_handle_and_check(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with timerstore.open_shards(
        tmp_path / "shards", 2, small(), clock=clock, threads=False, ingest_every=None
    ) as shards:
        halves = [shards.put("t", b"%d" % k, check_after=AFTER_S) for k in range(8)]
        assert shards.commit(halves[0]) is COMMITTED
        assert shards.commit(halves[1].handle) is COMMITTED
        assert shards.rollback(halves[2]) is ROLLED_BACK
        assert shards.rollback(halves[3].handle) is ROLLED_BACK
        clock.advance(AFTER_S * 1000)
        for store in shards.stores:
            Stepper(store).settle()
        checks = shards.receive(HALVES, "shop", max_count=9)
        assert sorted(int(one.body) for one in checks) == [4, 5, 6, 7]
        assert shards.commit(checks[0]) is COMMITTED
        assert shards.commit(checks[1].receipt) is COMMITTED
        assert [shards.rollback(one) for one in checks[2:]] == [ROLLED_BACK] * 2
        for store in shards.stores:
            Stepper(store).settle()
        came = [int(one.body) for one in shards.receive("t", "g", max_count=9)]
        assert sorted(came) == sorted([0, 1, *(int(one.body) for one in checks[:2])])
        with pytest.raises(MessageError, match="names its shard"):
            shards.commit("nothing")
