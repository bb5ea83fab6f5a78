"""Each durable call of a store answers only when all that its answer depends on is synced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.durable.files import ANSWER, CHECKPOINT, CLOSED
from tests.support.durable.recorder import Recorder
from tests.support.inside import sync_of_cancels
from tests.support.leasing import DEAD, bodies, take
from tests.unit.durability.conftest import Machine
from timerstore import AckResult, CancelResult, MessageError, TimerStore


def waiting(bench: Bench) -> list[tuple[str, int]]:
    """Return message ids and due times of pending messages."""
    return sorted((one.message_id, one.due_ms) for one in bench.store.pending())


def _put(store: TimerStore) -> None:
    store.put("t", b"a", delay=10)


def _put_now(store: TimerStore) -> None:
    store.put("t", b"a")


def _put_on_level(store: TimerStore) -> None:
    store.put("t", b"a", level=2)


def _put_with_id(store: TimerStore) -> None:
    store.put("t", b"a", delay=10, message_id="m")


def _put_many(store: TimerStore) -> None:
    store.put_many("t", [b"%d" % k for k in range(200)], delay=10)


def _put_group(store: TimerStore) -> None:
    store.put_many("t", [b"%d" % k for k in range(50)], delay=10, atomic=True)


def _put_in_place_of_another(store: TimerStore) -> None:
    for body in (b"1", b"2"):
        store.put("t", body, delay=10, key="k", replace=True)


def _put_over_a_segment_edge(store: TimerStore) -> None:
    for _ in range(3):
        store.put("t", bytes(600_000), delay=10)


def _cancel(store: TimerStore) -> None:
    first, _ = store.put("t", b"a", delay=10), store.put("t", b"b", delay=10)
    assert store.cancel(first) is CancelResult.CANCELLED


def _cancel_many(store: TimerStore) -> None:
    found = [store.put("t", b"a", delay=10) for _ in range(5)]
    store.cancel_many(found[1:])


def _reschedule(store: TimerStore) -> None:
    store.reschedule(store.put("t", b"a", delay=10), delay=20)


def _put_every(store: TimerStore) -> None:
    store.put_every("t", b"a", every=10, name="e")


def _cancel_every(store: TimerStore) -> None:
    store.put_every("t", b"a", every=10, name="e")
    assert store.cancel_every("e")


def _pace(store: TimerStore) -> None:
    store.put("t", b"a", delay=10)
    store.pace("t", 5)


APPENDING: list[Callable[[TimerStore], None]] = [
    _put, _put_now, _put_on_level, _put_with_id, _put_many, _put_group, _put_in_place_of_another,
    _put_over_a_segment_edge, _cancel, _cancel_many, _reschedule, _put_every, _cancel_every, _pace,
]  # fmt: skip


@pytest.mark.parametrize("call", APPENDING, ids=lambda call: call.__name__.strip("_"))
@pytest.mark.parametrize("is_turned", [False, True])
def test_answer_survives_a_power_cut(
    machine: Machine, call: Callable[[TimerStore], None], is_turned: bool
) -> None:
    bench = machine.bench
    bench.store.put("t", b"before", delay=3600)
    if is_turned:  # the services have unsynced work of their own
        bench.turn()
    call(bench.store)
    found = machine.answered()
    assert waiting(found) == waiting(bench)
    assert found.bodies() == bench.bodies()
    assert found.store.recurring() == bench.store.recurring()
    assert found.store.stats()["log_end_bytes"] == bench.store.stats()["log_end_bytes"]
    found.close()


def _first_is_staged(bench: Bench) -> Any:
    """Return a message without any synced byte, as its put did not wait for a sync."""
    return bench.store.put("t", b"a", delay=10, message_id="m", flush="async")


def test_duplicate_is_answered_when_the_first_is_durable(machine: Machine) -> None:
    first = _first_is_staged(machine.bench)
    again = machine.bench.store.put("t", b"a", delay=10, message_id="m")
    assert again.duplicate
    found = machine.answered()
    assert waiting(found) == [(first.message_id, first.due_ms)]
    found.close()


def test_duplicate_among_many_is_answered_when_the_first_is_durable(machine: Machine) -> None:
    first = _first_is_staged(machine.bench)
    machine.bench.store.put_many("t", [b"a"], delay=10, message_ids=["m"])
    found = machine.answered()
    assert waiting(found) == [(first.message_id, first.due_ms)]
    found.close()


def _cancel_without_sync(machine: Machine, first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel has not returned yet: its record is in the log and not synced."""
    with monkeypatch.context() as patch:
        patch.setattr(*sync_of_cancels(machine.bench.store), lambda _end: None)
        assert machine.bench.store.cancel(first) is CancelResult.CANCELLED


def test_duplicate_is_called_cancelled_when_the_cancel_is_durable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine.bench.store.put("t", b"a", delay=10, message_id="m")
    _cancel_without_sync(machine, first, monkeypatch)
    again = machine.bench.store.put("t", b"a", delay=10, message_id="m")
    assert again.duplicate
    assert again.cancelled
    found = machine.answered()
    assert waiting(found) == []
    found.close()


@pytest.mark.parametrize("is_atomic", [False, True])
def test_duplicate_among_many_is_called_cancelled_when_the_cancel_is_durable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, is_atomic: bool
) -> None:
    first = machine.bench.store.put("t", b"a", delay=10, message_id="m")
    _cancel_without_sync(machine, first, monkeypatch)
    batch = machine.bench.store.put_many("t", [b"a"], delay=10, message_ids=["m"], atomic=is_atomic)
    assert batch[0].cancelled
    found = machine.answered()
    assert waiting(found) == []
    found.close()


@pytest.mark.parametrize("is_many", [False, True])
def test_already_cancelled_is_answered_when_the_cancel_is_durable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, is_many: bool
) -> None:
    first = machine.bench.store.put("t", b"a", delay=10)
    _cancel_without_sync(machine, first, monkeypatch)
    store = machine.bench.store
    answer = store.cancel_many([first])[0] if is_many else store.cancel(first)
    assert answer is CancelResult.ALREADY_CANCELLED
    found = machine.answered()
    assert waiting(found) == []
    found.close()


@pytest.mark.parametrize("is_many", [False, True])
def test_already_delivered_is_answered_when_the_delivery_is_durable(
    machine: Machine, is_many: bool
) -> None:
    bench = machine.bench
    first = bench.store.put("t", b"a", delay=1)
    bench.turn()
    bench.clock.set(bench.clock.now_ms + 3000)
    for name in ("dequeue_get", "dequeue_get_message", "dequeue_put"):
        while bench.stepper.step(name):
            pass
    assert bench.store.stats()["log_durable_bytes"] < bench.store.stats()["log_end_bytes"]
    store = bench.store
    answer = store.cancel_many([first])[0] if is_many else store.cancel(first)
    assert answer is CancelResult.ALREADY_DELIVERED
    found = machine.answered()
    assert waiting(found) == []
    assert found.bodies() == [b"a"]
    found.close()


def _delivered(bench: Bench, count: int = 4) -> None:
    for k in range(count):
        bench.store.put("t", b"%d" % k)
    bench.turn()


def test_pull_shows_durable_messages_only(machine: Machine) -> None:
    _delivered(machine.bench)
    shown = machine.bench.bodies()
    found = machine.answered()
    assert shown == found.bodies() == [b"0", b"1", b"2", b"3"]
    found.close()


def test_commit_survives_a_power_cut(machine: Machine) -> None:
    _delivered(machine.bench)
    with machine.bench.store.consumer("t", "g") as consumer:
        for number in (1, 2):
            consumer.poll(max_count=1)
            consumer.commit()
            found = machine.answered()
            assert found.store.committed("t", "g") == {0: number}
            found.close()


def test_lease_survives_a_power_cut(machine: Machine) -> None:
    _delivered(machine.bench)
    lease = take(machine.bench, 1, lease=60)
    found = machine.answered()
    assert bodies(take(found, 4, lease=60)) == [b"1", b"2", b"3"]
    assert found.store.ack(lease[0]) is AckResult.ACKED
    found.close()


def test_ack_survives_a_power_cut(machine: Machine) -> None:
    _delivered(machine.bench, 2)
    first, second = take(machine.bench, 2, lease=60)
    assert machine.bench.store.ack(first) is AckResult.ACKED
    found = machine.answered()
    assert found.store.ack(first) is AckResult.SETTLED
    found.close()
    assert machine.bench.store.ack_many([second]) == [AckResult.ACKED]
    found = machine.answered()
    found.turn(60_000)
    assert take(found) == []
    found.close()


def test_nack_and_extend_survive_a_power_cut(machine: Machine) -> None:
    _delivered(machine.bench, 2)
    first, second = take(machine.bench, 2, lease=60)
    assert machine.bench.store.nack(first, delay=100) is AckResult.NACKED
    found = machine.answered()
    assert found.store.ack(first) is AckResult.SETTLED
    found.close()
    longer = machine.bench.store.extend(second, lease=200)
    found = machine.answered()
    found.turn(100_000)
    assert bodies(take(found)) == [first.body]
    assert found.store.ack(longer) is AckResult.ACKED
    found.close()


def test_letters_that_were_requeued_before_an_error_survive_a_power_cut(machine: Machine) -> None:
    _delivered(machine.bench, 1)
    machine.bench.store.bury(take(machine.bench, 1)[0])
    machine.bench.turn()
    machine.bench.store.put(DEAD, b"of another program, which names no topic")
    machine.bench.turn()
    with pytest.raises(MessageError, match="names its topic"):
        machine.bench.store.requeue("g", list(machine.bench.store.dead_letters("g")))
    found = machine.answered()
    found.turn()
    assert [one.topic for one in found.store.dead_letters("g")] == [DEAD]
    assert len(take(found)) == 1
    found.close()


def test_flush_leaves_nothing_unsynced(machine: Machine) -> None:
    bench = machine.bench
    for k in range(300):  # several files of the queue, of the timer log, of the index
        bench.store.put("t", b"%d" % k, delay=k % 7, keys=f"k{k}", flush="async")
    bench.store.put("t", b"far", delay=86_400)
    bench.turn(3000)
    bench.store.put("t", b"late", flush="async")
    bench.store.flush()
    found = machine.answered(CHECKPOINT)
    assert waiting(found) == waiting(bench)
    found.close()


def test_close_leaves_nothing_unsynced(machine: Machine) -> None:
    bench = machine.bench
    for k in range(300):
        bench.store.put("t", b"%d" % k, delay=k % 7, keys=f"k{k}", message_id=f"m{k}")
    bench.store.put("t", b"level", level=3)
    bench.store.put_every("t", b"again", every=60, name="e")
    bench.turn(3000)
    before = waiting(bench)
    machine.close()
    found = machine.answered(CLOSED)
    assert waiting(found) == before
    found.close()
    bench.open()


def test_new_store_has_its_name_when_it_is_open(machine: Machine) -> None:
    found = machine.answered(CHECKPOINT)
    assert waiting(found) == []
    found.close()


def test_store_that_is_opened_again_is_durable(machine: Machine) -> None:
    machine.bench.store.put("t", b"a", delay=10)
    machine.bench.turn()
    machine.bench.reopen()
    found = machine.answered(CHECKPOINT)
    assert len(waiting(found)) == 1
    found.close()


def test_recovery_results_are_durable_after_a_kill(machine: Machine) -> None:
    bench = machine.bench
    for k in range(300):
        bench.store.put("t", b"%d" % k, delay=k % 7, keys=f"k{k}", flush="async")
    bench.turn(2000)
    for k in range(100):
        bench.store.put("t", b"staged %d" % k, delay=9, flush="async")
    before = waiting(bench)
    machine.kill()
    found = machine.answered(ANSWER)
    assert waiting(found) == before
    found.close()


@pytest.mark.parametrize("name", ["put", "put now", "put_many"])
def test_put_by_the_system_clock_survives_a_power_cut(
    disk: Path, recorder: Recorder, tmp_path: Path, name: str
) -> None:
    """With the system clock `put` takes the fast path."""
    config = small(flush="sync")
    puts: dict[str, Callable[[TimerStore], object]] = {
        "put": lambda store: store.put("t", b"a", delay=3600),
        "put now": lambda store: store.put("t", b"a"),
        "put_many": lambda store: store.put_many("t", [b"a"], delay=3600),
    }
    with timerstore.open(disk / "store", config, threads=False) as store:
        for k in range(3):
            puts[name](store)
            recorder.check(ANSWER, "store")
            now_ms = store.clock.now_ms
            found = Bench(recorder.cut(disk / "store", tmp_path / f"{k}"), config, now_ms)
            assert len(waiting(found)) + len(found.bodies()) == k + 1
            found.close()
