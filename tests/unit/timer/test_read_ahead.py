"""A slot with a burst is read before it is due; its messages are delivered once and on time."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import BURST_UNITS, BURST_UNITS_PER_S, inside
from timerstore import FlowControlError
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.timer import open_slot

DUE = NOW + 20 * SECOND
COUNT = 30


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A store that has already read a burst of topic `a`; a message of `b` is due 1 ms later."""
    monkeypatch.setattr(*BURST_UNITS, 10)
    monkeypatch.setattr(open_slot, "BURST_MESSAGES", 10)
    monkeypatch.setattr(open_slot, "RUN_MIN", 5)
    made = Bench(tmp_path / "store", small(slot_messages_max=50))
    made.store.put_many("a", [b"%02d" % n for n in range(COUNT)], deliver_ms=DUE)
    made.store.put("b", b"x", deliver_ms=DUE + 1)
    made.turn()
    assert loaded(made) == 0
    made.turn(18 * SECOND - 1)
    assert loaded(made) == 0
    made.turn(1)
    assert loaded(made) == COUNT
    yield made
    made.close()


def loaded(bench: Bench) -> int:
    return int(bench.store.stats()["open_slot_messages"])


def assert_comes_out(bench: Bench, numbers: range | list[int] = range(COUNT)) -> None:
    """Check that all of the burst is delivered on time and in order."""
    bench.turn(DUE - 1 - bench.clock.now_ms)
    assert not bench.bodies("a")
    bench.turn(1)
    assert [int(body) for body in bench.bodies("a")] == list(numbers)
    assert not bench.bodies("b")
    bench.turn(1)
    assert bench.bodies("b") == [b"x"]


def test_burst_read_ahead_is_delivered_on_time(bench: Bench) -> None:
    reading = bench.store.services()["dequeue_get"]
    assert reading.idle_s() == 2.0  # until the next slot
    bench.store.put_many("c", [b""] * COUNT, deliver_ms=DUE + 9 * SECOND)
    bench.turn()
    assert reading.idle_s() == 0.5  # until the next check for bursts
    assert_comes_out(bench)


def test_message_put_into_slot_read_ahead_is_on_time(bench: Bench) -> None:
    """Their slots have been read, so they go to the open slot directly."""
    bench.store.put("a", b"30", deliver_ms=DUE)  # after the others with this due time
    bench.store.put("c", b"before", deliver_ms=bench.clock.now_ms + 700)
    bench.store.put("a", b"31", deliver_ms=DUE)
    bench.turn(699)
    assert not bench.bodies("c")
    bench.turn(1)
    assert bench.bodies("c") == [b"before"]
    assert_comes_out(bench, range(COUNT + 2))


def test_message_read_ahead_can_be_cancelled_and_rescheduled(bench: Bench) -> None:
    handles = list(bench.store.pending(topic="a"))
    assert bench.store.cancel(handles[3].handle)
    assert bench.store.reschedule(handles[4].handle, deliver_ms=DUE + 5 * SECOND)
    assert_comes_out(bench, [n for n in range(COUNT) if n not in (3, 4)])
    bench.turn(5 * SECOND)
    assert [int(body) for body in bench.bodies("a")][-1] == 4


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_burst_read_ahead_is_on_time_after_reopening(
    bench: Bench, tmp_path: Path, how: str
) -> None:
    before = bench.store
    bench.store.put("a", b"30", deliver_ms=DUE)
    bench.turn()
    if how == "closed":
        bench.reopen()
    else:
        bench.store.flush()
        bench.root = Path(shutil.copytree(bench.root, tmp_path / "copy"))
        bench.open()
    bench.turn()
    assert loaded(bench) == COUNT + 1
    assert_comes_out(bench, range(COUNT + 1))
    before.close()


def test_closing_takes_read_slot_back_to_the_present(bench: Bench) -> None:
    """With no undelivered message, a broker would otherwise skip the slots that were read ahead."""
    for one in list(bench.store.pending()):
        bench.store.cancel(one.handle)
    bench.turn()
    assert inside(bench.store).wheel.read_slot * SECOND > bench.clock.now_ms + SECOND
    bench.close()
    read_ms = int.from_bytes(Tree(bench.root).timer_check.read_bytes()[:8], "big")
    assert read_ms <= bench.clock.now_ms + SECOND
    bench.open()
    bench.store.put("c", b"soon", deliver_ms=bench.clock.now_ms + 900)
    bench.turn(900)
    assert bench.bodies("c") == [b"soon"]


@pytest.mark.parametrize("back_ms", [1, SECOND, 10 * SECOND, 1000 * SECOND, 400_000 * SECOND])
def test_delivery_is_on_time_when_clock_is_set_back_after_reading_ahead(
    bench: Bench, back_ms: int
) -> None:
    bench.turn(-back_ms)
    begin_ms = bench.clock.now_ms
    bench.store.put("c", b"soon", deliver_ms=begin_ms + 10)
    bench.store.put("c", b"later", deliver_ms=begin_ms + 3500)
    bench.turn(9)
    assert not bench.bodies("c")
    bench.turn(1)
    assert bench.bodies("c") == [b"soon"]
    bench.turn(begin_ms + 3499 - bench.clock.now_ms)
    assert bench.bodies("c") == [b"soon"]
    bench.turn(1)
    assert bench.bodies("c") == [b"soon", b"later"]
    if bench.clock.now_ms < DUE:
        assert_comes_out(bench)


def test_read_slot_follows_clock_set_back_in_small_steps(bench: Bench) -> None:
    """`read_slot` does not stay minutes ahead, however small each step is."""
    wheel = inside(bench.store).wheel
    for _ in range(40):
        bench.turn(-SECOND)
    assert wheel.read_slot <= bench.clock.now_ms // SECOND + 1
    bench.store.put("c", b"soon", deliver_ms=bench.clock.now_ms + 10)
    bench.turn(10)
    assert bench.bodies("c") == [b"soon"]
    assert_comes_out(bench)


def test_flow_control_counts_messages_read_ahead(bench: Bench) -> None:
    bench.store.put_many("a", [b"99"] * 20, deliver_ms=DUE)
    with bench.refused(FlowControlError):
        bench.store.put("a", b"99", deliver_ms=DUE)
    bench.turn()
    with bench.refused(FlowControlError):
        bench.store.put("a", b"99", deliver_ms=DUE)


def test_dequeue_get_wakes_in_time_to_read_ahead(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(precision_ms=10, wheel_slot_count=8000))
    bench.store.put("a", b"", delay=60)
    bench.turn()
    assert (
        bench.store.services()["dequeue_get"].idle_s() == 5.0
    )  # the service reads up to 10 s ahead
    bench.close()


def test_burst_is_not_read_further_ahead_than_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is an eighth of a lap, a minute and 4,096 slots, whatever the burst's size."""
    monkeypatch.setattr(*BURST_UNITS, 10)
    monkeypatch.setattr(*BURST_UNITS_PER_S, 1)
    bench = Bench(tmp_path / "store")
    bench.store.put_many("a", [b""] * 40, deliver_ms=NOW + 40 * SECOND)
    bench.turn(40 * SECOND - 18 * SECOND)
    assert loaded(bench) == 0
    bench.turn(SECOND)
    assert loaded(bench) == 40
    bench.close()
