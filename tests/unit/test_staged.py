"""What a killed process had staged: it goes to the log's end, and over nobody's records."""

import shutil
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.driver import abandon

STRANGERS = ("consumequeue", "index", "timerlog", "timerwheel", "commitlog", "config", "checkpoint")


def killed(bench: Bench) -> Path:
    """A copy, as a kill leaves it, of a store with a record that is nowhere but staged."""
    bench.store.put("t", b"written")
    bench.store.put("t", b"waits", delay=60)
    bench.store.flush()
    bench.store.put("t", b"staged")
    bench.store.put("t", b"staged, waits", delay=60)
    return copy(bench, "killed")


def copy(bench: Bench, name: str) -> Path:
    target = bench.root.with_name(name)
    shutil.copytree(bench.root, target)
    abandon(bench.store)
    return target


def go_on(root: Path, now_ms: int) -> Bench:
    bench = Bench(root, small(), now_ms)
    bench.turn(61_000)
    return bench


@pytest.mark.parametrize("lost", ["", "timerwheel", "timerstore/watermark", "timerstore/state"])
def test_it_is_there_whatever_is_built_anew(tmp_path: Path, lost: str) -> None:
    bench = Bench(tmp_path / "s")
    root = killed(bench)
    if lost:
        (root / lost).unlink()
    other = go_on(root, bench.clock.now_ms)
    assert other.bodies() == [b"written", b"staged", b"waits", b"staged, waits"]
    other.close()


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("is_closed", [True, False])
def test_it_is_not_written_over_who_had_the_store_meanwhile(
    tmp_path: Path, count: int, is_closed: bool
) -> None:
    """A broker knows nothing of it: what it finds is the log, and it goes on there."""
    bench = Bench(tmp_path / "s")
    root = killed(bench)
    between = tmp_path / "between"
    shutil.copytree(root, between)
    shutil.rmtree(between / "timerstore")
    wheel = between / "timerwheel"
    wheel.write_bytes(wheel.read_bytes()[: small().wheel_slot_count * 32])
    stranger = Bench(between, small(), bench.clock.now_ms)
    for k in range(count):
        stranger.store.put("t", b"a stranger's %d" % k)
    stranger.store.flush()
    if is_closed:
        stranger.close()
    else:
        between = copy(stranger, "killed-between")
        wheel = between / "timerwheel"
        wheel.write_bytes(wheel.read_bytes()[: small().wheel_slot_count * 32])
    for name in STRANGERS:
        part = root / name
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        part = between / name
        if part.is_dir():
            shutil.copytree(part, root / name)
        elif part.exists():
            shutil.copy(part, root / name)
    if is_closed:
        (root / "abort").unlink()
    other = go_on(root, bench.clock.now_ms)
    theirs = [b"a stranger's %d" % k for k in range(count)]
    ours = [] if count else [b"staged"]
    late = [] if count else [b"staged, waits"]
    assert other.bodies() == [b"written", *theirs, *ours, b"waits", *late]
    other.close()


def test_repair_takes_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    root = killed(bench)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert timerstore.repair(root, tmp_path / "target").clean
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    other = go_on(tmp_path / "target", bench.clock.now_ms)
    assert other.bodies() == [b"written", b"staged", b"waits", b"staged, waits"]
    other.close()
