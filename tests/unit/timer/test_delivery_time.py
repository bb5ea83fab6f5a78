"""Messages are delivered on their millisecond, in order, and never early when the clock is set."""

import shutil
from pathlib import Path

import pytest

from tests.support.bench import DAY, NOW, SECOND, YEAR, Bench, small
from tests.support.inside import DEQUEUE_GET_BATCH, inside
from timerstore import FullError, Message


def test_delivery_is_on_its_millisecond(bench: Bench) -> None:
    for ms in (1, 2, 999, 1000, 1001, 1999, 2000, 5000):
        bench.store.put("t", b"%d" % ms, deliver_ms=NOW + ms)
    came: dict[int, int] = {}
    for ms in range(5003):
        bench.turn(1)
        for message in bench.out(offset=len(came)):
            came[int(message.body)] = ms + 1
            assert message.delivered_ms == bench.clock.now_ms
    assert came == {ms: ms for ms in (1, 2, 999, 1000, 1001, 1999, 2000, 5000)}


@pytest.mark.parametrize("jump_ms", [1, 3600 * SECOND, 30 * DAY])
def test_delivery_is_not_early_when_clock_is_set_back(bench: Bench, jump_ms: int) -> None:
    bench.store.put("t", b"a", delay=10)
    bench.turn(5000)
    bench.clock.set(NOW - jump_ms)
    bench.turn()
    bench.store.put("t", b"b", delay=2)  # due before a
    bench.turn(1999)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"b"]
    bench.clock.set(NOW + 9999)
    bench.turn()
    assert bench.bodies() == [b"b"]
    bench.turn(1)
    assert bench.bodies() == [b"b", b"a"]


def test_delivery_is_not_early_when_clock_is_set_back_after_loading(bench: Bench) -> None:
    bench.store.put("t", b"a", delay=10.5)
    bench.turn(10_400)  # the slot is loaded; the message is not due yet
    bench.clock.set(NOW)
    bench.turn(10_499)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"a"]


@pytest.mark.parametrize("how", ["on", "killed", "closed"])
def test_delivery_is_on_time_when_slots_have_messages_of_another_lap(
    bench: Bench, tmp_path: Path, how: str
) -> None:
    """The clock is set back ten laps: every slot that new messages need is in use."""
    for slot in range(1, 14):
        bench.store.put("old", b"", deliver_ms=NOW + slot * SECOND)
    bench.turn()
    now_ms = NOW - 1280 * SECOND
    bench.clock.set(now_ms)
    bench.turn()
    bench.store.put("t", b"first", deliver_ms=now_ms + 12_345)
    cancelled = bench.store.put("t", b"cancelled", deliver_ms=now_ms + 12_345)
    bench.turn()
    assert bench.store.cancel(cancelled)
    bench.store.put("t", b"second", deliver_ms=now_ms + 20)
    bench.turn(20)
    assert bench.bodies() == [b"second"]
    assert bench.store.stats()["enqueue_put_blocked"] == 0
    killed = bench.store
    if how == "killed":
        bench.store.flush()
        bench.root = Path(shutil.copytree(bench.root, tmp_path / "copy"))
        bench.open()
    elif how == "closed":
        bench.reopen()
    bench.turn(6000)
    bench.store.put("t", b"third", deliver_ms=bench.clock.now_ms + 30)
    bench.turn(30)
    assert bench.bodies() == [b"second", b"third"]
    bench.turn(now_ms + 12_344 - bench.clock.now_ms)
    assert bench.bodies() == [b"second", b"third"]
    bench.turn(1)
    assert bench.bodies() == [b"second", b"third", b"first"]
    assert not bench.bodies("old")
    bench.clock.set(NOW + 20 * SECOND)
    bench.turn()
    assert len(bench.bodies("old")) == 13
    bench.close()
    killed.close()


@pytest.mark.parametrize("jump_ms", [200 * SECOND, 20 * DAY, 3 * YEAR])
def test_delivery_is_in_order_when_clock_jumps_forward(bench: Bench, jump_ms: int) -> None:
    dues = [3000, 50_000, 50_001, 127_000, 128_000, 129_000, 160_000]
    for ms in reversed(dues):
        bench.store.put("t", b"%d" % ms, deliver_ms=NOW + ms)
    bench.turn(jump_ms)
    assert [int(body) for body in bench.bodies()] == dues


@pytest.mark.parametrize("delay_ms", [1, 1000, 64_000, 128_000, 1_000_000])
def test_equal_due_times_keep_put_order_after_rolls(bench: Bench, delay_ms: int) -> None:
    """A lap of the wheel is 128 s here, so the long ones roll many times."""
    due_ms = NOW + delay_ms
    for k in range(50):
        bench.store.put("t", b"%d" % k, deliver_ms=due_ms)
        if k % 10 == 9 and bench.clock.now_ms + delay_ms // 40 < due_ms:
            bench.turn(delay_ms // 40)
    while bench.clock.now_ms < due_ms:
        assert bench.bodies() == []
        bench.turn(min(20_000, due_ms - bench.clock.now_ms))
    assert [int(body) for body in bench.bodies()] == list(range(50))


def test_message_due_in_40_years_rolls_and_is_on_its_millisecond(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(precision_ms=60_000, wheel_slot_count=65_536))
    due_ms = NOW + 40 * YEAR
    bench.store.put("t", b"far", deliver_ms=due_ms)
    while bench.clock.now_ms < due_ms - 1:
        bench.turn(min(200 * DAY, due_ms - 1 - bench.clock.now_ms))
        assert bench.store.stats()["pending_messages"] == 1
    assert bench.bodies() == []
    bench.turn(1)
    (message,) = bench.out()
    assert (message.due_ms, message.delivered_ms) == (due_ms, due_ms)
    assert int(message.properties["TIMER_ROLL_TIMES"]) > 70
    bench.close()


def test_delivery_continues_after_reopening(bench: Bench) -> None:
    for k in range(12):
        bench.store.put("t", b"%d" % k, delay=k)
    for k in range(12):
        bench.reopen()
        bench.turn()
        assert [int(body) for body in bench.bodies()] == list(range(k + 1))
        bench.clock.advance(1000)


def test_messages_due_while_closed_are_delivered_on_opening(bench: Bench) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, delay=100 * (k + 1))
    bench.close()
    bench.clock.advance(350_000)
    bench.open()
    bench.turn()
    assert bench.bodies() == [b"0", b"1", b"2"]
    assert {m.delivered_ms for m in bench.out()} == {NOW + 350_000}


@pytest.mark.parametrize("now_ms", [0, 1, 999, 1000, 1001])
def test_delivery_is_on_its_millisecond_when_clock_starts_near_zero(
    tmp_path: Path, now_ms: int
) -> None:
    """Tests often use ManualClock(0)."""
    bench = Bench(tmp_path, now_ms=now_ms)
    dues = [now_ms + ms for ms in (1, 500, 999, 1000, 1001, 1500, 2500)]
    for due_ms in dues:
        bench.store.put("t", b"%d" % due_ms, deliver_ms=due_ms)
    bench.turn()
    bench.reopen()
    bench.turn()
    assert bench.bodies() == []
    came: list[Message] = []
    for due_ms in dues:
        bench.turn(due_ms - 1 - bench.clock.now_ms)
        assert len(bench.out()) == len(came)
        bench.turn(1)
        came = bench.out()
        assert came[-1].delivered_ms == due_ms
        bench.reopen()
    assert [int(m.body) for m in came] == dues
    bench.close()


def test_start_delay_postpones_deliveries(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(start_delay_ms=5000))
    bench.store.put("t", b"a", delay=1)
    bench.turn(4999)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"a"]
    bench.close()


@pytest.mark.parametrize("knob", ["stop_enqueue", "stop_dequeue"])
def test_stop_switches_postpone_deliveries(tmp_path: Path, knob: str) -> None:
    bench = Bench(tmp_path, small(**{knob: True}))
    bench.store.put("t", b"a", delay=1)
    bench.turn(5000)
    assert bench.bodies() == []
    assert len(list(bench.store.pending())) == 1
    bench.close()
    bench.config = small()
    bench.open()
    bench.turn()
    assert bench.bodies() == [b"a"]
    bench.close()


def test_dequeue_get_sleeps_when_late_message_is_in_read_slot(bench: Bench) -> None:
    # A late message's unit is in a slot that was read, so that slot's time is always past.
    bench.turn()
    bench.store.put("t", b"late", delay=0.5)  # goes to the open slot
    bench.store.put("t", b"later", delay=60)
    bench.turn()
    wait_s = inside(bench.store).pipeline.dequeue_get.idle_s()
    assert wait_s is not None
    assert wait_s > 5


@pytest.mark.parametrize(
    ("options", "service"),
    [
        ({"delay": 0.5}, "dequeue_put"),
        ({"delay": 6}, "dequeue_get"),
        ({"level": 1}, "schedule_deliver"),
    ],
)
def test_services_wait_for_fractions_of_a_millisecond(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, options: dict[str, float], service: str
) -> None:
    """A wait that is counted in whole milliseconds would end up to one of them late."""
    bench.store.put("t", b"m", **options)  # type: ignore[arg-type]
    bench.turn()
    whole_s = bench.store.services()[service].idle_s()
    until = type(bench.clock).seconds_until
    monkeypatch.setattr(
        type(bench.clock), "seconds_until", lambda clock, ms: until(clock, ms) - 0.0004
    )
    assert whole_s is not None
    assert bench.store.services()[service].idle_s() == pytest.approx(whole_s - 0.0004)


def test_due_entries_are_kept_when_disk_is_full_before_delivery(bench: Bench) -> None:
    # A step takes due entries and then raises while it waits for a checkpoint.
    bench.store.put("t", b"a", delay=1)
    bench.turn()
    service = inside(bench.store).pipeline.dequeue_put
    log = inside(bench.store).log
    wait = log.wait_for_checkpoint

    def full() -> None:
        raise FullError("no space")

    bench.clock.advance(1000)
    for name in ("dequeue_get", "dequeue_get_message"):
        bench.stepper.step(name)
    log.wait_for_checkpoint = full
    with pytest.raises(FullError):
        service.step()
    log.wait_for_checkpoint = wait
    bench.turn()
    assert bench.bodies() == [b"a"]


def test_slot_loaded_in_parts_rolls_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*DEQUEUE_GET_BATCH, 5)
    bench = Bench(tmp_path)
    for n in range(23):
        bench.store.put("t", b"%d" % n, deliver_ms=NOW + 7_700 - n)
    bench.turn()
    bench.clock.advance(7_000)
    for _ in range(20):  # entries are ready before the rest of their slot is loaded
        for name in ("dequeue_get", "dequeue_get_message", "dequeue_put"):
            bench.stepper.step(name)
    bench.turn(1_000)
    assert [int(body) for body in bench.bodies()] == list(reversed(range(23)))
    assert bench.store.stats()["dequeue_put_rolled_messages"] == 0
    bench.close()
