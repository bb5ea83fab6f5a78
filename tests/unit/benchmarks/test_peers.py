"""The peers of the benchmarks: checks of their results, and missing peers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    bench_peers,
    harness,
    peers,
)
from benchmarks.peers import contract
from benchmarks.peers.by_heapq import InHeap
from tests.support.benchmark_results import ids, result


def test_rows_in_order_checks_order_and_identity() -> None:
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
    # Ordered by seconds only: adjacent messages may be swapped, but the last may not be first.
    assert bench_peers.rows_in_order(loose, work, swapped) == good
    for bad in (last_first, doubled, good[:-16]):
        with pytest.raises(harness.WorkError):
            bench_peers.rows_in_order(loose, work, bad)


class Forgetful(InHeap):
    """A peer that loses all messages left by the first move."""

    def move(self, now_ms: int, limit: int) -> int:
        moved = super().move(now_ms, limit)
        self._heap.clear()
        return moved


def test_drive_rejects_peer_that_loses_messages(tmp_path: Path) -> None:
    work = harness.make_work(50, 16, 3000)
    settings = contract.Settings(10, smoke=True)
    times = contract.drive(InHeap, 1e9, work, tmp_path, settings)
    assert len(times.bodies) == 50 * 16
    with pytest.raises(harness.WorkError, match="40 of 50 are not due"):
        contract.drive(Forgetful, 1e9, work, tmp_path, settings)


class Repeating(InHeap):
    """A peer that returns its first message in place of every message."""

    first: bytes = b""

    def take(self, limit: int) -> list[bytes]:
        found = super().take(limit)
        self.first = self.first or b"".join(found[:1])
        return [self.first] * len(found)


def test_drive_paced_rejects_lost_and_duplicate_messages(tmp_path: Path) -> None:
    pace = contract.Pace(500, 0.2, 32, (20, 60))
    assert len(contract.drive_paced(InHeap, 1e9, pace, tmp_path)) == 100
    with pytest.raises(harness.WorkError, match="of 100 some were lost or duplicated"):
        contract.drive_paced(Repeating, 1e9, pace, tmp_path)
    with pytest.raises(harness.WorkError, match="lost or duplicated"):
        contract.each_once(ids(0, 2), 3)


def test_rows_in_order_checks_bytes() -> None:
    work = harness.make_work(400, 24, 3000)
    seconds = np.argsort(-(work.due_ms // 1000), kind="stable")
    ours, rough = peers.named("timerstore")[0], peers.named("rocketmq")[0]

    def came(rows: Any) -> bytes:
        return b"".join(work.buffer[24 * row : 24 * row + 24] for row in rows)

    right = came(work.due_order())
    assert bench_peers.rows_in_order(ours, work, right) == right
    assert bench_peers.rows_in_order(rough, work, right) == right
    for peer in (ours, rough):
        with pytest.raises(harness.WorkError, match="a body differs from the one that was put"):
            bench_peers.rows_in_order(peer, work, right[:-1] + bytes([right[-1] ^ 1]))
        with pytest.raises(harness.WorkError, match="not in the order of"):
            bench_peers.rows_in_order(peer, work, came(seconds))


def test_ratios_are_relative_to_timerstore() -> None:
    more = {"schedule_rate": 1.0, "deliver_rate": 1.0, "round": 0}
    told = {"engine": "e", "variant": "v"}
    theirs = replace(result(100.0, key="redis", **more), parameters=told)
    ours = replace(result(300.0, key="timerstore", **more), parameters=told)
    _, first, second = bench_peers.ratios([theirs, ours]).splitlines()
    assert "3.00 x" in first
    assert "1.00 x" in second
    assert " x" not in bench_peers.ratios([theirs]).splitlines()[1]


@pytest.mark.parametrize("key", ["lmdb", "rocksdb", "redis", "sqlite", "sqlite-index", "heapq"])
def test_peer_delivers_later_put_that_is_due_earlier(key: str, tmp_path: Path) -> None:
    """Interleaved puts and takes, as under a paced load, move each due message once."""
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
def test_rocketmq_and_beanstalkd_complete_work(tmp_path: Path) -> None:
    keys = [key for key in ("rocketmq", "beanstalkd") if peers.named(key)[0].missing() is None]
    if not keys:
        pytest.skip("neither is installed: make bench-peers")
    words = ["--smoke", "--peers", ",".join(["heapq", *keys]), "--directory", str(tmp_path / "run")]
    out = tmp_path / "lines"
    assert bench_peers.main([*words, "--json", str(out)]) == 0
    told = [json.loads(one) for one in out.read_text().splitlines()]
    assert len(told) == 1 + len(keys)
    assert len({one["work"] for one in told}) == 1


def test_missing_peer_is_reported(
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
