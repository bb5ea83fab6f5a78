"""Steps of schedule-deliver: batches, full disks, switches, and undeliverable messages."""

from pathlib import Path

import pytest

import timerstore
from tests.support.bench import SECOND, Bench, small
from tests.support.inside import LEVEL_BATCH, inside, service_event
from tests.support.level_bench import DEFAULT, HERE, levels, no_side_files, raw_level_put
from timerstore import FullError
from timerstore.errors import CorruptError


def test_batch_waits_until_earlier_batch_is_durable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LEVEL_BATCH, 3)
    for _ in range(5):
        bench.store.put("t", b"x", level=1)
    bench.turn()
    bench.clock.advance(SECOND)
    step = bench.stepper.step
    assert step("schedule_deliver")
    assert bench.store.stats()["level_pending_messages"] == 2
    assert not step("schedule_deliver")
    while step("flush"):
        pass
    assert step("schedule_deliver")
    assert bench.store.stats()["level_pending_messages"] == 0


@pytest.mark.parametrize("limit", [1, 2, 5, 2000])
def test_async_levels_have_limit_of_deliveries_that_are_not_durable(
    tmp_path: Path, limit: int
) -> None:
    bench = Bench(tmp_path, small(level_async=True, level_pending_max=limit))
    for level in (1, 2):
        for _ in range(6):
            bench.store.put("t", b"x", level=level)
    bench.turn()
    bench.clock.advance(5 * SECOND)
    while bench.stepper.step("schedule_deliver"):
        pass
    assert bench.store.stats()["level_pending_messages"] == 12 - 2 * min(limit, 6)
    bench.turn()
    assert len(bench.out()) == 12
    bench.close()


@pytest.mark.parametrize(("is_async", "waits_ms"), [(False, [100, 100]), (True, [100, 200])])
def test_delivery_is_retried_when_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool, waits_ms: list[int]
) -> None:
    bench = Bench(tmp_path, small(level_async=is_async))
    for k in range(3):
        bench.store.put("t", b"%d" % k * 9000, level=1)
    bench.turn()
    log = inside(bench.store).log
    make_room = log.make_room

    def full(size: int) -> None:
        raise FullError("no space left", where="the test")

    bench.clock.advance(SECOND)
    for wait_ms in waits_ms:
        monkeypatch.setattr(log, "make_room", full)
        with pytest.raises(FullError):
            bench.stepper.step("schedule_deliver")
        assert not bench.stepper.step("schedule_deliver"), "retried too early"
        service = bench.store.services()["schedule_deliver"]
        assert service.idle_s() == wait_ms / 1000
        monkeypatch.setattr(log, "make_room", make_room)
        while bench.stepper.step("flush"):
            pass
        bench.clock.advance(wait_ms)
    assert bench.store.stats()["schedule_deliver_resends"] == 2
    bench.turn()
    assert bench.bodies() == [b"%d" % k * 9000 for k in range(3)]
    bench.close()


def test_stop_dequeue_and_start_delay_postpone_levels(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(stop_dequeue=True))
    bench.store.put("t", b"x", level=1)
    bench.turn(9 * SECOND)
    assert bench.bodies() == []
    assert bench.store.services()["schedule_deliver"].idle_s() is None, "no busy loop"
    bench.config = small(start_delay_ms=500)
    bench.reopen()
    bench.turn(499)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"x"]
    bench.close()


def test_pause_may_end_before_the_service_asks_how_long_to_sleep(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(start_delay_ms=5000))
    bench.store.put("t", b"x", level=1)
    bench.turn(2 * SECOND)
    service = bench.store.services()["schedule_deliver"]
    assert not service.step()
    assert service.idle_s() == 3.0
    bench.clock.advance(3 * SECOND)
    assert service.idle_s() == 0.0
    bench.close()


def test_schedule_deliver_sleeps_until_first_message_is_due(bench: Bench) -> None:
    service = bench.store.services()["schedule_deliver"]
    bench.turn()
    assert service.idle_s() is None
    bench.store.put("t", b"x", level=3)
    bench.store.put("t", b"x", level=2)
    event = service_event(service)
    event.clear()
    bench.stepper.step("dispatch")
    assert event.is_set(), "not woken by new messages in its queue"
    bench.turn()
    assert service.idle_s() == 5.0
    bench.clock.advance(4999)
    service.step()
    assert service.idle_s() == 0.001


@pytest.mark.parametrize("number", ["+0", "-0", "0" * 11, "0" * 5000], ids=["+", "-", "11", "5000"])
def test_numbers_in_properties_are_read_as_c_reads_them(bench: Bench, number: str) -> None:
    """If Python rejected a number that C accepts, the store could not be opened."""
    raw_level_put(bench, 0, {**HERE, "REAL_QID": number, "DELAY": number.lstrip("-")[:-1] + "1"})
    assert [one.queue_id for one in bench.store.pending()] == [0]
    bench.reopen()
    bench.turn(3 * SECOND)
    assert bench.bodies() == [b"x"]


@pytest.mark.parametrize(
    "changes",
    [
        {"REAL_TOPIC": None},
        {"REAL_TOPIC": "a/b"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
        {"REAL_QID": None},
        {"REAL_QID": "-1"},
        {"REAL_QID": "x"},
        {"DELAY": None},
        {"DELAY": "0"},
        {"REAL_QID": "65536"},
        {"REAL_QID": "\u0660"},
        {"REAL_QID": "9" * 5000},
        {"DELAY": "\u0661"},
        {"DELAY": "9" * 5000},
    ],
)
def test_undeliverable_message_does_not_delay_others(
    bench: Bench, changes: dict[str, str | None]
) -> None:
    properties = {name: value for name, value in {**HERE, **changes}.items() if value is not None}
    raw_level_put(bench, 0, {**properties, "KEYS": "k"})
    bench.store.put("t", b"y", level=1)
    assert bench.store.query("t", "k") == []
    bench.turn(3 * SECOND)
    assert bench.bodies() == [b"y"]
    assert levels(bench).copy() == {0: (2,)}
    assert bench.store.stats()["schedule_deliver_unusable_messages"] == 1
    assert list(bench.store.pending()) == []
    no_side_files(bench)
    bench.turn()
    assert bench.bodies() == [b"y"]


def test_queue_past_the_table_is_delivered(bench: Bench) -> None:
    raw_level_put(bench, 40, {**HERE, "DELAY": "41"})
    bench.turn(DEFAULT[-1] - 1)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"x"]


def test_store_fails_when_level_message_is_damaged(bench: Bench) -> None:
    receipt = bench.store.put("t", b"body" * 10, level=1)
    bench.store.put("t", b"after", level=1)
    bench.turn()
    segment = bench.root / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(receipt.log_offset + 90)
        file.write(b"X")
    bench.clock.advance(SECOND)
    with pytest.raises(CorruptError, match="offset"):
        bench.stepper.settle()
    assert bench.out() == []
    inside(bench.store).log.fail(CorruptError("seen by the test"))
    bench.store.close()


@pytest.mark.more
def test_threads_deliver_levels_never_early(tmp_path: Path) -> None:
    config = small(level_delays="1s 2s")
    with timerstore.open(tmp_path, config) as store:
        receipts = [store.put("t", b"x", level=1 + k % 2) for k in range(400)]
        offset, late = 0, []
        while offset < len(receipts):
            result = store.pull("t", 0, offset, wait=5.0)
            assert result.messages, "no message was delivered in 5 s"
            late += [m.delivered_ms - m.due_ms for m in result.messages]
            offset = result.next_offset
        assert min(late) >= 0
        assert store.stats()["level_pending_messages"] == 0
