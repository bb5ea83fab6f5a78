"""Backup, restore, repair, convert: durable when they answer, also after one that was killed."""

from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench
from tests.support.durable.files import CLOSED, HALF_WRITTEN, LOCK, OLD_NAME
from tests.support.durable.recorder import Recorder
from tests.unit.durability.conftest import Machine
from timerstore import ConfigError

COPY = (LOCK, OLD_NAME)


def fill(bench: Bench) -> None:
    for k in range(120):
        bench.store.put("t", b"%d" % k, delay=k % 9, message_id=f"m{k}")
    bench.store.put("big", bytes(600_000), delay=30)
    bench.store.put("big", bytes(600_000), delay=30)
    bench.store.put_every("t", b"again", every=60, name="e")
    bench.turn(3000)


def opened(machine: Machine, root: Path) -> Bench:
    return Bench(root, machine.config, machine.bench.clock.now_ms)


def same_after_power_cut(machine: Machine, root: Path, cuts: Path) -> None:
    """Check that a power cut leaves the complete store at `root`."""
    found = opened(machine, machine.recorder.cut(root, cuts))
    assert (
        found.store.stats()["pending_messages"] == machine.bench.store.stats()["pending_messages"]
    )
    assert found.bodies() == machine.bench.bodies()
    found.close()


@pytest.mark.more
def test_backup_is_durable(machine: Machine, disk: Path, tmp_path: Path) -> None:
    fill(machine.bench)
    backup = disk / "some" / "where" / "backup"
    for lap in range(3):
        machine.bench.store.backup(backup)
        machine.recorder.check(COPY, "some")
        cut = machine.recorder.cut(backup, tmp_path / f"backup{lap}")
        timerstore.restore(cut, tmp_path / f"store{lap}")
        same = opened(machine, tmp_path / f"store{lap}")
        assert same.bodies() == machine.bench.bodies()
        same.close()
        fill(machine.bench)


@pytest.mark.more
def test_backup_that_lost_a_segment_is_durable(machine: Machine, disk: Path) -> None:
    fill(machine.bench)
    machine.bench.store.backup(disk / "backup")
    (disk / "backup" / "commitlog" / f"{0:020d}").unlink()
    machine.bench.store.backup(disk / "backup")
    machine.recorder.check(COPY, "backup")


def each_kill(
    recorder: Recorder, machine: Machine, disk: Path, name: str, act: Callable[[Path], object]
) -> list[Path]:
    """Run `act` again on the folders that kills before each of its syncs leave."""
    (disk / name).mkdir()
    recorder.name_is_durable(disk / name)
    found = recorder.killed_before_each_sync(
        disk / name, disk / f"{name}.killed", lambda: act(disk / name / "new")
    )
    assert found
    for copy in found:
        try:
            act(copy / "new")
        except ConfigError:  # killed after it got its name, which opening makes durable
            opened(machine, copy / "new").close()
        recorder.check((*COPY, *CLOSED, HALF_WRITTEN), (copy / "new").relative_to(disk).as_posix())
    return [disk / name, *found]


@pytest.mark.more
def test_backup_is_durable_after_one_was_killed(
    machine: Machine, recorder: Recorder, disk: Path
) -> None:
    fill(machine.bench)
    each_kill(recorder, machine, disk, "backup", machine.bench.store.backup)


@pytest.mark.more
def test_restored_store_is_durable(
    machine: Machine, recorder: Recorder, disk: Path, tmp_path: Path
) -> None:
    fill(machine.bench)
    machine.bench.store.backup(disk / "backup")
    found = each_kill(
        recorder, machine, disk, "restored", lambda new: timerstore.restore(disk / "backup", new)
    )
    for number, folder in enumerate((found[0], found[-1])):
        same_after_power_cut(machine, folder / "new", tmp_path / f"cut{number}")


@pytest.mark.more
def test_repaired_store_is_durable(
    machine: Machine, recorder: Recorder, disk: Path, tmp_path: Path
) -> None:
    fill(machine.bench)
    machine.bench.close()
    source = machine.bench.root
    found = each_kill(
        recorder, machine, disk, "repaired", lambda new: timerstore.repair(source, new)
    )
    machine.bench.open()
    for number, folder in enumerate((found[0], found[-1])):
        same_after_power_cut(machine, folder / "new", tmp_path / f"cut{number}")


@pytest.mark.more
@pytest.mark.parametrize("to", ["rocketmq", "timerstore"])
def test_converted_store_is_durable(machine: Machine, tmp_path: Path, to: str) -> None:
    fill(machine.bench)
    machine.bench.store.put("t", b"far", delay=3600)
    machine.bench.close()
    timerstore.convert(machine.bench.root, to, machine.config, clock=machine.bench.clock)
    machine.recorder.check(CLOSED, machine.base)
    machine.bench.open()
    same_after_power_cut(machine, machine.bench.root, tmp_path / "cut")


def test_backup_is_not_whole_before_its_files_are(machine: Machine, disk: Path) -> None:
    """These acts met their barriers, so the barriers are in use."""
    fill(machine.bench)
    machine.bench.store.backup(disk / "backup")
    timerstore.restore(disk / "backup", disk / "restored")
    met = {one.pattern for one in machine.recorder.passed}
    assert {"*backup.json", "*.restoring", "*/timerstore/watermark"} <= met
