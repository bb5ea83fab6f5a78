"""What a killed process had staged: it goes to the log's end, and over nobody's records."""

import shutil
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.driver import abandon
from timerstore._engine.base import failpoints

SEGMENT = 16 * 1024
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


def overtaken(bench: Bench, count: int, *, is_closed: bool) -> Path:
    """A killed store that a broker had meanwhile: what it finds is the log, where it goes on."""
    root = killed(bench)
    between = root.with_name("between")
    shutil.copytree(root, between)
    shutil.rmtree(between / "timerstore")
    as_brokers_have_it(between)
    stranger = Bench(between, small(), bench.clock.now_ms)
    for k in range(count):
        stranger.store.put("t", b"a stranger's %d" % k)
    stranger.store.flush()
    if is_closed:
        stranger.close()
    else:
        between = copy(stranger, "killed-between")
        as_brokers_have_it(between)
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
    return root


def as_brokers_have_it(root: Path) -> None:
    wheel = root / "timerwheel"
    wheel.write_bytes(wheel.read_bytes()[: small().wheel_slot_count * 32])


def check_overtaken(root: Path, now_ms: int, count: int) -> None:
    other = go_on(root, now_ms)
    theirs = [b"a stranger's %d" % k for k in range(count)]
    ours = [] if count else [b"staged"]
    late = [] if count else [b"staged, waits"]
    assert other.bodies() == [b"written", *theirs, *ours, b"waits", *late]
    other.close()


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("is_closed", [True, False])
def test_it_is_not_written_over_who_had_the_store_meanwhile(
    tmp_path: Path, count: int, is_closed: bool
) -> None:
    bench = Bench(tmp_path / "s")
    root = overtaken(bench, count, is_closed=is_closed)
    check_overtaken(root, bench.clock.now_ms, count)


@pytest.mark.parametrize("is_closed", [True, False])
def test_nor_by_the_opening_after_one_that_was_killed(
    tmp_path: Path, is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "s")
    root = overtaken(bench, 5, is_closed=is_closed)
    copies: list[Path] = []

    def hook(name: str) -> None:
        copies.append(tmp_path / f"{len(copies)}-{name}")
        shutil.copytree(root, copies[-1])

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        Bench(root, small(), bench.clock.now_ms).close()
    assert any("recover_anew_begun" in one.name for one in copies)
    for one in copies:
        check_overtaken(one, bench.clock.now_ms, 5)


def test_repair_takes_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    root = killed(bench)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert timerstore.repair(root, tmp_path / "target").clean
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    other = go_on(tmp_path / "target", bench.clock.now_ms)
    assert other.bodies() == [b"written", b"staged", b"waits", b"staged, waits"]
    other.close()


@pytest.mark.parametrize("left", [0, 300])
def test_repair_where_the_log_was_cut_as_well(tmp_path: Path, left: int) -> None:
    """What stands in the staging need not stand in the log."""
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


def test_repair_names_what_it_does_not_take(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=SEGMENT))
    for k in range(11):
        bench.store.put("t", b"%d" % k + bytes(1400))
    bench.store.flush()
    bench.store.put("t", b"staged" + bytes(1400))
    root = copy(bench, "killed")
    (root / "commitlog" / f"{SEGMENT:020}").write_bytes(b"")
    problems = timerstore.repair(root, tmp_path / "target").problems
    assert "not taken over: what was staged" in [one.what for one in problems]
