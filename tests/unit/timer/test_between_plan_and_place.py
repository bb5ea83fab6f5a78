"""Another operation runs between the planning of a change and its placing in the log.

Each change is planned without a lock and placed under the append lock. What happens to its message
in between decides; every counter must agree with a recount afterwards.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import DAY, SECOND, Bench, small
from tests.support.elsewhere import elsewhere
from tests.support.inside import encode_replacement, inside
from tests.support.leasing import take
from tests.support.retaining import SIZES, begin_of
from timerstore import (
    AckResult,
    CancelResult,
    FullError,
    LeaseLostError,
    NotPendingError,
    PutReceipt,
)
from timerstore._engine.base import failpoints

LAP_S = 128  # of the wheel of a bench
Act = Callable[[], object]


def recounted(bench: Bench) -> int:
    """How many messages wait: every counter says the same."""
    store = bench.store
    stats, waiting = store.stats(), list(store.pending())
    on_level = [one for one in waiting if one.timer_id < 0]
    by_topic: dict[str, int] = {}
    for one in waiting:
        by_topic[one.topic] = by_topic.get(one.topic, 0) + 1
    assert stats["pending_messages"] == len(waiting)
    assert stats["pending_by_topic"] == by_topic
    assert stats["level_pending_messages"] == len(on_level)
    assert sum(store.timing_distribution().values()) == len(waiting)
    assert sum(store.congestion().values()) == len(waiting) - len(on_level)
    now_ms = bench.clock.now_ms
    histogram = store.histogram(now_ms - DAY, now_ms + 30 * DAY, by="day")
    assert int(histogram.counts.sum()) == len(waiting)
    assert store.verify().clean
    return len(waiting)


def over(bench: Bench, delivered: list[bytes]) -> None:
    """Everything is delivered, once; no slot counts anything any more."""
    recounted(bench)
    bench.turn(DAY)
    assert sorted(bench.bodies()) == sorted(delivered)
    assert recounted(bench) == 0
    parts = inside(bench.store)
    assert parts.open_slot.outstanding().tolist() == []
    assert bench.store.stats()["open_slot_messages"] == 0
    assert bench.store.stats()["paced_messages"] == 0
    bench.store.flush()
    assert parts.wheel.completed_read_slot > bench.clock.now_ms // SECOND
    bench.reopen()
    assert recounted(bench) == 0
    assert sorted(bench.bodies()) == sorted(delivered)


@contextmanager
def before_room(bench: Bench, service: str, *acts: Act) -> Iterator[list[str]]:
    """The log has no room when a service places what it planned; each act runs, once, before room
    is made. Gives which were run.
    """
    log, left, run = inside(bench.store).log, list(acts), list[str]()
    serve = log.serve_in_batch

    def between(status: int, need: int, what: str) -> None:
        if what == service and left:
            run.append(what)
            left.pop(0)()
        serve(status, need, what)
        if what == service and left:
            log.native.room_end = 0  # once more

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "serve_in_batch", between)
        log.native.room_end = 0
        yield run
    assert len(run) == len(acts), "the service never placed anything"


@contextmanager
def at(point: str, act: Act, *, always: bool = False) -> Iterator[list[str]]:
    """At the first pass of a fail point the act runs, or at each."""
    run: list[str] = []

    def hook(name: str) -> None:
        if name == point and (always or not run):
            run.append(name)
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hook", hook)
        yield run
    assert run, f"{point} was not passed"


def cancelling(bench: Bench, *receipts: PutReceipt) -> Act:
    def act() -> None:
        for one in receipts:
            assert bench.store.cancel(one) is CancelResult.CANCELLED

    return act


def turn_seconds(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.turn(SECOND)


def full() -> None:
    raise FullError("write: No space left on device (ENOSPC)")


# --- deliveries and rolls ---


@pytest.mark.parametrize("rate", [None, 1000])
def test_delivery_is_cancelled_before_it_is_placed(bench: Bench, rate: float | None) -> None:
    bench.store.pace("t", rate)
    receipts = [bench.store.put("t", b"%d" % k, delay=2) for k in range(5)]
    bench.turn()
    with before_room(bench, "dequeue-put", cancelling(bench, receipts[0], receipts[3])):
        bench.turn(3 * SECOND)
    over(bench, [b"1", b"2", b"4"])


def test_delivery_is_rescheduled_before_it_is_placed(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=2) for k in range(5)]
    bench.turn()
    with before_room(bench, "dequeue-put", lambda: bench.store.reschedule(receipts[1], delay=100)):
        bench.turn(3 * SECOND)
    assert len(bench.bodies()) == 4
    over(bench, [b"%d" % k for k in range(5)])


@pytest.mark.parametrize("chosen", [(0,), (2, 4), (0, 1, 2, 3, 4)])
def test_roll_is_cancelled_before_it_is_placed(bench: Bench, chosen: tuple[int, ...]) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=3 * LAP_S) for k in range(5)]
    bench.turn()
    with before_room(bench, "dequeue-put", cancelling(bench, *(receipts[k] for k in chosen))):
        turn_seconds(bench, LAP_S)
    rolls, rest = divmod(
        bench.store.stats()["dequeue_put_rolled_messages"], max(1, 5 - len(chosen))
    )
    assert rest == 0
    assert (rolls > 0) == (len(chosen) < 5)
    assert recounted(bench) == 5 - len(chosen)
    parts = inside(bench.store)
    assert parts.open_slot.outstanding().tolist() == []
    over(bench, [b"%d" % k for k in range(5) if k not in chosen])


def test_roll_is_rescheduled_before_it_is_placed(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=3 * LAP_S) for k in range(3)]
    bench.turn()
    with before_room(bench, "dequeue-put", lambda: bench.store.reschedule(receipts[1], delay=5)):
        turn_seconds(bench, LAP_S)
    over(bench, [b"0", b"1", b"2"])


@pytest.mark.parametrize("delay_s", [2, 3 * LAP_S])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_disk_is_full_again_and_again_when_it_is_placed(
    bench: Bench, delay_s: int, times: int
) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, delay=delay_s)
    bench.turn()
    with before_room(bench, "dequeue-put", *[full] * times):
        for _ in range(times):
            with pytest.raises(FullError):
                turn_seconds(bench, LAP_S)
            assert recounted(bench) == 5
            inside(bench.store).log.native.room_end = 0
    over(bench, [b"%d" % k for k in range(5)])


def test_checkpoint_is_completed_before_a_delivery_is_placed(bench: Bench) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, delay=2)
    bench.turn()
    with before_room(bench, "dequeue-put", bench.store.flush):
        bench.turn(3 * SECOND)
    over(bench, [b"%d" % k for k in range(5)])


# --- rates ---


def _delivered(bench: Bench) -> tuple[int, int]:
    return len(bench.bodies("a")), len(bench.bodies("b"))


@pytest.mark.parametrize("placed", [0, 1, 4, 5, 6, 9])
@pytest.mark.parametrize("times", [1, 2])
def test_turns_are_given_back_over_two_parts(bench: Bench, placed: int, times: int) -> None:
    """A full disk ends a batch of two topics after so many: the rest goes as if nothing was."""
    log = inside(bench.store).log
    for topic in ("a", "b"):
        bench.store.pace(topic, 100)
        bench.store.put_many(topic, [b"%03d" % k for k in range(60)], delay=2)
    bench.turn()
    before = log.end
    bench.turn(3 * SECOND)
    assert _delivered(bench) == (1, 1)  # a rate begins with one
    size = (log.end - before) // 2
    # Time for five of each, one part of a batch each: turns given back twice would show, as ten
    # may go at once.
    bench.clock.set(bench.clock.now_ms + 50)
    with before_room(bench, "dequeue-put", *[full] * times):
        for lap in range(times):
            room = size * placed + size // 2 if lap == 0 else 0
            log.native.room_end = log.end + room
            with pytest.raises(FullError):
                bench.stepper.settle()
            assert bench.store.stats()["dequeue_put_messages"] == 2 + placed
            assert recounted(bench) == 120 - 2 - placed
    bench.stepper.settle()
    assert _delivered(bench) == (6, 6)
    bench.turn(100)
    assert _delivered(bench) == (16, 16)
    bench.turn(50)
    assert _delivered(bench) == (21, 21)
    for _ in range(8):
        bench.turn(100)
    assert _delivered(bench) == (60, 60)
    assert inside(bench.store).open_slot.outstanding().tolist() == []
    assert recounted(bench) == 0


def test_turn_of_a_cancelled_message_is_taken_by_the_next(bench: Bench) -> None:
    """Cancelled between planning and placing it used its turn: no more than that is lost."""
    bench.store.pace("t", 100)
    receipts = [bench.store.put("t", b"%02d" % k, delay=2) for k in range(30)]
    bench.turn()
    bench.turn(3 * SECOND)
    assert len(bench.bodies()) == 1
    bench.clock.set(bench.clock.now_ms + 100)
    with before_room(bench, "dequeue-put", cancelling(bench, receipts[3])):
        bench.stepper.settle()
    assert len(bench.bodies()) == 10
    bench.turn(100)
    assert len(bench.bodies()) == 20
    over(bench, [b"%02d" % k for k in range(30) if k != 3])


# --- fixed levels ---


@pytest.mark.parametrize("placed", [0, 1, 4])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_disk_is_full_again_and_again_when_a_level_is_placed(
    bench: Bench, placed: int, times: int
) -> None:
    log = inside(bench.store).log
    bench.store.put("t", b"x", level=1)
    bench.turn()
    before = log.end
    bench.turn(2 * SECOND)
    size = log.end - before
    for k in range(5):
        bench.store.put("t", b"%d" % k, level=1)
    bench.turn()
    with before_room(bench, "schedule-deliver", *[full] * times):
        for lap in range(times):
            bench.clock.set(bench.clock.now_ms + 2 * SECOND)  # it tries again later
            log.native.room_end = log.end + (size * placed + size // 2 if lap == 0 else 0)
            with pytest.raises(FullError):
                bench.stepper.settle()
            assert recounted(bench) == 5 - placed
    over(bench, [b"x", *(b"%d" % k for k in range(5))])


@pytest.mark.parametrize("name", ["flush", "put", "clock"])
def test_store_goes_on_before_a_level_is_placed(bench: Bench, name: str) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, level=1)
    bench.turn()
    acts: dict[str, Act] = {
        "flush": bench.store.flush,
        "put": lambda: bench.store.put("t", b"5", level=1),
        "clock": lambda: bench.clock.set(bench.clock.now_ms - SECOND),
    }
    with at("schedule_encoded", acts[name]):
        bench.turn(2 * SECOND)
    over(bench, [b"%d" % k for k in range(6 if name == "put" else 5)])


# --- retention ---


@pytest.fixture
def retaining(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "retaining", SIZES)
    yield bench
    bench.close()


def _filled(bench: Bench) -> None:
    begin = begin_of(bench)
    for _ in range(100):
        if begin_of(bench) > begin:
            return
        for _ in range(13):
            bench.store.put("other", bytes(1200))
        bench.turn()
    raise AssertionError("nothing was dropped")


@pytest.mark.parametrize("chosen", [(0,), (1, 3), (0, 1, 2, 3, 4)])
def test_move_is_cancelled_before_it_is_placed(retaining: Bench, chosen: tuple[int, ...]) -> None:
    receipts = [retaining.store.put("t", b"%d" % k, delay=100) for k in range(5)]
    retaining.turn()
    cancelled_at = [0]

    def cancel() -> None:
        cancelling(retaining, *(receipts[k] for k in chosen))()
        cancelled_at[0] = retaining.store.stats()["log_end_bytes"]
        for _ in range(14):  # the copies come into another file than what cancelled them
            retaining.store.put("other", bytes(1200))

    with at("retention_move_encoded", cancel):
        _filled(retaining)
    assert recounted(retaining) == 5 - len(chosen)
    # The log alone must tell it, too, when the records that cancelled them are gone.
    while begin_of(retaining) < cancelled_at[0]:
        _filled(retaining)
    retaining.close()
    shutil.rmtree(retaining.root / "timerstore")
    retaining.open()
    assert recounted(retaining) == 5 - len(chosen)
    retaining.turn(DAY)
    assert sorted(retaining.bodies()) == [b"%d" % k for k in range(5) if k not in chosen]
    assert inside(retaining.store).open_slot.outstanding().tolist() == []


def test_move_is_rescheduled_before_it_is_placed(retaining: Bench) -> None:
    receipts = [retaining.store.put("t", b"%d" % k, delay=100) for k in range(5)]
    retaining.turn()
    with at("retention_move_encoded", lambda: retaining.store.reschedule(receipts[2], delay=50)):
        _filled(retaining)
    assert recounted(retaining) == 5
    retaining.turn(DAY)
    assert sorted(retaining.bodies()) == [b"%d" % k for k in range(5)]


@pytest.mark.parametrize("times", [1, 2])
def test_disk_is_full_again_and_again_when_it_is_moved(retaining: Bench, times: int) -> None:
    for k in range(5):
        retaining.store.put("t", b"%d" % k, delay=100)
    retaining.turn()
    log = inside(retaining.store).log

    def without_room() -> None:
        log.native.room_end = 0

    with (
        before_room(retaining, "retention", *[full] * times),
        at("retention_move_encoded", without_room, always=True),
    ):
        for _ in range(times):
            with pytest.raises(FullError):
                _filled(retaining)
            assert recounted(retaining) == 5
    _filled(retaining)
    assert recounted(retaining) == 5
    retaining.turn(DAY)
    assert sorted(retaining.bodies()) == [b"%d" % k for k in range(5)]


# --- cancel, reschedule, replace, under flow control ---


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "limited", small(slot_messages_max=3))
    yield bench
    bench.close()


def _has_room_for(bench: Bench, deliver_ms: int, count: int) -> None:
    """A slot takes so many more, and no more than that."""
    for k in range(count):
        bench.store.put("t", b"more %d" % k, deliver_ms=deliver_ms)
    before = bench.store.stats()["flow_control_rejected_messages"]
    with pytest.raises(Exception, match="slot_messages_max"):
        bench.store.put("t", b"too many", deliver_ms=deliver_ms)
    assert bench.store.stats()["flow_control_rejected_messages"] == before + 1


@pytest.mark.parametrize("what", ["cancelled", "delivered"])
def test_message_is_over_before_it_is_rescheduled(limited: Bench, what: str) -> None:
    bench = limited
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5)
    bench.turn()
    acts = {"cancelled": cancelling(bench, first), "delivered": lambda: bench.turn(7 * SECOND)}
    with at("reschedule_encoded", acts[what]), pytest.raises(NotPendingError) as caught:
        bench.store.reschedule(first, deliver_ms=there)
    assert caught.value.result == f"ALREADY_{what.upper()}"
    assert recounted(bench) == 0
    _has_room_for(bench, there, 3)
    assert recounted(bench) == 3


def test_message_is_rescheduled_twice_at_once(limited: Bench) -> None:
    bench = limited
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5)
    bench.turn()
    with (
        at("reschedule_encoded", lambda: bench.store.reschedule(first, deliver_ms=there)),
        pytest.raises(NotPendingError),
    ):
        bench.store.reschedule(first, deliver_ms=there)
    assert recounted(bench) == 1
    _has_room_for(bench, there, 2)
    over(bench, [b"first", b"more 0", b"more 1"])


@pytest.mark.parametrize("times", [1, 2])
def test_disk_is_full_again_and_again_when_it_is_rescheduled(limited: Bench, times: int) -> None:
    bench = limited
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5)
    bench.turn()
    with before_room(bench, "reschedule", *[full] * times):
        for _ in range(times):
            inside(bench.store).log.native.room_end = 0
            with pytest.raises(FullError):
                bench.store.reschedule(first, deliver_ms=there)
            assert recounted(bench) == 1
    bench.store.reschedule(first, deliver_ms=there)
    _has_room_for(bench, there, 2)
    assert recounted(bench) == 3


@pytest.mark.parametrize("what", ["cancelled", "delivered", "replaced"])
def test_message_is_over_before_it_is_replaced(
    limited: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    bench, key = limited, {"key": "k", "replace": True}
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5, **key)
    bench.turn()
    acts: dict[str, Act] = {
        "cancelled": cancelling(bench, first),
        "delivered": lambda: bench.turn(7 * SECOND),
        "replaced": lambda: bench.store.reschedule(first, deliver_ms=there + 5000),
    }
    encoding = encode_replacement(inside(bench.store).replacing)
    encode, left = encoding.value, [acts[what]]

    def between(*given: Any) -> Any:
        record = encode(*given)
        if left:
            elsewhere(left.pop())  # the key is locked by this thread
        return record

    monkeypatch.setattr(*encoding, between)
    bench.store.put("t", b"second", deliver_ms=there, **key)
    assert not left
    # The other one was done first: the second put takes the place of what waited then.
    assert recounted(bench) == 1
    _has_room_for(bench, there, 2)
    expected = [b"second", b"more 0", b"more 1"] + [b"first"] * (what == "delivered")
    over(bench, expected)


# --- leases ---


@pytest.mark.parametrize("call", ["nack", "extend"])
@pytest.mark.parametrize("what", ["acked", "over"])
def test_lease_is_over_before_it_is_moved(bench: Bench, call: str, what: str) -> None:
    bench.store.put("t", b"a")
    bench.turn()
    (lease,) = take(bench, 1, lease=5)
    bench.turn()
    acts: dict[str, Act] = {
        "acked": lambda: bench.store.ack(lease),
        "over": lambda: bench.turn(7 * SECOND),
    }
    expected = AckResult.SETTLED if what == "acked" else AckResult.EXPIRED
    with at("reschedule_encoded", acts[what]):
        if call == "nack":
            assert bench.store.nack(lease, delay=60) is expected
        else:
            with pytest.raises(LeaseLostError) as caught:
                bench.store.extend(lease, lease=60)
            assert caught.value.result == expected
    assert recounted(bench) == 0
    again = take(bench, 10, lease=5)
    assert [one.attempt for one in again] == ([] if what == "acked" else [2])
    assert recounted(bench) == len(again)


@pytest.mark.parametrize("times", [1, 2])
def test_disk_is_full_again_and_again_when_a_lease_is_moved(bench: Bench, times: int) -> None:
    bench.store.put("t", b"a")
    bench.turn()
    (lease,) = take(bench, 1, lease=50)
    bench.turn()
    with before_room(bench, "reschedule", *[full] * times):
        for _ in range(times):
            inside(bench.store).log.native.room_end = 0
            with pytest.raises(FullError):
                bench.store.nack(lease, delay=60)
            assert recounted(bench) == 1
    assert bench.store.nack(lease, delay=60) is AckResult.NACKED
    assert recounted(bench) == 1
    bench.turn(61 * SECOND)
    (again,) = take(bench, 10, lease=5)
    assert again.attempt == 2
