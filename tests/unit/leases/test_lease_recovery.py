"""Leases after a restart, a kill and an interrupted checkpoint."""

import shutil
from pathlib import Path

import pytest

from tests.support.bench import DAY, Bench
from tests.support.driver import abandon
from tests.support.leasing import RETRY, bodies, put, take
from timerstore import AckResult, FullError
from timerstore._engine.base import failpoints
from timerstore._engine.storage.disk import Disk


def test_receipt_survives_a_restart_and_a_kill(bench: Bench, tmp_path: Path) -> None:
    put(bench, b"a", b"b", b"c", b"d")
    a, b, c, d = take(bench, lease=60)
    bench.close()
    bench.open()
    assert take(bench) == []
    assert bench.store.ack(a.receipt) is AckResult.ACKED
    assert bench.store.ack(a.receipt) is AckResult.SETTLED
    longer = bench.store.extend(b.receipt, lease=100)
    shutil.copytree(bench.root, tmp_path / "killed")
    abandon(bench.store)
    bench.root = tmp_path / "killed"
    bench.open()
    assert take(bench) == []
    assert bench.store.ack(b.receipt) is AckResult.SETTLED
    assert bench.store.nack(c.receipt, delay=1) is AckResult.NACKED
    bench.turn(1000)
    assert bodies(take(bench, lease=1000)) == [b"c"]
    bench.turn(60_000)
    assert bodies(take(bench, lease=1000)) == [b"d"]
    assert bench.store.ack(d.receipt) is AckResult.EXPIRED
    assert bench.store.ack(longer) is AckResult.ACKED
    bench.turn(100_000)
    assert take(bench, lease=1000) == []


def test_group_continues_after_its_last_lease_when_killed(bench: Bench, tmp_path: Path) -> None:
    """No commit was written; only the leases in the log tell the group's offsets."""
    put(bench, *(b"%d" % k for k in range(6)))
    assert bodies(take(bench, 4, lease=60)) == [b"0", b"1", b"2", b"3"]
    assert bench.store.committed("t", "g") == {}
    bench.kill(tmp_path / "a")
    assert bench.store.committed("t", "g") == {0: 4}
    assert bodies(take(bench, lease=60)) == [b"4", b"5"]
    bench.turn(60_000)
    again = take(bench, 3, lease=60)
    assert [one.attempt for one in again] == [2, 2, 2]
    bench.kill(tmp_path / "b")
    assert bench.store.committed(RETRY, "g") == {0: 3}
    again += take(bench, lease=60)
    assert sorted(bodies(again)) == [b"%d" % k for k in range(6)]
    assert bench.store.ack_many(again) == [AckResult.ACKED] * 6
    bench.kill(tmp_path / "c")
    bench.turn(DAY)
    assert take(bench) == []


def test_checkpoint_commits_leases_below_its_watermark(bench: Bench, tmp_path: Path) -> None:
    """After a kill its lease is not read; without the commit an acked message would come back."""
    put(bench, b"a", b"b")
    (a,) = take(bench, 1)
    bench.store.ack(a)
    assert bench.store.committed("t", "g") == {}
    bench.store.flush()
    assert bench.store.committed("t", "g") == {0: 1}
    bench.kill(tmp_path / "k")
    assert bodies(take(bench)) == [b"b"]


@pytest.mark.parametrize("later", [0, 1])
def test_checkpoint_after_a_full_disk_commits_the_leases_of_the_one_that_failed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """Also those that were leased since then."""

    def full(_self: Disk, path: Path, _data: bytes) -> None:
        raise FullError("no space", where=path)

    put(bench, b"a", b"b", b"c")
    bench.store.ack_many(take(bench, 1))
    with monkeypatch.context() as patched:
        patched.setattr(Disk, "write_small", full)
        with pytest.raises(FullError):
            bench.store.flush()
    bench.store.ack_many(take(bench, later) if later else [])
    bench.store.flush()
    assert bench.store.committed("t", "g") == {0: 1 + later}
    bench.kill(tmp_path / "k")
    assert bodies(take(bench)) == [b"b", b"c"][later:]


@pytest.mark.parametrize("point", ["checkpoint_taken", "checkpoint_log_synced",
                                   "lease_progress_committed", "commit_written",
                                   "checkpoint_watermark_written"])  # fmt: skip
def test_store_killed_in_a_checkpoint(bench: Bench, tmp_path: Path, point: str) -> None:
    put(bench, b"a", b"b")
    (a,) = take(bench, 1)
    bench.store.ack(a)

    def hook(name: str) -> None:
        if name == point and not (tmp_path / "k").exists():
            shutil.copytree(bench.root, tmp_path / "k")

    failpoints.hook = hook
    try:
        bench.store.flush()
    finally:
        failpoints.hook = None
    abandon(bench.store)
    bench.root = tmp_path / "k"
    bench.open()
    assert bodies(take(bench)) == [b"b"]
    bench.turn(DAY)
    assert bodies(take(bench)) == [b"b"]
