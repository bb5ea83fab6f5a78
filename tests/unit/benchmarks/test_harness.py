"""The shared tools of the benchmarks: work, measurements, directories, rounds and options."""

from __future__ import annotations

import importlib
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    harness,
    rounds,
)
from benchmarks.control import Control
from tests.support.benchmark_results import ids, result


def test_make_work_is_reproducible() -> None:
    work, again = harness.make_work(50, 24, 1000), harness.make_work(50, 24, 1000)
    assert work.buffer == again.buffer
    assert (work.due_ms == again.due_ms).all()
    assert harness.rows_of(work.buffer, 24).tolist() == list(range(50))
    assert b"".join(work.bodies(3, 7)) == bytes(work.part(3, 7)[0])
    assert (np.diff(work.due_ms[work.due_order()]) >= 0).all()


def test_workspace_resolves_symbolic_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for _ in range(2):  # the second pass requires that the target was removed
        with harness.workspace(Path("link")) as root:
            assert root == tmp_path / "real"
            (root / "file").write_text("x")
        assert not (tmp_path / "real").exists()


def test_spread_and_histogram_return_known_values() -> None:
    assert harness.spread(range(1, 101)) == (51, 100, 100)
    assert np.isnan(harness.spread([]).p50)
    assert harness.histogram([0, 1, 2, 3, 4]) == [(0.0, 1), (1.0, 1), (2.0, 1), (4.0, 2)]


def test_digest_depends_on_order_and_cuts() -> None:
    assert harness.digest(b"ab", b"c") != harness.digest(b"a", b"bc")
    assert harness.digest(ids(1, 2)) == harness.digest(ids(1, 2))


def test_memory_and_disk_measure_this_process(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    assert harness.disk(tmp_path)[:2] == (1, 5000)
    found = harness.memory(tmp_path)
    assert found.root_bytes == 0
    assert 0 < found.anonymous_bytes <= found.rss_bytes <= harness.peak_rss_bytes() * 2


def test_disk_skips_file_removed_during_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker replaces some of its files while its directory is measured."""
    (tmp_path / "a").write_bytes(b"x" * 5000)
    walked = [(folder, names, [*files, "gone"]) for folder, names, files in os.walk(tmp_path)]
    monkeypatch.setattr(os, "walk", lambda _root: walked)
    assert harness.disk(tmp_path)[:2] == (1, 5000)


def test_control_reports_stall() -> None:
    with Control() as control:
        pass
    assert control.stall.max_ms >= 0


def test_rounds_rotate_variants() -> None:
    seen: list[str] = []

    def variant(name: str, _root: Path) -> harness.Result:
        seen.append(name)
        return result(1.0)

    variants = [partial(variant, name) for name in "abc"]
    limits = {"rounds": 3, "seconds_max": 60}
    found = list(rounds.interleaved(variants, limits, smoke=True, directory=None))
    assert "".join(seen) == "abc" + "bca" + "cab"
    assert [one.figures["round"] for one in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_rounds_respect_time_limit_after_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(rounds.time, "monotonic", lambda: now[0])

    def variant(_root: Path) -> harness.Result:
        now[0] += 10
        return result(1.0)

    def count(seconds_max: float) -> int:
        limits = {"rounds": 5, "seconds_max": seconds_max}
        found = rounds.interleaved([variant], limits, smoke=True, directory=None)
        return len(list(found))

    assert count(50) == 5
    assert count(49.9) == 4
    assert "4 rounds of 5" in capsys.readouterr().err
    assert count(1) == 1


def test_disturbed_run_is_repeated_within_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = importlib.import_module("benchmarks.bench_lateness")
    monkeypatch.setattr(late.time, "monotonic", lambda: 10.0)

    def calmest(stalls: list[float], tries: int, until: float) -> tuple[float, bool, int]:
        left = iter(stalls)
        monkeypatch.setattr(
            late, "watched", lambda *_given, **_more: result(1.0, control_max_ms=next(left))
        )
        found = late.calmest(None, tries, 0, until, smoke=False, directory=None)
        made = len(stalls) - len(list(left))
        return found.figures["control_max_ms"], found.figures["calm"], made

    assert calmest([9.0, 6.0, 1.0], 3, 20.0) == (6.0, True, 2)
    assert calmest([9.0, 7.0, 8.0, 1.0], 3, 20.0) == (7.0, False, 3)
    assert calmest([9.0, 1.0], 3, 5.0) == (9.0, False, 1)


def test_scaling_sizes_fit_free_disk_space(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scaling = importlib.import_module("benchmarks.bench_scaling")
    free = [0]
    monkeypatch.setattr(
        scaling.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": free[0]})
    )
    each = harness.filled_bytes(1, 128)

    def sizes(room: int) -> list[int]:
        free[0] = (room * each * 10 + 8) // 9
        found: list[int] = scaling.sizes(100, 10_000, 128, tmp_path / "new" / "one")
        return found

    assert sizes(10_000) == [100, 1_000, 10_000]
    assert capsys.readouterr().err == ""
    assert sizes(9_999) == [100, 1_000, 5_000]
    assert "10,000 pending" in capsys.readouterr().err
    assert sizes(600) == [100, 500]
    assert sizes(10) == []
