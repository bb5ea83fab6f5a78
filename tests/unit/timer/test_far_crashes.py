"""The far wheel after crashes and after retention: no message is lost or delivered twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bench import DAY, NOW, SECOND, Bench
from tests.support.far_bench import WINDOW, bodies, far_bench, far_config, go, stat
from tests.support.inside import inside
from timerstore._engine.base import failpoints


class _DiedError(Exception):
    """Stands for a crash; the test opens the copy that was taken before."""


@pytest.mark.parametrize(
    "point",
    ["enqueue_far_written", "far_moved_down", "far_relinked", "checkpoint_far_written",
     "checkpoint_counts_written", "checkpoint_watermark_written", "far_handed_over",
     "close_checkpointed", "enqueue_slots_linked"],
)  # fmt: skip
def test_each_far_message_is_delivered_once_after_crash_at_any_step(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    copies: list[Path] = []

    def copy(name: str) -> None:
        if name == point and len(copies) < 3:
            copies.append(tmp_path / f"killed {len(copies)}")
            shutil.copytree(tmp_path / "store", copies[-1])

    bench = far_bench(tmp_path / "store", flush="sync")
    for n in range(12):
        bench.store.put("t", b"%02d" % n, delay=55 + 9 * n)
    bench.turn()
    bench.store.flush()
    monkeypatch.setattr(failpoints, "hook", copy)
    bench.store.put("t", b"more", delay=170)
    for _ in range(3):
        bench.turn(31 * SECOND)
        bench.store.flush()
    bench.reopen()
    for _ in range(3):
        bench.turn(31 * SECOND)
        bench.store.flush()
    monkeypatch.setattr(failpoints, "hook", None)
    bench.close()
    assert copies
    for root in copies:
        again = Bench(root, far_config(flush="sync"), now_ms=NOW)
        go(again, 300 * SECOND, 20)
        came = bodies(again)
        assert [body for body in came if body != b"more"] == [b"%02d" % n for n in range(12)]
        assert came.count(b"more") <= 1
        again.close()


def test_relinked_message_survives_crash_when_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read slot keeps a relinked message until a checkpoint covers the new place.

    A checkpoint writes the wheel's page before the watermark.
    """
    import shutil

    bench = far_bench(tmp_path / "store", far_wheel="shared", flush="sync")
    bench.store.put("t", b"m", delay=600)
    bench.turn()
    bench.reopen()  # it rolls now
    bench.store.flush()
    names = [name for name in bench.stepper.names if name != "flush"]
    for ms in (WINDOW * SECOND, 0):
        bench.clock.set(NOW + ms)  # read, linked again: on the far wheel; then back
        while sum(bench.stepper.step(name) for name in names):
            pass
    assert stat(bench, "dequeue_put_relinked_messages") == 1
    root = tmp_path / "killed"

    def copy(name: str) -> None:
        if name == "checkpoint_wheel_written" and not root.exists():
            shutil.copytree(tmp_path / "store", root)

    monkeypatch.setattr(failpoints, "hook", copy)
    bench.store.flush()
    monkeypatch.setattr(failpoints, "hook", None)
    bench.close()
    reached: list[str] = []
    monkeypatch.setattr(failpoints, "hook", reached.append)
    again = Bench(root, far_config(flush="sync"), now_ms=NOW)
    monkeypatch.setattr(failpoints, "hook", None)
    assert "recover_rebuild_begun" not in reached  # a missing unit would have been noticed
    assert len(list(again.store.pending())) == 1
    go(again, 700 * SECOND)
    assert bodies(again) == [b"m"]
    again.close()


def test_retention_moves_far_messages(tmp_path: Path) -> None:
    bench = far_bench(
        tmp_path, far_wheel="own", commit_log_segment_bytes=16_384, retention_ms=3_600_000,
        timer_log_segment_bytes=1040,
    )  # fmt: skip
    bench.store.put_many("t", [b"far"] * 5, delay=30 * 86_400)
    for _ in range(30):
        bench.store.put_many("t", [bytes(1000)] * 10)
        bench.store.put("t", b"near", delay=1)
        go(bench, 600 * SECOND, 4)
        bench.store.flush()
        bench.turn()
    assert stat(bench, "retention_log_files") > 10
    assert stat(bench, "retention_moved_messages") >= 5
    assert len(list(bench.store.pending())) == 5
    bench.reopen()
    go(bench, 31 * DAY, 100)
    begin = bench.store.pull("t", 0, 2**62).min_offset
    assert [message.body for message in bench.out(offset=begin)].count(b"far") == 5
    bench.close()


def test_retention_copies_do_not_multiply_when_messages_roll(tmp_path: Path) -> None:
    """Otherwise retention would move both copies of each rolled message, and both would roll."""
    bench = far_bench(
        tmp_path, far_wheel="shared", commit_log_segment_bytes=16_384, retention_ms=60_000,
        timer_log_segment_bytes=1040,
    )  # fmt: skip
    bench.store.put_many("t", [b"far"] * 5, delay=2000)
    go(bench, 100 * SECOND)
    assert stat(bench, "far_messages") == 5
    bench.config = replace(bench.config, far_wheel="off")
    bench.reopen()
    for _ in range(14):
        bench.store.put_many("t", [bytes(1000)] * 16)
        go(bench, 60 * SECOND, 2)
        bench.store.flush()
        bench.turn()
    assert stat(bench, "retention_log_files") > 5
    assert stat(bench, "dequeue_put_rolled_messages") >= 5 * 10
    units = list(inside(bench.store).pending.parts())
    assert sum(len(part) for part in units) <= 2 * 5
    go(bench, 2000 * SECOND)
    begin = bench.store.pull("t", 0, 2**62).min_offset
    assert [message.body for message in bench.out(offset=begin)].count(b"far") == 5
    bench.close()
