"""Benchmarks and demos still run, at tiny values; and what counts their messages can say no."""

from __future__ import annotations

import importlib
import json
import zipfile
import zoneinfo
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import audit, harness
from benchmarks.control import Control

LINE_FIELDS = {"name", "parameters", "n", "rate", "unit", "p50", "p99", "max", "flush", "work"}


def ids(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def pulled(rows: list[int], delivered: list[int], seen_ms: int = 1000) -> audit.Pulled:
    found = audit.Pulled()
    found.add(ids(*rows), ids(*delivered), seen_ms)
    return found


def counts(found: audit.Pulled) -> audit.Counts:
    """Four ids: 0 and 1 must come out, 2 was cancelled, 3 was never acknowledged."""
    due = ids(10, 20, 30, 40)
    must = np.array([True, True, False, False])
    may = np.array([False, False, False, True])
    return audit.count(found, due, must, may, np.array([False, False, True, False]))


# ---------------------------------------------------------------- what counts


def test_audit_is_content_with_what_was_wanted() -> None:
    assert counts(pulled([0, 1], [10, 20])).faults == 0
    assert counts(pulled([0, 1, 3], [10, 25, 40])).faults == 0
    assert counts(pulled([0, 1], [10, 20])).delivered == 2


@pytest.mark.parametrize(
    ("rows", "delivered", "fault"),
    [
        ([0], [10], "lost"),
        ([0, 1, 1], [10, 20, 20], "duplicated"),
        ([0, 1, 3, 3], [10, 20, 40, 40], "duplicated"),
        ([0, 1], [10, 19], "early"),
        ([0, 1, 2], [10, 20, 30], "unwanted"),
        ([0, 1, -1], [10, 20, 30], "unknown"),
        ([0, 1, 4], [10, 20, 30], "unknown"),
    ],
)
def test_audit_names_each_fault(rows: list[int], delivered: list[int], fault: str) -> None:
    found = counts(pulled(rows, delivered))
    assert getattr(found, fault) == 1
    assert found.faults == 1


def test_audit_believes_the_clock_more_than_the_stamp() -> None:
    assert counts(pulled([0, 1], [10, 20], seen_ms=15)).early == 1


def test_audit_sees_altered_bodies() -> None:
    expected = audit.Expected.of([b"one", b"three", b"", b"four"])

    def altered(rows: list[int], bodies: list[bytes]) -> int:
        got = audit.Expected.of(bodies)
        return expected.altered(ids(*rows), got.buffer, got.offsets)

    assert altered([3, 0, 1], [b"four", b"one", b"three"]) == 0
    assert altered([0, 1, 3], [b"onE", b"three", b"fours"]) == 2
    assert altered([2], [b""]) == 0
    assert altered([-1, 9], [b"one", b"three"]) == 2


def test_digits_reads_padded_numbers_and_nothing_else() -> None:
    bodies = [b"<  7>", b"<123>", b"<1 3>", b"<   >", b"<12x>", b"<1"]
    packed = audit.Expected.of(bodies)
    found = audit.digits(packed.buffer, packed.offsets[:-1], (1, 4)).tolist()
    assert found[:2] == [7, 123]
    assert found[3:] == [-1, -1, -1]


# ---------------------------------------------------------------- the harness


def test_work_is_the_same_twice_and_knows_its_rows() -> None:
    work, again = harness.make_work(50, 24, 1000), harness.make_work(50, 24, 1000)
    assert work.buffer == again.buffer
    assert (work.due_ms == again.due_ms).all()
    assert harness.rows_of(work.buffer, 24).tolist() == list(range(50))
    assert b"".join(work.bodies(3, 7)) == bytes(work.part(3, 7)[0])
    assert (np.diff(work.due_ms[work.due_order()]) >= 0).all()


def test_spread_and_histogram_of_known_samples() -> None:
    assert harness.spread(range(1, 101)) == (51, 100, 100)
    assert np.isnan(harness.spread([]).p50)
    assert harness.histogram([0, 1, 2, 3, 4]) == [(0.0, 1), (1.0, 1), (2.0, 1), (4.0, 2)]


def test_digest_depends_on_order_and_cuts() -> None:
    assert harness.digest(b"ab", b"c") != harness.digest(b"a", b"bc")
    assert harness.digest(ids(1, 2)) == harness.digest(ids(1, 2))


def test_memory_and_disk_of_this_process(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    assert harness.disk(tmp_path)[:2] == (1, 5000)
    found = harness.memory(tmp_path)
    assert found.root_bytes == 0
    assert 0 < found.anonymous_bytes <= found.rss_bytes <= harness.peak_rss_bytes() * 2


def test_control_answers() -> None:
    with Control() as control:
        pass
    assert control.stall.max_ms >= 0


# ---------------------------------------------------------------- the programs


NAMES = ("put", "end_to_end", "idle", "peers", "delay_queue", "wait", "levels")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_benchmark_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "peers":
        pytest.importorskip("lmdb")
    module = importlib.import_module(f"benchmarks.bench_{name}")
    out = tmp_path / "lines"
    assert module.main(["--smoke", "--directory", str(tmp_path / "run"), "--json", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines
    for line in lines:
        assert set(line) >= LINE_FIELDS
        assert line["n"] > 0
        assert len(line["work"]) == 16
    if name in {"peers", "end_to_end", "levels"}:
        assert len({line["work"] for line in lines}) == 1
    assert capsys.readouterr().out.count("\n") == len(lines)


@pytest.mark.slow
def test_flights_are_the_ones_of_2013() -> None:
    pytest.importorskip("tqdm")
    flights = pytest.importorskip("benchmarks.flights")
    try:
        data = flights.load(5)
    except flights.DataError as error:
        pytest.skip(str(error))
    assert data.bodies[0].startswith(b'{"row":     0,"flight":"UA1545","from":"EWR"')
    assert data.depart_ms[0] == 1_357_035_300_000  # 2013-01-01 05:15 in New York is 10:15 UTC
    assert not data.called_off.any()


@pytest.mark.slow
def test_departures_agree_with_new_york_time() -> None:
    """Every hundredth flight; all 336,776 were compared once by hand."""
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


@pytest.mark.slow
def test_demo_flights_passes_on_a_few(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_demo_live_passes_through_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    demo = importlib.import_module("benchmarks.demo_live")
    figures = demo.run(tmp_path / "live", n=400, seconds=0.8, delay_ms=600, quiet=True)
    assert figures["wrong"] == []
    assert figures["kills"] == 1
