"""Overflow: a message that finds no slot waits in memory, with a unit on the far wheel.

See docs/decisions/0003-timing-wheel.md.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from tests.support.bench import DAY, NOW, SECOND, Bench, small
from tests.support.far_bench import stat
from tests.support.inside import FAR_BATCH
from timerstore import StoreConfig

LAP = 128
AHEAD_MS = 10 * 365 * DAY
"""How far the clock is ahead when the wheel is filled: whole laps, so that later messages need the
same slots.
"""
assert AHEAD_MS % (LAP * SECOND) == 0


def config(**changes: Any) -> StoreConfig:
    return small(**({"visibility": "written"} | changes))


@pytest.fixture(params=["off", "shared", "own"])
def full(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A store whose slots all have messages of years ahead; the clock was wrong at first."""
    made = Bench(tmp_path / "store", config(far_wheel=request.param), NOW + AHEAD_MS)
    fill(made)
    yield made
    made.close()


def fill(bench: Bench) -> None:
    for n in range(1, LAP + 1):
        bench.store.put("old", b"o", delay=n)
    bench.turn()
    bench.clock.set(NOW)
    bench.turn()


def put_some(bench: Bench) -> list[tuple[int, bytes]]:
    """Put messages with near and far due times, and return them in order of due time."""
    base = bench.clock.now_ms
    puts = []
    for n, seconds in enumerate((50, 3, 90, 400, 1, 120, 700)):
        puts.append((base + seconds * SECOND + n, b"%d" % seconds))
        bench.store.put("t", puts[-1][1], deliver_ms=puts[-1][0])
    return sorted(puts)


def watch(bench: Bench, puts: list[tuple[int, bytes]]) -> None:
    """Check that each message is delivered on its millisecond, and not before."""
    for n, (due_ms, _) in enumerate(puts):
        bench.turn(due_ms - 1 - bench.clock.now_ms)
        assert bench.bodies() == [body for _, body in puts[:n]]
        bench.turn(1)
        assert bench.bodies() == [body for _, body in puts[: n + 1]]


def test_overflow_message_is_delivered_on_its_millisecond(full: Bench) -> None:
    puts = put_some(full)
    full.turn()
    assert stat(full, "overflow_messages") > 0
    assert [one.due_ms for one in full.store.pending(topic="t")] == [due for due, _ in puts]
    watch(full, puts)
    assert stat(full, "far_messages") == 0 or full.config.far_wheel != "off"


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_overflow_messages_are_pending_after_opening(full: Bench, tmp_path: Path, how: str) -> None:
    puts = put_some(full)
    full.turn()
    full.store.flush()
    assert stat(full, "overflow_messages") > 0
    for _ in range(3):
        open_again(full, tmp_path, how)
        full.turn()
        assert [one.due_ms for one in full.store.pending(topic="t")] == [due for due, _ in puts]
    watch(full, puts)


def open_again(bench: Bench, tmp_path: Path, how: str) -> None:
    """Open the store again, after closing it or as a crash would leave it."""
    if how == "closed":
        bench.reopen()
        return
    new = next(path for n in count() if not (path := tmp_path / f"copy-{n}").exists())
    bench.root = copytree(bench.root, new)
    bench.store.close()
    bench.open()


def test_overflow_message_can_be_cancelled_and_rescheduled(full: Bench) -> None:
    gone = full.store.put("t", b"gone", delay=40)
    moved = full.store.put("t", b"moved", delay=40)
    full.turn()
    assert stat(full, "overflow_messages") >= 2
    assert full.store.cancel(gone).name == "CANCELLED"
    full.store.reschedule(moved, delay=5)
    full.turn()
    full.turn(5 * SECOND)
    assert full.bodies() == [b"moved"]
    full.turn(40 * SECOND)
    assert full.bodies() == [b"moved"]


def test_explain_reports_overflow(full: Bench) -> None:
    one = full.store.put("t", b"m", delay=40)
    full.turn()
    found = full.store.explain(one)
    assert found.state == "pending"
    assert found.where == "open slot"
    assert "no slot was free" in found.why


def test_units_of_delivered_overflow_messages_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAR_BATCH, 16)
    bench = Bench(tmp_path / "store", config(timer_log_segment_bytes=1040), NOW + AHEAD_MS)
    fill(bench)
    bench.store.put("t", b"last", delay=100 * SECOND)  # keeps the chain from being dropped whole
    for n in range(400):
        bench.store.put("t", b"%d" % n, delay=40 + n / 1000)
    bench.turn()
    most = stat(bench, "far_messages")
    assert most >= 400
    bench.turn(50 * SECOND)
    assert len(bench.bodies()) == 400
    assert stat(bench, "far_messages") < most / 4
    bench.reopen()
    bench.turn()
    assert [one.topic for one in bench.store.pending(topic="t")] == ["t"]
    bench.close()


# --- messages held by a rate do not keep later slots in use ---


@pytest.mark.parametrize("how", ["", "killed", "closed"])
def test_rate_limited_messages_delay_no_other_topic_for_many_laps(tmp_path: Path, how: str) -> None:
    bench = Bench(tmp_path / "store", config())
    bench.store.pace("a", 0.1)
    for _ in range(200):  # for 2000 s; the wheel has 128 slots of a second
        bench.store.put("a", b"a", delay=2)
    bench.store.put("b", b"first", delay=2)
    bench.turn(2 * SECOND)
    came = []
    for n in range(300):
        due_ms = bench.clock.now_ms + 30 * SECOND + 7
        bench.store.put("b", b"%d" % n, deliver_ms=due_ms)
        came.append((due_ms, b"%d" % n))
        bench.turn(SECOND)
        if n == 200 and how:
            bench.store.flush()
            open_again(bench, tmp_path, how)
            bench.store.pace("a", 0.1)
    for _ in range(31):
        bench.turn(SECOND)
    assert [one.body for one in bench.out("b")] == [b"first", *(body for _, body in came)]
    late = [m.store_ms - due for m, (due, _) in zip(bench.out("b")[1:], came, strict=True)]
    assert max(late) < SECOND + 7  # the clock is advanced by seconds
    assert stat(bench, "overflow_messages") == 0
    assert stat(bench, "dequeue_put_rolled_messages") < 4  # past the one slot in use
    assert stat(bench, "paced_messages") > 100
    bench.close()
