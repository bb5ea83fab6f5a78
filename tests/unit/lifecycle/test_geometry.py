"""Sizes of a store's files: taken from the files, or compared with the configuration."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.inside import inside
from timerstore import (
    ConfigError,
    CorruptError,
)

GEOMETRY = {
    "commit_log_segment_bytes": 1 << 21,
    "queue_segment_bytes": 4000,
    "timer_log_segment_bytes": 128 * 1024,
    "wheel_slot_count": 256,
    "precision_ms": 100,
}


def test_sizes_are_taken_from_the_files(tmp_path: Path) -> None:
    made = small(**GEOMETRY)
    bench = Bench(tmp_path, made)
    bench.store.put("t", b"x", delay=3)
    bench.store.put("t", b"y")
    bench.turn()
    bench.close()
    bench.config = timerstore.StoreConfig(reserve_bytes=0)
    bench.open()
    for name, value in GEOMETRY.items():
        assert getattr(bench.store.config, name) == value
    bench.turn(3000)
    assert bench.bodies() == [b"y", b"x"]
    bench.close()


@pytest.mark.parametrize("name", GEOMETRY)
def test_sizes_that_contradict_the_files_raise(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, small(**GEOMETRY))
    bench.store.put("t", b"x", delay=3)
    bench.store.put("t", b"y")
    bench.turn()
    bench.close()
    other = dataclasses.replace(bench.config, **{name: 2 * GEOMETRY[name]})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError) as caught:
        timerstore.open(tmp_path, other, threads=False)
    assert str(2 * GEOMETRY[name]) in str(caught.value)
    assert str(GEOMETRY[name]) in str(caught.value)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    bench.open()
    bench.turn(3000)
    assert bench.bodies() == [b"y", b"x"]
    bench.close()


@pytest.mark.parametrize(
    ("left", "is_closed"),
    [
        (None, True), (0, True), (32 * 10 + 7, True), (32 * 128, True), (32 * 300, True),
        (None, False), (32 * 128, False),
    ],
)  # fmt: skip
def test_wheel_file_is_rebuilt_when_its_length_is_wrong(
    tmp_path: Path, left: int | None, is_closed: bool
) -> None:
    """The watermark has the number of slots."""
    made = small(**GEOMETRY)
    bench = Bench(tmp_path / "store", made)
    bodies = [b"%d" % n for n in range(20)]
    for n, body in enumerate(bodies):
        bench.store.put("t", body, delay=1 + n)
    bench.turn(3000)
    if is_closed:
        bench.close()
    else:
        bench.store.flush()
        inside(bench.store).checkpoint.run()
        killed = tmp_path / "killed"
        shutil.copytree(bench.root, killed)
        bench.close()
        bench.root = killed
    wheel = bench.root / "timerwheel"
    if left is None:
        wheel.unlink()
    else:
        wheel.write_bytes(wheel.read_bytes()[:left].ljust(left, b"\1"))
    problems = timerstore.verify_directory(bench.root).problems
    assert [one.where for one in problems if "derived" in one.what] == [str(wheel)]
    repaired = tmp_path / "repaired"
    assert timerstore.repair(bench.root, repaired).clean
    assert (repaired / "timerwheel").stat().st_size == 32 * made.wheel_slot_count
    for root, config in (
        (repaired, made),
        (shutil.copytree(bench.root, tmp_path / "copy"), timerstore.StoreConfig(reserve_bytes=0)),
        (bench.root, made),
    ):
        bench.root, bench.config = root, config
        bench.open()
        assert bench.store.config.wheel_slot_count == made.wheel_slot_count
        now_ms = bench.clock.now_ms
        bench.turn(60_000)
        assert bench.bodies() == bodies
        bench.clock.set(now_ms)
        bench.close()
        assert (root / "timerwheel").stat().st_size == 32 * made.wheel_slot_count
        assert timerstore.verify_directory(root).clean


def test_wheel_file_of_a_broker_sets_the_slot_count(tmp_path: Path) -> None:
    """A broker has rebuilt the file; it accepts no other length."""
    bench = Bench(tmp_path, small(**GEOMETRY))
    bench.store.put("t", b"x", delay=3)
    bench.turn()
    bench.close()
    usual = timerstore.StoreConfig().wheel_slot_count
    wheel = tmp_path / "timerwheel"
    wheel.unlink()
    with wheel.open("wb") as file:
        file.truncate(32 * usual)
    with pytest.raises(ConfigError, match=f"configured 256, but .*timerwheel shows {usual}"):
        bench.open()
    bench.config = timerstore.StoreConfig(reserve_bytes=0)
    bench.open()
    assert bench.store.config.wheel_slot_count == usual
    bench.turn(3000)
    assert bench.bodies() == [b"x"]
    bench.close()


@pytest.mark.parametrize("config", [None, small()], ids=["found", "configured"])
def test_log_file_of_an_impossible_length_is_damage(
    tmp_path: Path, config: timerstore.StoreConfig | None
) -> None:
    """The length is damage, not a wrong setting."""
    bench = Bench(tmp_path, small())
    bench.store.put("t", b"x", delay=1)
    bench.turn()
    bench.close()
    file = tmp_path / "commitlog" / f"{0:020d}"
    os.truncate(file, 100)
    with pytest.raises(CorruptError, match="wanted 4096 to 2147483647 bytes; got 100") as caught:
        timerstore.open(tmp_path, config)
    assert caught.value.where == file


def test_config_error_lists_every_contradiction(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small())
    bench.store.put("t", b"x", delay=1)
    bench.turn()
    bench.close()
    with pytest.raises(ConfigError) as caught:
        timerstore.open(tmp_path, small(wheel_slot_count=64, timer_log_segment_bytes=4096))
    assert len(caught.value.problems) == 2
