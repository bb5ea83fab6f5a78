"""The wheel is rebuilt unless its file is as the last complete write left it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import NOW, SECOND, Bench, copied_at, small
from tests.support.inside import inside, old_watermark_slot, wheel_file_of
from timerstore import FullError, verify_directory
from timerstore._engine.format import watermark
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.wheel_checks import SECTOR_BYTES
from timerstore._engine.format.wheel_slot import SLOT_BYTES

SLOTS = 128
FIRST, SECOND_ONE = 5, 40  # seconds ahead: in two sectors of the wheel


def killed(tmp_path: Path, name: str = "killed") -> tuple[Path, bytes]:
    """Return a store as a crash leaves it, and its wheel as of the checkpoint before the last.

    The store has as many cancelled messages as pending ones.
    """
    bench = Bench(tmp_path / "store", small(wheel_slot_count=SLOTS))
    cancelled = [bench.store.put("t", b"c%d" % n, delay=FIRST) for n in range(3)]
    bench.turn()
    bench.store.flush()
    before = Tree(bench.root).timer_wheel.read_bytes()
    for n in range(3):
        bench.store.put("t", b"%d" % n, delay=SECOND_ONE)
    bench.turn()
    for receipt in cancelled:
        bench.store.cancel(receipt)
    bench.turn()
    bench.store.flush()
    copy = tmp_path / name
    shutil.copytree(bench.root, copy)
    bench.close()
    return copy, before


def opened(root: Path) -> Bench:
    return Bench(root, small(wheel_slot_count=SLOTS))


def assert_whole(root: Path, *, is_rebuilt: bool) -> None:
    bench = opened(root)
    assert (inside(bench.store).imported is not None) == is_rebuilt
    bench.turn((SECOND_ONE + 1) * SECOND)
    assert bench.bodies("t") == [b"0", b"1", b"2"]
    bench.close()
    assert verify_directory(root).clean


def stale(raw: bytearray, before: bytes) -> None:
    slot = (NOW // SECOND + SECOND_ONE) % SLOTS * SLOT_BYTES
    at = slot - slot % SECTOR_BYTES
    raw[at : at + SECTOR_BYTES] = before[at : at + SECTOR_BYTES]


def laps_off(raw: bytearray, _before: bytes) -> None:
    slot = (NOW // SECOND + SECOND_ONE) % SLOTS * SLOT_BYTES
    raw[slot + 6] ^= 1  # 256 seconds, two laps


@pytest.mark.parametrize("damage", [stale, laps_off])
def test_damage_is_detected_when_counts_agree(
    tmp_path: Path, damage: Callable[[bytearray, bytes], None]
) -> None:
    root, before = killed(tmp_path)
    path = Tree(root).timer_wheel
    raw = bytearray(path.read_bytes())
    damage(raw, before)
    path.write_bytes(raw)
    report = verify_directory(root)
    assert any(str(path) in problem.where for problem in report.problems), report
    assert_whole(root, is_rebuilt=True)


def test_undamaged_wheel_is_not_rebuilt(tmp_path: Path) -> None:
    assert_whole(killed(tmp_path)[0], is_rebuilt=False)


@pytest.mark.parametrize("how", ["gone", "empty", "head", "entry"])
def test_wheel_is_rebuilt_when_checks_are_damaged(tmp_path: Path, how: str) -> None:
    root, _ = killed(tmp_path)
    path = Tree(root).wheel_checks
    raw = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    else:
        raw[3 if how == "head" else SECTOR_BYTES + 4] ^= 1
        path.write_bytes(raw)
    assert not verify_directory(root).clean
    assert_whole(root, is_rebuilt=True)


@pytest.mark.parametrize("sectors", [0, 1, 3, 7])
def test_wheel_is_not_rebuilt_after_crash_during_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sectors: int
) -> None:
    """The recovery accepts the wheel, however many sectors were written before the crash."""
    bench = opened(tmp_path / "store")
    for n in range(3):
        bench.store.put("t", b"%d" % n, delay=SECOND_ONE)
    bench.turn()
    bench.store.flush()
    old = Tree(bench.root).timer_wheel.read_bytes()
    for delay in (FIRST, SECOND_ONE, 100):  # in three sectors
        bench.store.put("other", b"x", delay=delay)
    bench.turn()
    copy = tmp_path / "copy"
    with copied_at(monkeypatch, "checkpoint_wheel_written", bench.root, copy):
        bench.store.flush()
    new = Tree(bench.root).timer_wheel.read_bytes()
    changed = {at // SECTOR_BYTES for at in range(len(old)) if old[at] != new[at]}
    assert len(changed) == 3
    cut = SECTOR_BYTES * sectors
    Tree(copy).timer_wheel.write_bytes(new[:cut] + old[cut:])
    bench.close()
    for _ in range(2):  # again, after a crash of that recovery
        again = opened(copy)
        assert inside(again.store).imported is None
        shutil.copytree(copy, tmp_path / f"next-{_}")
        again.close()
        copy = tmp_path / f"next-{_}"
    assert_whole(copy, is_rebuilt=False)


class Faulty:
    """A wheel's file whose writes are passed to a function."""

    def __init__(self, file: Any, write: Callable[[Any, Any, int], None]) -> None:
        self._file = file
        self._write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any, offset: int) -> None:
        self._write(self._file, data, offset)


def test_wheel_is_not_rebuilt_after_crash_during_repeated_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated write begins with a file that differs from both entries of its sectors."""
    bench = opened(tmp_path / "store")
    for n in range(3):
        bench.store.put("t", b"%d" % n, delay=SECOND_ONE)
    bench.turn()
    bench.store.flush()
    wheel_file = wheel_file_of(inside(bench.store).wheel)
    file, copy = wheel_file.value, tmp_path / "copy"

    def full(file: Any, data: Any, offset: int) -> None:
        file.write(data, offset)
        raise FullError("no space")

    def killed_before(file: Any, data: Any, offset: int) -> None:
        shutil.copytree(bench.root, copy)
        file.write(data, offset)

    bench.store.put("other", b"x", delay=SECOND_ONE)
    bench.turn()
    monkeypatch.setattr(*wheel_file, Faulty(file, full))
    with pytest.raises(FullError):
        bench.store.flush()
    bench.store.put("other", b"y", delay=SECOND_ONE)
    bench.turn()
    monkeypatch.setattr(*wheel_file, Faulty(file, killed_before))
    bench.store.flush()
    monkeypatch.undo()
    bench.close()
    assert verify_directory(copy).clean
    assert_whole(copy, is_rebuilt=False)


def test_store_of_older_version_opens_without_checks(tmp_path: Path) -> None:
    root, _ = killed(tmp_path)
    tree = Tree(root)
    mark = watermark.read(tree.watermark.read_bytes())
    assert mark is not None
    slot = old_watermark_slot(b"TSMARK04", mark._replace(wheel_writes=0))
    tree.watermark.write_bytes(2 * slot)
    tree.wheel_checks.unlink()
    assert verify_directory(root).clean
    assert_whole(root, is_rebuilt=False)
