"""Staged records of a killed process are appended to the log, and never overwrite records."""

import shutil
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.driver import abandon
from timerstore._engine.base import failpoints

SEGMENT = 16 * 1024
BROKER_FILES = (
    "consumequeue",
    "index",
    "timerlog",
    "timerwheel",
    "commitlog",
    "config",
    "checkpoint",
)


def killed(bench: Bench) -> Path:
    """Return a copy of a store as a kill leaves it, with records that are only staged."""
    bench.store.put("t", b"written")
    bench.store.put("t", b"pending", delay=60)
    bench.store.flush()
    bench.store.put("t", b"staged")
    bench.store.put("t", b"staged, pending", delay=60)
    return copy(bench, "killed")


def copy(bench: Bench, name: str) -> Path:
    target = bench.root.with_name(name)
    shutil.copytree(bench.root, target)
    abandon(bench.store)
    return target


def continue_store(root: Path, now_ms: int) -> Bench:
    bench = Bench(root, small(), now_ms)
    bench.turn(61_000)
    return bench


@pytest.mark.parametrize("lost", ["", "timerwheel", "timerstore/watermark", "timerstore/state"])
def test_staged_records_survive_the_loss_of_a_file(tmp_path: Path, lost: str) -> None:
    bench = Bench(tmp_path / "s")
    root = killed(bench)
    if lost:
        (root / lost).unlink()
    other = continue_store(root, bench.clock.now_ms)
    assert other.bodies() == [b"written", b"staged", b"pending", b"staged, pending"]
    other.close()


def used_by_a_broker(bench: Bench, count: int, *, is_closed: bool) -> Path:
    """Return a killed store that a broker used afterwards. The broker appended `count` records."""
    root = killed(bench)
    broker_root = root.with_name("broker")
    shutil.copytree(root, broker_root)
    shutil.rmtree(broker_root / "timerstore")
    shorten_wheel(broker_root)
    broker = Bench(broker_root, small(), bench.clock.now_ms)
    for k in range(count):
        broker.store.put("t", b"a broker's %d" % k)
    broker.store.flush()
    if is_closed:
        broker.close()
    else:
        broker_root = copy(broker, "killed-broker_root")
        shorten_wheel(broker_root)
    for name in BROKER_FILES:
        part = root / name
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        part = broker_root / name
        if part.is_dir():
            shutil.copytree(part, root / name)
        elif part.exists():
            shutil.copy(part, root / name)
    if is_closed:
        (root / "abort").unlink()
    return root


def shorten_wheel(root: Path) -> None:
    wheel = root / "timerwheel"
    wheel.write_bytes(wheel.read_bytes()[: small().wheel_slot_count * 32])


def check_used_by_a_broker(root: Path, now_ms: int, count: int) -> None:
    other = continue_store(root, now_ms)
    theirs = [b"a broker's %d" % k for k in range(count)]
    ours = [] if count else [b"staged"]
    late = [] if count else [b"staged, pending"]
    assert other.bodies() == [b"written", *theirs, *ours, b"pending", *late]
    other.close()


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("is_closed", [True, False])
def test_staged_records_do_not_overwrite_records_of_a_broker(
    tmp_path: Path, count: int, is_closed: bool
) -> None:
    bench = Bench(tmp_path / "s")
    root = used_by_a_broker(bench, count, is_closed=is_closed)
    check_used_by_a_broker(root, bench.clock.now_ms, count)


@pytest.mark.parametrize("is_closed", [True, False])
def test_staged_records_do_not_overwrite_after_an_interrupted_opening(
    tmp_path: Path, is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "s")
    root = used_by_a_broker(bench, 5, is_closed=is_closed)
    copies: list[Path] = []

    def hook(name: str) -> None:
        copies.append(tmp_path / f"{len(copies)}-{name}")
        shutil.copytree(root, copies[-1])

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        Bench(root, small(), bench.clock.now_ms).close()
    assert any("recover_rebuild_begun" in one.name for one in copies)
    for one in copies:
        check_used_by_a_broker(one, bench.clock.now_ms, 5)


def test_repair_includes_staged_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    root = killed(bench)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert timerstore.repair(root, tmp_path / "target").clean
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    other = continue_store(tmp_path / "target", bench.clock.now_ms)
    assert other.bodies() == [b"written", b"staged", b"pending", b"staged, pending"]
    other.close()


@pytest.mark.parametrize("left", [0, 300])
def test_repair_includes_staged_records_when_the_log_was_truncated(
    tmp_path: Path, left: int
) -> None:
    """Staged bytes count although the segment was truncated."""
    sizes = small(commit_log_segment_bytes=SEGMENT)
    bench = Bench(tmp_path / "s", sizes)
    for k in range(12):
        bench.store.put("t", b"%02d" % k + bytes(1400))
    bench.store.flush()
    end = int(bench.store.stats()["log_end_bytes"]) - SEGMENT
    bench.store.put("t", b"staged" + bytes(3000))
    root = copy(bench, "killed")
    segment = root / "commitlog" / f"{SEGMENT:020}"
    segment.write_bytes(segment.read_bytes()[: end + left])
    target = tmp_path / "target"
    timerstore.repair(root, target)
    other = Bench(target, sizes, bench.clock.now_ms)
    other.turn()
    assert [body[:6] for body in other.bodies()][-2:] == [b"11" + bytes(4), b"staged"]
    assert len(other.bodies()) == 13
    other.close()


def test_repair_reports_staged_records_that_it_leaves_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=SEGMENT))
    for k in range(11):
        bench.store.put("t", b"%d" % k + bytes(1400))
    bench.store.flush()
    bench.store.put("t", b"staged" + bytes(1400))
    root = copy(bench, "killed")
    (root / "commitlog" / f"{SEGMENT:020}").write_bytes(b"")
    problems = timerstore.repair(root, tmp_path / "target").problems
    assert "not taken over: staged records" in [one.what for one in problems]
