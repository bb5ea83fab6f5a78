"""The report of the benchmark suite: medians, ratios, targets, plots and the profile."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    harness,
    lines,
    profile_text,
    samples,
    targets,
)
from tests.support.benchmark_results import MACHINE, line


def test_ratios_compare_runs_of_one_round() -> None:
    ours = lines.Lines([line("timerstore", number, 100.0 * (number + 1)) for number in range(3)])
    # The second round is missing, and the third one was slow.
    theirs = lines.Lines([line("other", 0, 50.0), line("other", 2, 30.0)])
    assert ours.ratios(theirs) == (6.0, 2.0, 10.0, 2)
    assert ours.told("rate") == (200.0, 100.0, 300.0, 3)
    assert lines.Lines([]).told("rate") is None
    ours = lines.Lines([line("timerstore", 0, 100.0), line("timerstore", 0, 300.0, sitting=1)])
    theirs = lines.Lines([line("other", 0, 50.0), line("other", 0, 30.0, sitting=1)])
    assert ours.ratios(theirs) == (6.0, 2.0, 10.0, 2)


def test_human_shortens_figures() -> None:
    assert lines.human(2_345_678, "/s") == "2.35 M/s"
    assert lines.human(1_234, "B") == "1.23 kB"
    assert lines.human(32_800, "ns") == "32,800 ns"
    assert lines.human(0.5) == "0.5"
    assert format(lines.told([1.0, 3.0, 2.0]), "x") == "2 x (1 x to 3 x)"


def test_report_has_ratios_targets_stalls_and_missing_parts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = importlib.import_module("benchmarks.report")
    found = [line("timerstore", number, 2e6, control_max_ms=9.0) for number in range(5)]
    found += [line("other", number, 1e5, control_max_ms=1.0) for number in range(5)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    told = {**MACHINE, "parts": [], "missing": ["Redis (x): none"], "smoke": False}
    (tmp_path / "machine.json").write_text(json.dumps(told))
    text = report.write(tmp_path).read_text("utf-8")
    assert "20 x (20 x to 20 x)" in text
    assert "5 of\n10 runs were disturbed" in text
    assert "- Redis (x): none" in text
    deliver = next(row for row in text.splitlines() if row.startswith("| deliver and consume"))
    assert "4 M/s (4 M/s to 4 M/s) | stretch" in deliver
    assert "not measured" in text
    for kind in ("svg", "png"):
        assert (tmp_path / f"peers_1m.{kind}").stat().st_size > 1000


def test_report_warns_when_stores_are_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = importlib.import_module("benchmarks.report")
    (tmp_path / "lines.jsonl").write_text("")
    for kind, is_said in (("ext4", False), ("tmpfs", True)):
        told = {**MACHINE, "smoke": False, "file_system": kind}
        (tmp_path / "machine.json").write_text(json.dumps(told))
        text = report.write(tmp_path).read_text("utf-8")
        assert f"stores on {kind};" in text
        assert ("**Stores were in memory" in text) == is_said


def test_limits_are_measured_on_file_system_of_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = importlib.import_module("benchmarks.machine")
    for name, value in (("FILE_BYTES", 1 << 20), ("FRESH_BYTES", 1 << 20), ("SYNCS", 2)):
        monkeypatch.setattr(machine, name, value)
    real, seen = machine.tempfile.TemporaryFile, set()

    def made(*, prefix: str, dir: Path) -> Any:  # noqa: A002
        seen.add(dir)
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", made)
    assert harness.place(tmp_path / "new" / "one") == tmp_path
    found = machine.describe(harness.place(tmp_path / "new" / "one"))
    assert seen == {tmp_path}
    assert found["file_system"]
    assert list(tmp_path.iterdir()) == []


def test_report_removes_only_its_own_old_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = importlib.import_module("benchmarks.report")
    (tmp_path / "lines.jsonl").write_text("")
    (tmp_path / "machine.json").write_text(json.dumps({**MACHINE, "smoke": False}))
    names = {"lateness.svg", "peers_1m.png", "holiday.png", "logo.svg"}
    for name in names:
        (tmp_path / name).write_text("a picture")
    report.write(tmp_path)
    assert {name for name in names if (tmp_path / name).exists()} == {"holiday.png", "logo.svg"}


def test_report_has_lateness_of_other_topic_during_burst(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = importlib.import_module("benchmarks.report")
    found = [
        {**line("x", 0, 1.0), "part": "hot_slot", "name": "hot_slot", "late_s": late_s,
         "parameters": {"n": 10, "order": order}}
        for order, late_s in (("turns", 0.25), ("one", 7.0))
    ]  # fmt: skip
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    told = {**MACHINE, "parts": [], "missing": [], "smoke": False}
    (tmp_path / "machine.json").write_text(json.dumps(told))
    text = report.write(tmp_path).read_text("utf-8")
    assert "late by 0.25 s of processor time with the fair queue, and by 7 s with" in text


def test_target_verdict_follows_bounds() -> None:
    rate = next(one for one in targets.TARGETS if one.what.startswith("cancel"))
    late = next(one for one in targets.TARGETS if one.what.startswith("lateness"))
    assert [rate.verdict(lines.told([x])) for x in (199e3, 200e3, 500e3)] == [
        "**no**", "must", "stretch",
    ]  # fmt: skip
    assert [late.verdict(lines.told([x])) for x in (5.1, 5.0, 1.0)] == [
        "**no**", "must", "stretch",
    ]  # fmt: skip


def test_samples_are_assigned_to_running_step() -> None:
    marks = [(2_000_000_000, 3_000_000_000, "b"), (1_000_000_000, 1_500_000_000, "a")]
    found = samples.laid_under(
        marks,
        [
            " 1.000000000:     7f01 ts_put+0x10 (/x/_native.so)",
            " 1.400000000:     7f01 ts_put (/x/_native.so)",
            " 1.700000000:     7f01 between (/x/_native.so)",
            " 2.999999999: ffff clear page ([kernel.kallsyms])",
            " 3.000000000: ffff after ([kernel.kallsyms])",
            " 0.999999999: ffff before ([kernel.kallsyms])",
            "no sample",
        ],
    )
    assert found == {
        "a": {("ts_put", "_native.so"): 2},
        "b": {("clear page", "[kernel.kallsyms]"): 1},
    }


def test_profile_is_written_between_marks(tmp_path: Path) -> None:
    document = tmp_path / "P.md"
    document.write_text(f"before\n{profile_text.BEGIN}\nold\n{profile_text.END}\nafter\n")
    profile_text.write("new", document)
    assert document.read_text() == (
        f"before\n{profile_text.BEGIN}\nnew\n{profile_text.END}\nafter\n"
    )
    document.write_text("no marks")
    with pytest.raises(ValueError, match="wanted"):
        profile_text.write("new", document)
    assert profile_text.BEGIN in profile_text.DOCUMENT.read_text("utf-8")
