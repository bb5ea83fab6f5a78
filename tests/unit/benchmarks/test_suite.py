"""The benchmark suite: parts, options, and failures of a part."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import (
    bench_peers,
    harness,
    lines,
    peers,
    plan,
)
from tests.support.benchmark_results import MACHINE


def test_suite_runs_part_and_writes_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    suite = importlib.import_module("benchmarks.__main__")
    for name, value in (("FILE_BYTES", 1 << 20), ("FRESH_BYTES", 1 << 20), ("SYNCS", 2)):
        monkeypatch.setattr(suite.machine, name, value)
    out = tmp_path / "out"
    assert suite.main(["--smoke", "--only", "cancel", "--out", str(out)]) == 0
    report = (out / "report.md").read_text("utf-8")
    assert "Tiny values" in report
    assert "each answer durable" in report
    assert {one["part"] for one in lines.Lines.read(out / "lines.jsonl").all} == {"cancel"}
    assert "report.md" in capsys.readouterr().err
    assert suite.main(["--smoke", "--only", "cancel", "--out", str(out), "--append"]) == 0
    told = lines.Lines.read(out / "lines.jsonl").all
    assert [one["sitting"] for one in told] == [0] * 3 + [1] * 3


def test_suite_continues_after_failed_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    suite = importlib.import_module("benchmarks.__main__")
    module = importlib.import_module("benchmarks.bench_cancel")

    def fail(_argv: list[str]) -> int:
        raise harness.WorkError("planted")

    monkeypatch.setattr(module, "main", fail)
    monkeypatch.setattr(suite.machine, "describe", lambda _place: dict(MACHINE))
    assert suite.main(["--smoke", "--only", "cancel", "--out", str(tmp_path)]) == 1
    assert "cancel: WorkError: planted" in (tmp_path / "report.md").read_text("utf-8")
    assert "failed: cancel" in capsys.readouterr().err


def test_plan_fits_seventeen_minutes_and_has_valid_options() -> None:
    parts = plan.chosen(None, everything=False)
    assert sum(part.seconds for part in parts) <= 17 * 60
    assert len({part.name for part in plan.PARTS}) == len(plan.PARTS)
    for part in plan.PARTS:
        module = importlib.import_module(f"benchmarks.bench_{part.bench}")
        options = harness.arguments("", module.FULL).parse_args(part.options)
        if part.bench == "peers":
            assert peers.named(options.peers)
            assert options.peers.startswith("timerstore,")


def test_options_without_work_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = importlib.import_module("benchmarks.__main__")
    for words in (["--n", "0"], ["--n", "-3"], ["--rounds", "0"], ["--seconds-max", "nan"]):
        with pytest.raises(SystemExit):
            bench_peers.main(["--smoke", *words])
        assert f"argument {words[0]}: wanted more than 0, got" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench_peers.main(["--n", "many"])
    assert "argument --n: invalid int value: 'many'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    file = str(tmp_path / "file")
    for words in (["--rounds", "0"], ["--out", file], ["--directory", file]):
        with pytest.raises(SystemExit):
            suite.main(["--smoke", "--only", "cancel", *words])
        assert f"argument {words[0]}: " in capsys.readouterr().err
    lateness = importlib.import_module("benchmarks.bench_lateness")
    with pytest.raises(harness.WorkError, match="not one message"):
        lateness.main(["--smoke", "--peers", "heapq", "--rate", "1", "--seconds", "0.5"])
