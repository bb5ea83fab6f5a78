"""A checkpoint that fails: the next one covers its changes, also after the clock was set back."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import SECOND, Bench, small
from tests.support.inside import inside
from timerstore._engine.base import failpoints
from timerstore._engine.format.watermark import SLOT_BYTES
from timerstore.errors import FullError

POINTS = [
    "checkpoint_log_synced", "checkpoint_queues_synced",
    "checkpoint_states_written", "checkpoint_wheel_written", "checkpoint_far_written",
    "checkpoint_counts_written",
]  # fmt: skip
NOTHING = np.empty(0, np.int64)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path / "s", small(far_wheel="shared"))
    yield one
    one.close()


def _fail(bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Make a checkpoint that finds the disk full at a point."""

    def full(name: str) -> None:
        if name == point:
            raise FullError("no space", where=bench.root)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hook", full)
        with pytest.raises(FullError):
            inside(bench.store).checkpoint.run()


# --- slots that must not be reused ---


def _kept(wheel: Any) -> list[int]:
    with wheel.lock:
        return [int(slot) for slot in wheel.kept()]


def _begin(wheel: Any) -> None:
    with wheel.lock:
        wheel.checkpoint_begins(NOTHING)


def _note_late(wheel: Any, slot: int) -> None:
    with wheel.lock:
        wheel.note_late([slot])


def test_slots_of_late_messages_are_kept_until_a_checkpoint_is_completed(bench: Bench) -> None:
    wheel = inside(bench.store).wheel
    _note_late(wheel, 3)
    _begin(wheel)
    assert _kept(wheel) == [3]
    _note_late(wheel, 5)
    assert _kept(wheel) == [3, 5]
    wheel.checkpoint_completed(wheel.completed_replay_slot)
    assert _kept(wheel) == [5]
    _begin(wheel)
    wheel.checkpoint_completed(wheel.completed_replay_slot)
    assert _kept(wheel) == []


def test_slots_of_late_messages_are_kept_when_a_checkpoint_fails(bench: Bench) -> None:
    wheel = inside(bench.store).wheel
    _note_late(wheel, 3)
    _begin(wheel)  # and is not completed
    _note_late(wheel, 5)
    _begin(wheel)
    assert _kept(wheel) == [3, 5]
    wheel.checkpoint_completed(wheel.completed_replay_slot)
    assert _kept(wheel) == []


@pytest.mark.parametrize("is_completed", [True, False])
def test_slot_of_moved_messages_is_emptied_by_a_clock_set_back_after_a_checkpoint_only(
    bench: Bench, is_completed: bool
) -> None:
    """Until a checkpoint covers the new place, a recovery finds the messages in the old slot."""
    wheel = inside(bench.store).wheel
    bench.store.put("t", b"x", delay=10)
    bench.turn()
    slot = wheel.next_used(0, 1 << 50)
    bench.turn(20 * SECOND)
    assert wheel.next_used(slot, slot + 1) == slot
    with wheel.lock:
        wheel.moved_on.add(slot)
    for _ in range(2):  # the first is not completed
        _begin(wheel)
    if is_completed:
        wheel.checkpoint_completed(wheel.completed_replay_slot)
    with wheel.lock:
        assert wheel.follow_back(slot - 5, lambda: NOTHING)
    assert wheel.next_used(slot, slot + 1) == (None if is_completed else slot)


# --- the store ---


@pytest.mark.parametrize("point", POINTS)
def test_next_checkpoint_writes_the_changes_of_one_that_failed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Nothing changes between the two, so only the failed one had copied the changes."""
    store, checkpoint = bench.store, inside(bench.store).checkpoint
    checkpoint.run()
    kept = [store.put("t", b"near", delay=30), store.put("t", b"far", delay=400)]
    store.cancel(store.put("t", b"cancelled", delay=30))
    bench.stepper.settle()
    _fail(bench, monkeypatch, point)
    checkpoint.run()
    killed = shutil.copytree(bench.root, tmp_path / "killed")
    other = Bench(killed, bench.config, bench.clock.now_ms)
    assert sorted(one.message_id for one in other.store.pending()) == sorted(
        one.message_id for one in kept
    )
    for _ in range(45):
        other.turn(10 * SECOND)
    assert other.bodies() == [b"near", b"far"]
    other.close()


@pytest.mark.parametrize("point", POINTS)
def test_next_checkpoint_leaves_the_watermark_in_force_unchanged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It is written to the other of two places, so a torn write leaves one."""
    checkpoint = inside(bench.store).checkpoint
    checkpoint.run()
    begin = checkpoint.completed.sequence % 2 * SLOT_BYTES
    path = bench.root / "timerstore" / "watermark"
    in_force = path.read_bytes()[begin : begin + SLOT_BYTES]
    bench.store.put("t", b"x", delay=30)
    for _ in range(3):
        _fail(bench, monkeypatch, point)
    checkpoint.run()
    assert path.read_bytes()[begin : begin + SLOT_BYTES] == in_force


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("is_completed", [True, False])
def test_no_message_is_lost_when_a_checkpoint_fails_and_the_clock_is_set_back(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, is_completed: bool
) -> None:
    """Messages before, between and after; then a kill, with or without another checkpoint."""
    store, checkpoint = bench.store, inside(bench.store).checkpoint
    for number in range(12):
        store.put("t", b"early %02d" % number, delay=1 + number)
    store.put("t", b"far", delay=400)
    bench.turn(6 * SECOND)
    _fail(bench, monkeypatch, point)
    bench.clock.set(bench.clock.now_ms - 5 * SECOND)
    cancelled = store.put("t", b"cancelled", delay=1)
    for number in range(12):
        store.put("t", b"late %02d" % number, delay=number)
    bench.stepper.settle()
    store.cancel(cancelled)
    _fail(bench, monkeypatch, point)
    bench.turn(2 * SECOND)
    for number in range(12):
        store.put("t", b"after %02d" % number, delay=120 + number)  # a lap later
    bench.stepper.settle()
    if is_completed:
        checkpoint.run()
    killed = shutil.copytree(bench.root, tmp_path / "killed")
    other = Bench(killed, bench.config, bench.clock.now_ms)
    for one in (bench, other):
        one.turn()
        for _ in range(45):
            one.turn(10 * SECOND)
    wanted = [
        b"far",
        *(b"%s %02d" % (name, k) for name in (b"early", b"late", b"after") for k in range(12)),
    ]
    assert sorted(bench.bodies()) == sorted(wanted)
    assert sorted(other.bodies()) == sorted(wanted)
    other.close()
