"""Benchmarks and demos still run, at tiny values; and what counts their messages can say no."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import zipfile
import zoneinfo
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    audit,
    bench_peers,
    compare,
    harness,
    lines,
    peers,
    plan,
    profile_text,
    rounds,
    samples,
    targets,
)
from benchmarks.control import Control
from benchmarks.peers import contract
from benchmarks.peers.by_heapq import InHeap
from tests.support.amounts import sample

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


def test_a_directory_is_where_its_link_leads_and_the_same_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for _ in range(2):  # of a link nothing was removed: it was not empty then
        with harness.workspace(Path("link")) as root:
            assert root == tmp_path / "real"
            (root / "file").write_text("x")
        assert not (tmp_path / "real").exists()


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


def test_a_file_that_goes_amid_the_walk_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker replaces its files of counts while its folder is measured."""
    (tmp_path / "a").write_bytes(b"x" * 5000)
    walked = [(folder, names, [*files, "gone"]) for folder, names, files in os.walk(tmp_path)]
    monkeypatch.setattr(os, "walk", lambda _root: walked)
    assert harness.disk(tmp_path)[:2] == (1, 5000)


def test_control_answers() -> None:
    with Control() as control:
        pass
    assert control.stall.max_ms >= 0


# ---------------------------------------------------------------- the programs


NAMES = (
    "put",
    "end_to_end",
    "scaling",
    "recovery",
    "cancel",
    "lateness",
    "idle",
    "peers",
    "delay_queue",
    "wait",
    "far",
    "levels",
    "hot_slot",
    "profile",
)


@pytest.mark.parametrize("name", sample(NAMES, "benchmarks"))
def test_benchmark_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"benchmarks.bench_{name}")
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


def test_a_run_that_is_cut_off_leaves_no_child_behind(tmp_path: Path) -> None:
    """It waits for its kill: whoever was to join it at his own end waited as well."""
    recovery = importlib.import_module("benchmarks.bench_recovery")
    given = tmp_path / "store", harness.small_config(flush="async"), recovery.SMOKE
    child = recovery.Child(recovery.fill, *given)
    with pytest.raises(harness.WorkError, match="planted"), child:
        harness.need(child.hear() != recovery.SMOKE["n"], "planted")
    assert not child.process.is_alive()


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


@pytest.mark.more
def test_demo_live_passes_through_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    demo = importlib.import_module("benchmarks.demo_live")
    figures = demo.run(tmp_path / "live", n=400, seconds=0.8, delay_ms=600, quiet=True)
    assert figures["wrong"] == []
    assert figures["kills"] == 1


def test_suite_runs_a_part_and_reports(
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


def test_suite_goes_on_after_a_part_that_fails(
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


def test_plan_of_the_report_is_fourteen_minutes_and_its_options_are_known() -> None:
    parts = plan.chosen(None, everything=False)
    assert sum(part.seconds for part in parts) <= 14 * 60
    assert len({part.name for part in plan.PARTS}) == len(plan.PARTS)
    for part in plan.PARTS:
        module = importlib.import_module(f"benchmarks.bench_{part.bench}")
        options = harness.arguments("", module.FULL).parse_args(part.options)
        if part.bench == "peers":
            assert peers.named(options.peers)
            assert options.peers.startswith("timerstore,")


# ---------------------------------------------------------------- rounds


def result(rate: float, name: str = "x", **figures: Any) -> harness.Result:
    nothing = harness.Spread(1, 2, 3)
    return harness.Result(name, {}, 10, rate, "ns", nothing, "async", "0" * 16, figures)


def test_rounds_take_turns_and_say_which() -> None:
    seen: list[str] = []

    def variant(name: str, _root: Path) -> harness.Result:
        seen.append(name)
        return result(1.0)

    variants = [partial(variant, name) for name in "abc"]
    found = list(rounds.interleaved(variants, rounds=3, seconds_max=60, smoke=True, directory=None))
    assert "".join(seen) == "abc" + "bca" + "cab"
    assert [one.figures["round"] for one in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_rounds_end_in_time_but_for_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(rounds.time, "monotonic", lambda: now[0])

    def variant(_root: Path) -> harness.Result:
        now[0] += 10
        return result(1.0)

    def count(seconds_max: float) -> int:
        found = rounds.interleaved(
            [variant], rounds=5, seconds_max=seconds_max, smoke=True, directory=None
        )
        return len(list(found))

    assert count(50) == 5
    assert count(49.9) == 4
    assert "4 rounds of 5" in capsys.readouterr().err
    assert count(1) == 1


# ---------------------------------------------------------------- peers


def test_order_and_identity_of_what_a_peer_gives_are_checked() -> None:
    heap, loose = peers.named("heapq")[0], peers.named("rocketmq")[0]
    work = harness.make_work(200, 16, 3000)
    wanted = [work.bodies(row, row + 1)[0] for row in work.due_order().tolist()]
    good = b"".join(wanted)
    assert bench_peers.rows_in_order(heap, work, good) == good
    last_first = b"".join([wanted[-1], *wanted[:-1]])
    swapped = b"".join([wanted[1], wanted[0], *wanted[2:]])
    doubled = b"".join([wanted[1], *wanted[1:]])
    for bad in (last_first, swapped, doubled, good[:-16]):
        with pytest.raises(harness.WorkError):
            bench_peers.rows_in_order(heap, work, bad)
    # By seconds alone: neighbours may change places, the last may not come first.
    assert bench_peers.rows_in_order(loose, work, swapped) == good
    for bad in (last_first, doubled, good[:-16]):
        with pytest.raises(harness.WorkError):
            bench_peers.rows_in_order(loose, work, bad)


class Forgetful(InHeap):
    """Loses what is not moved first."""

    def move(self, now_ms: int, limit: int) -> int:
        moved = super().move(now_ms, limit)
        self._heap.clear()
        return moved


def test_a_peer_that_loses_something_is_no_result(tmp_path: Path) -> None:
    work = harness.make_work(50, 16, 3000)
    settings = contract.Settings(10, smoke=True)
    times = contract.drive(InHeap, 1e9, work, tmp_path, settings)
    assert len(times.bodies) == 50 * 16
    with pytest.raises(harness.WorkError, match="40 of 50 are not due"):
        contract.drive(Forgetful, 1e9, work, tmp_path, settings)


class Repeating(InHeap):
    """A peer that gives one message again and again, as often as there are messages."""

    first: bytes = b""

    def take(self, limit: int) -> list[bytes]:
        found = super().take(limit)
        self.first = self.first or b"".join(found[:1])
        return [self.first] * len(found)


def test_a_steady_load_that_loses_one_and_doubles_another_is_no_result(tmp_path: Path) -> None:
    pace = contract.Pace(500, 0.2, 32, (20, 60))
    assert len(contract.drive_paced(InHeap, 1e9, pace, tmp_path)) == 100
    with pytest.raises(harness.WorkError, match="of 100 some were lost or doubled"):
        contract.drive_paced(Repeating, 1e9, pace, tmp_path)
    with pytest.raises(harness.WorkError, match="lost or doubled"):
        contract.each_once(ids(0, 2), 3)


def test_what_came_out_is_compared_by_its_bytes_and_order() -> None:
    work = harness.make_work(400, 24, 3000)
    seconds = np.argsort(-(work.due_ms // 1000), kind="stable")
    ours, rough = peers.named("timerstore")[0], peers.named("rocketmq")[0]

    def came(rows: Any) -> bytes:
        return b"".join(work.buffer[24 * row : 24 * row + 24] for row in rows)

    right = came(work.due_order())
    assert bench_peers.rows_in_order(ours, work, right) == right
    assert bench_peers.rows_in_order(rough, work, right) == right
    for peer in (ours, rough):
        with pytest.raises(harness.WorkError, match="a body is not the one that was put"):
            bench_peers.rows_in_order(peer, work, right[:-1] + bytes([right[-1] ^ 1]))
        with pytest.raises(harness.WorkError, match="not in the order of"):
            bench_peers.rows_in_order(peer, work, came(seconds))


def test_ratios_for_people_are_to_ours_whatever_came_first() -> None:
    more = {"schedule_rate": 1.0, "deliver_rate": 1.0, "round": 0}
    told = {"engine": "e", "variant": "v"}
    theirs = replace(result(100.0, key="redis", **more), parameters=told)
    ours = replace(result(300.0, key="timerstore", **more), parameters=told)
    _, first, second = bench_peers.ratios([theirs, ours]).splitlines()
    assert "3.00 x" in first
    assert "1.00 x" in second
    assert " x" not in bench_peers.ratios([theirs]).splitlines()[1]


@pytest.mark.parametrize("key", ["lmdb", "rocksdb", "redis", "sqlite", "sqlite-index", "heapq"])
def test_peers_give_what_came_later_and_is_due_earlier(key: str, tmp_path: Path) -> None:
    """Interleaved, as under a paced load: moved when due, each once, also when emptied between."""
    peer = peers.named(key)[0]
    if peer.missing() is not None:
        pytest.skip(str(peer.missing()))
    assert peer.paced is not None
    session = peer.paced.args[0](tmp_path)  # type: ignore[attr-defined]
    try:
        session.schedule([300, 100], 0, [b"row00000", b"row00001"])
        assert session.move(99, 10) == 0
        assert session.take(10) == []
        assert session.move(200, 10) == 1
        assert session.take(10) == [b"row00001"]
        session.schedule([50, 300], 2, [b"row00002", b"row00003"])
        assert session.move(300, 2) == 2
        assert session.take(10) == [b"row00002", b"row00000"]
        assert session.move(300, 2) == 1
        assert session.take(10) == [b"row00003"]
        assert session.move(10**12, 2) == 0
        assert session.take(10) == []
    finally:
        session.close()


@pytest.mark.deep
def test_rocketmq_and_beanstalkd_do_the_work(tmp_path: Path) -> None:
    keys = [key for key in ("rocketmq", "beanstalkd") if peers.named(key)[0].missing() is None]
    if not keys:
        pytest.skip("neither is installed: make bench-peers")
    words = ["--smoke", "--peers", ",".join(["heapq", *keys]), "--directory", str(tmp_path / "run")]
    out = tmp_path / "lines"
    assert bench_peers.main([*words, "--json", str(out)]) == 0
    told = [json.loads(one) for one in out.read_text().splitlines()]
    assert len(told) == 1 + len(keys)
    assert len({one["work"] for one in told}) == 1


def test_a_peer_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.by_redis.shutil, "which", lambda _name: None)
    assert [peer.key for peer in bench_peers.there("heapq,redis")] == ["heapq"]
    assert "NOT MEASURED: Redis" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no such peer: rdis"):
        peers.named("rdis")
    with pytest.raises(harness.WorkError, match="none of these can run here: redis"):
        bench_peers.there("redis")
    assert [peer.key for peer in bench_peers.there("heapq,beanstalkd", paced=True)] == ["heapq"]
    assert "NOT MEASURED: beanstalkd" in capsys.readouterr().err


def test_options_that_name_no_work_are_refused(
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


# ---------------------------------------------------------------- what is said of lines


MACHINE: dict[str, Any] = {
    "date": "2026-01-01", "revision": "abc", "changed": False, "cores": 2, "memory_gib": 8,
    "processor": "P", "kernel": "6", "python": "3.11", "load": [0, 0, 0], "versions": {},
    "file_system": "ext4",
    "limits": dict.fromkeys(("copy_gb_s", "fresh_page_us", "write_gb_s", "write_synced_gb_s",
                             "sync_4k_us", "python_loop_ns"), 1.0),
}  # fmt: skip


def line(key: str, number: int, rate: float, **more: Any) -> lines.Line:
    return {
        "part": "peers_1m", "name": "peers", "n": 10, "rate": rate, "flush": "f", "key": key,
        "parameters": {"engine": key, "variant": "lists of bodies", "n": 10, "body": 8, "batch": 5},
        "round": number, "tuned": "t",
        "schedule_rate": rate * 2, "deliver_rate": rate * 2, "disk_bytes_per_pending": 1.0,
        "ram_bytes_per_pending": 1.0, "p50": 1.0, "p99": 2.0, "max": 3.0, "work": "w", **more,
    }  # fmt: skip


def test_ratios_are_of_runs_of_one_round() -> None:
    ours = lines.Lines([line("timerstore", number, 100.0 * (number + 1)) for number in range(3)])
    # Its second round is missing, and the third was slow.
    theirs = lines.Lines([line("other", 0, 50.0), line("other", 2, 30.0)])
    assert ours.ratios(theirs) == (6.0, 2.0, 10.0, 2)
    assert ours.told("rate") == (200.0, 100.0, 300.0, 3)
    assert lines.Lines([]).told("rate") is None
    ours = lines.Lines([line("timerstore", 0, 100.0), line("timerstore", 0, 300.0, sitting=1)])
    theirs = lines.Lines([line("other", 0, 50.0), line("other", 0, 30.0, sitting=1)])
    assert ours.ratios(theirs) == (6.0, 2.0, 10.0, 2)


def test_figures_are_short() -> None:
    assert lines.human(2_345_678, "/s") == "2.35 M/s"
    assert lines.human(1_234, "B") == "1.23 kB"
    assert lines.human(32_800, "ns") == "32,800 ns"
    assert lines.human(0.5) == "0.5"
    assert format(lines.told([1.0, 3.0, 2.0]), "x") == "2 x (1 x to 3 x)"


def test_report_names_ratio_target_stall_and_what_is_missing(tmp_path: Path) -> None:
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


def test_report_says_that_stores_were_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = importlib.import_module("benchmarks.report")
    (tmp_path / "lines.jsonl").write_text("")
    for kind, is_said in (("ext4", False), ("tmpfs", True)):
        told = {**MACHINE, "smoke": False, "file_system": kind}
        (tmp_path / "machine.json").write_text(json.dumps(told))
        text = report.write(tmp_path).read_text("utf-8")
        assert f"stores on {kind};" in text
        assert ("**Stores were in memory" in text) == is_said


def test_limits_are_measured_where_the_stores_are(
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


def test_report_takes_away_its_own_old_plots_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = importlib.import_module("benchmarks.report")
    (tmp_path / "lines.jsonl").write_text("")
    (tmp_path / "machine.json").write_text(json.dumps({**MACHINE, "smoke": False}))
    names = {"lateness.svg", "peers_1m.png", "holiday.png", "logo.svg"}
    for name in names:
        (tmp_path / name).write_text("a picture")
    report.write(tmp_path)
    assert {name for name in names if (tmp_path / name).exists()} == {"holiday.png", "logo.svg"}


def test_report_says_how_late_a_crowd_makes_another_topic(tmp_path: Path) -> None:
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
    assert "late by 0.25 s of processor time; by 7 s where" in text


def test_targets_say_no() -> None:
    rate = next(one for one in targets.TARGETS if one.what.startswith("cancel"))
    late = next(one for one in targets.TARGETS if one.what.startswith("lateness"))
    assert [rate.verdict(lines.told([x])) for x in (199e3, 200e3, 500e3)] == [
        "**no**", "must", "stretch",
    ]  # fmt: skip
    assert [late.verdict(lines.told([x])) for x in (5.1, 5.0, 1.0)] == [
        "**no**", "must", "stretch",
    ]  # fmt: skip


def test_compared_revisions_are_paired_by_round_and_better_is_counted() -> None:
    pairs = [(line("a", 0, 100.0), line("a", 0, 150.0)), (line("a", 1, 100.0), line("a", 1, 50.0))]
    ((_, _, before, after, ratio, spread, better),) = compare.rows(pairs)
    assert (before, after, ratio, spread, better) == (
        "100", "100", "1.000", "0.500 to 1.500", "1 of 2",
    )  # fmt: skip
    late = [(line("a", 0, 1.0, name="lateness"), line("a", 0, 9.0, name="lateness", p99=1.0))]
    assert compare.rows(late)[0][4:] == ("0.500", "0.500 to 0.500", "1 of 1")


def test_a_comparison_that_failed_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[lines.Line]] = {}
    monkeypatch.setattr(compare, "check_out", lambda _revision: tmp_path)
    monkeypatch.setattr(compare.Tree, "run", lambda tree, *_given: found[tree.name])
    words = ["main", "--only", "put", "--rounds", "2", "--json", str(tmp_path / "pairs")]

    def status(base: list[lines.Line], new: list[lines.Line]) -> int:
        found.update(base=base, new=new)
        return compare.main(words)

    good, other = line("a", 0, 100.0), line("a", 0, 100.0, work="x")
    assert status([good], [good]) == 0
    assert len((tmp_path / "pairs").read_text().splitlines()) == 2
    assert status([good], []) == 1  # the working tree's failed
    assert status([], [good]) == 1  # nothing was compared
    assert capsys.readouterr().err.count("!!!") == 0
    assert status([good], [other]) == 1
    assert "only one of the two did this" in capsys.readouterr().err


def test_the_base_is_what_its_commit_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        given = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *words)
        return subprocess.run(given, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "build.py").write_text("")
    (tmp_path / "code").write_text("base")
    (tmp_path / ".gitignore").write_text("/build/")
    git("add", ".")
    git("commit", "-q", "-m", "base")
    monkeypatch.setattr(compare, "TREE", tmp_path)
    real = compare.run_git
    monkeypatch.setattr(compare, "run_git", lambda *words, tree=tmp_path: real(*words, tree=tree))
    (tmp_path / "code").write_text("changed here")
    path = compare.check_out("HEAD")
    for spoil in (
        lambda: (path / "code").write_text("changed there"),
        lambda: (path / "more").write_text("new there"),
        lambda: (path / "code").unlink(),
        lambda: (path / ".git").unlink(),
        lambda: shutil.rmtree(path),
        lambda: git("worktree", "remove", "--force", str(path)),
        lambda: None,
    ):
        spoil()
        assert compare.check_out("HEAD") == path
        assert (path / "code").read_text() == "base"
        assert not (path / "more").exists()
        assert (tmp_path / "code").read_text() == "changed here"
    (path / "native" / "build.py").write_text("raise SystemExit(1)")
    (tmp_path / "native" / "build.py").write_text("import sys; sys.exit('no compiler')")
    git("commit", "-qam", "does not build")
    assert compare.main(["HEAD"]) == 2


def test_samples_lie_under_the_step_that_ran() -> None:
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


def test_profile_is_written_between_its_marks(tmp_path: Path) -> None:
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


def test_a_disturbed_run_is_made_again_while_there_is_time(
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


def test_sizes_that_the_disk_has_no_room_for_are_halved_or_left_out(
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
