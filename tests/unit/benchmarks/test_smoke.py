"""Each benchmark and each demo runs with tiny values."""

from __future__ import annotations

import importlib
import json
import zipfile
import zoneinfo
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks import (
    harness,
)
from tests.support.amounts import sample

LINE_FIELDS = {"name", "parameters", "n", "rate", "unit", "p50", "p99", "max", "flush", "work"}


NAMES = (
    "put",
    "end_to_end",
    "scaling",
    "recovery",
    "cancel",
    "lateness",
    "own_reads",
    "settle",
    "single",
    "idle",
    "peers",
    "delay_queue",
    "wait",
    "far",
    "levels",
    "hot_slot",
    "profile",
)


@pytest.mark.parametrize(
    "name", [*sample(NAMES, "benchmarks"), pytest.param("celery", marks=pytest.mark.more)]
)
def test_benchmark_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"benchmarks.bench_{name}")
    if name == "celery":
        pytest.importorskip("celery", reason="NOT RUN: pip install timerstore[celery]")
    out = tmp_path / "lines"
    assert module.main(["--smoke", "--directory", str(tmp_path / "run"), "--json", str(out)]) == 0
    told = [json.loads(one) for one in out.read_text().splitlines()]
    assert told
    for one in told:
        assert set(one) >= LINE_FIELDS
        assert one["n"] > 0
        assert len(one["work"]) == 16
    if name in {"peers", "end_to_end", "levels", "hot_slot", "profile"}:
        assert len({one["work"] for one in told}) == 1
    assert capsys.readouterr().out.count("\n") == len(told)


def test_child_is_killed_when_run_fails(tmp_path: Path) -> None:
    """The child waits for its kill. A join at the end of the parent would wait forever."""
    recovery = importlib.import_module("benchmarks.bench_recovery")
    given = tmp_path / "store", harness.small_config(flush="async"), recovery.SMOKE
    child = recovery.Child(recovery.fill, *given)
    with pytest.raises(harness.WorkError, match="planted"), child:
        harness.need(child.hear() != recovery.SMOKE["n"], "planted")
    assert not child.process.is_alive()


def test_flights_have_known_first_row() -> None:
    pytest.importorskip("tqdm")
    flights = pytest.importorskip("benchmarks.flights")
    try:
        data = flights.load(5)
    except flights.DataError as error:
        pytest.skip(str(error))
    assert data.bodies[0].startswith(b'{"row":     0,"flight":"UA1545","from":"EWR"')
    assert data.depart_ms[0] == 1_357_035_300_000  # 2013-01-01 05:15 in New York is 10:15 UTC
    assert not data.called_off.any()


def test_flight_departures_equal_new_york_time() -> None:
    """Check every hundredth flight; all 336,776 were compared once by hand."""
    flights = pytest.importorskip("benchmarks.flights")
    try:
        data = flights.load()
        new_york = zoneinfo.ZoneInfo("America/New_York")
    except (flights.DataError, zoneinfo.ZoneInfoNotFoundError) as error:
        pytest.skip(str(error))
    with zipfile.ZipFile(flights.table_path()) as archive:
        lines = archive.read("flights.csv").decode().splitlines()[1:]
    assert len(lines) == flights.FLIGHT_COUNT
    for row in range(0, len(lines), 100):
        year, month, day, _, scheduled, *_ = lines[row].split(",")
        hour, minute = divmod(int(scheduled), 100)
        local = datetime(int(year), int(month), int(day), hour, minute, tzinfo=new_york)
        assert data.depart_ms[row] == local.timestamp() * 1000, lines[row]


def test_progress_is_written_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    module = importlib.import_module("benchmarks.progress_line")
    now = 1000.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    with module.progress_line(1000, " put", quiet=False) as bar:
        for _ in range(1000):  # 10 s
            now += 0.01
            bar.update()
    written = capsys.readouterr().err
    assert 10 <= written.count("\r") <= 12, "the first, one for each second, the last"
    assert "1000/1000" in written


def test_demo_flights_passes_with_few_flights(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    demo = importlib.import_module("benchmarks.demo_flights")
    try:
        figures = demo.run(
            tmp_path / "store", limit=400, config=harness.small_config(flush="async"), quiet=True
        )
    except demo.flights.DataError as error:
        pytest.skip(str(error))
    assert figures["wrong"] == []
    assert figures["scheduled"] == 400
    assert figures["delivered"] + figures["cancelled"] == 400


@pytest.mark.more
def test_demo_live_passes_through_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    demo = importlib.import_module("benchmarks.demo_live")
    figures = demo.run(tmp_path / "live", n=400, seconds=0.8, delay_ms=600, quiet=True)
    assert figures["wrong"] == []
    assert figures["kills"] == 1
