"""States of finished timers whose records retention removed are dropped from the side file."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.inside import PAST_RANGES_MAX, inside
from tests.support.retaining import HOUR_MS, KIB, config
from timerstore import CancelResult, TimerStore, verify_directory
from timerstore._engine.base import failpoints
from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.state_sector import CHUNK_IDS
from timerstore.testing import ManualClock, Stepper

NOW = 1_700_000_000_000
COUNT = 12 * CHUNK_IDS


def _config() -> timerstore.StoreConfig:
    return config(
        commit_log_segment_bytes=256 * KIB, queue_segment_bytes=20_000, staging_bytes=64 * KIB,
        timer_log_segment_bytes=64 * KIB, index_enabled=False,
    )  # fmt: skip


def _open(root: Path, clock: ManualClock) -> TimerStore:
    return timerstore.open(root, _config(), clock=clock, threads=False)


def _past(root: Path) -> tuple[tuple[int, int], ...]:
    mark = watermark.read((root / "timerstore/watermark").read_bytes())
    assert mark is not None
    counts = counts_json.read_counts((root / "timerstore/counts").read_bytes(), mark.log_end)
    assert counts is not None
    return counts.past


def _work(store: TimerStore, clock: ManualClock) -> list[timerstore.PutReceipt]:
    """Put two long delayed messages between many finished ones, and let all files expire."""
    stepper = Stepper(store)
    far = [store.put("far", b"0", delay=90 * 86_400)]
    for n in range(4):
        store.put_many("t", [b"x"] * (COUNT // 4), delay=60.0, queue_id=0)
        if n == 1:
            far.append(store.put("far", b"1", delay=91 * 86_400))
    clock.advance(120_000)
    stepper.settle()
    for _ in range(6):
        clock.advance(HOUR_MS)
        store.put("t", b"y", queue_id=0)
        stepper.settle()
        store.flush()
    return far


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(failpoints, "hook", found.append)
    return found


def test_past_states_take_no_space_and_are_not_read(tmp_path: Path, points: list[str]) -> None:
    clock = ManualClock(NOW)
    store = _open(tmp_path / "s", clock)
    far = _work(store, clock)
    past = _past(tmp_path / "s")
    assert sum(end - begin for begin, end in past) >= 5
    assert all(not begin <= n < end for begin, end in past for n in (0, COUNT // 2 // CHUNK_IDS))
    with (tmp_path / "s/timerstore/state").open("rb") as file:
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        assert hole < file.seek(0, os.SEEK_END), "nothing was given back"
    assert store.verify().clean
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    store.close()
    assert verify_directory(tmp_path / "s", _config()).clean
    for name in ("s", "killed"):
        points.clear()
        with _open(tmp_path / name, clock) as again:
            assert "recover_rebuild_begun" not in points, "the whole log was scanned"
            waiting = {one.message_id for one in again.pending()}
            assert waiting == {one.message_id for one in far}
            assert again.verify().clean
            assert again.cancel(far[1]) is CancelResult.CANCELLED
            clock.advance(HOUR_MS)
            Stepper(again).settle()


def test_handle_of_a_past_timer_is_unknown(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with _open(tmp_path / "s", clock) as store:
        old = store.put("t", b"old", delay=60.0, queue_id=0)
        _work(store, clock)
        assert store.cancel(old) is CancelResult.UNKNOWN
    with _open(tmp_path / "s", clock) as store:
        assert store.cancel(old) is CancelResult.UNKNOWN


def test_past_states_are_dropped_after_a_kill_during_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(NOW)
    store = _open(tmp_path / "s", clock)
    seen: set[tuple[str, bool]] = set()

    def copy(name: str) -> None:
        this = name, bool(inside(store).states.expired_ranges)
        if name.startswith("checkpoint_") and this[1] and this not in seen:
            seen.add(this)
            shutil.copytree(tmp_path / "s", tmp_path / f"killed-{name}")

    monkeypatch.setattr(failpoints, "hook", copy)
    far = _work(store, clock)
    monkeypatch.setattr(failpoints, "hook", None)
    store.close()
    assert {"checkpoint_states_written", "checkpoint_watermark_written"} <= {one for one, _ in seen}
    for name, _ in seen:
        with _open(tmp_path / f"killed-{name}", ManualClock(clock.now_ms)) as again:
            waiting = {one.message_id for one in again.pending(topic="far")}
            assert waiting == {one.message_id for one in far}
            assert again.verify().clean


def test_many_separate_pending_timers_keep_the_states_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*PAST_RANGES_MAX, 1)
    clock = ManualClock(NOW)
    with _open(tmp_path / "s", clock) as store:
        _work(store, clock)
        assert len(_past(tmp_path / "s")) <= 1
        assert store.verify().clean
    with _open(tmp_path / "s", clock) as store:
        assert len(list(store.pending())) == 2


def test_states_stay_without_retention(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    given: dict[str, Any] = {"clock": clock, "threads": False}
    with timerstore.open(tmp_path / "s", config(retention_ms=0), **given) as store:
        store.put_many("t", [b"x"] * 4000, delay=60.0, queue_id=0)
        clock.advance(120_000)
        Stepper(store).settle()
        store.flush()
        assert _past(tmp_path / "s") == ()
