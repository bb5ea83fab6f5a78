"""A lost or damaged index is rebuilt, and failed writes add no entry twice."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import disk_reader as disk
from tests.support.bench import SECOND, Bench, small
from tests.support.driver import abandon
from tests.support.index_bench import CONFIG, KEYS, SLOTS
from tests.support.inside import inside, write_index_in_each_checkpoint
from tests.support.points import noted
from timerstore import FullError, TimerStore
from timerstore._engine.base import failpoints
from timerstore._engine.format import index_position
from timerstore._engine.storage.disk import File


def check_complete(store: TimerStore) -> None:
    """Check that every key finds each of its messages once."""
    for at, key in enumerate(KEYS):
        found = [message.body for message in store.query("t", key)]
        assert found == [b"%d" % n for n in range(at, 100, 12)], key
    report = store.verify()
    assert report.clean, report


def passed_in(what: Callable[[], object]) -> list[str]:
    with noted() as points:
        what()
    return points


def reopen_with_points(bench: Bench) -> list[str]:
    """Open the store, and return the fail points that it reached."""
    return passed_in(bench.open)


def positions(root: Path) -> Path:
    return root / "timerstore" / "index"


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)


LOST: dict[str, Callable[[Path], None]] = {
    "all files": lambda root: shutil.rmtree(root / "index"),
    "the first": lambda root: disk.index_files(root)[0].unlink(),
    "the newest": lambda root: disk.index_files(root)[-1].unlink(),
    "the position": lambda root: positions(root).unlink(),
    "half of one": lambda root: disk.index_files(root)[1].write_bytes(bytes(700)),
    "one is empty": lambda root: disk.index_files(root)[-1].write_bytes(b""),
    "one is longer": lambda root: os.truncate(disk.index_files(root)[0], 5000),
    "a header": lambda root: flip(disk.index_files(root)[0], 7),
    "the newest one's header": lambda root: flip(disk.index_files(root)[-1], 39),
    "the position's text": lambda root: flip(positions(root), 60),
    "the position is empty": lambda root: positions(root).write_bytes(b""),
    "side files": lambda root: shutil.rmtree(root / "timerstore"),
}


def test_reopening_rebuilds_nothing(filled: Bench) -> None:
    filled.close()
    before = [(path.name, path.read_bytes()) for path in disk.index_files(filled.root)]
    points = reopen_with_points(filled)
    assert not {"recover_index_relinked", "recover_index_removed"} & set(points)
    check_complete(filled.store)
    filled.close()
    assert before == [(path.name, path.read_bytes()) for path in disk.index_files(filled.root)]
    filled.open()


def test_entries_are_relinked_after_a_kill(filled: Bench, tmp_path: Path) -> None:
    write_index_in_each_checkpoint(inside(filled.store).dispatch.index)
    filled.store.flush()
    filled.store.put("t", b"behind", keys="behind", flush="sync")
    filled.stepper.settle()
    shutil.copytree(filled.root, tmp_path / "killed")
    abandon(filled.store)
    filled.root = tmp_path / "killed"
    points = reopen_with_points(filled)
    assert "recover_index_relinked" in points
    assert "recover_index_removed" not in points
    check_complete(filled.store)
    assert len(filled.store.query("t", "behind")) == 1


def test_bytes_after_the_end_are_zeroed(filled: Bench) -> None:
    filled.close()
    [*_, path] = disk.index_files(filled.root)
    end = disk.index_entry_position(disk.read_index_header(path).next_entry, SLOTS)
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"\xff" * (path.stat().st_size - end))
    filled.open()
    check_complete(filled.store)
    filled.close()
    assert not path.read_bytes()[end:].strip(b"\0")
    filled.open()


@pytest.mark.parametrize("what", ["new", "rebuilt"])
def test_sizes_are_known_after_a_kill_before_the_first_checkpoint_of_the_index(
    filled: Bench, what: str, tmp_path: Path
) -> None:
    """The next owner need not configure them."""
    copied = tmp_path / "killed"
    if what == "rebuilt":
        filled.close()
        flip(disk.index_files(filled.root)[0], 7)
        filled.open()
    shutil.copytree(filled.root, copied)
    abandon(filled.store)
    filled.root = copied
    filled.config = small(index_slot_count=5_000_000, index_entry_count=20_000_000)  # the defaults
    filled.open()
    assert filled.store.config.index_slot_count == SLOTS
    check_complete(filled.store)


@pytest.mark.parametrize("what", LOST)
def test_lost_or_damaged_index_is_rebuilt(filled: Bench, what: str) -> None:
    filled.close()
    LOST[what](filled.root)
    assert "recover_index_removed" in reopen_with_points(filled)
    check_complete(filled.store)
    filled.turn(40 * SECOND)
    filled.reopen()
    assert len(filled.store.query("t", KEYS[0])) == 9


def test_unknown_index_file_is_removed(filled: Bench) -> None:
    filled.close()
    stray = filled.root / "index" / "20300101000000000"
    stray.write_bytes(b"x")
    (filled.root / "index" / "notes.txt").write_text("mine")
    filled.open()
    assert not stray.exists()
    assert (filled.root / "index" / "notes.txt").exists()
    check_complete(filled.store)


def test_missing_empty_folder_is_created(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", CONFIG)
    bench.close()
    (bench.root / "index").rmdir()
    bench.open()
    bench.store.put("t", b"x", keys="k")
    bench.turn()
    assert len(bench.store.query("t", "k")) == 1
    bench.close()


@pytest.mark.parametrize("file", range(4))
@pytest.mark.parametrize("where", ["slot", "hash", "log offset", "seconds", "before", "last entry"])
def test_flipped_bit_is_detected_before_a_query(filled: Bench, file: int, where: str) -> None:
    """It is detected before a query returns."""
    filled.close()
    path = disk.index_files(filled.root)[file]
    last = disk.read_index_header(path).next_entry - 1
    entry = disk.index_entry_position(5, SLOTS)
    slot = next(n for n in range(40, 40 + 4 * SLOTS) if path.read_bytes()[n])
    at = {
        "slot": slot, "hash": entry + 3, "log offset": entry + 11, "seconds": entry + 13,
        "before": entry + 19, "last entry": disk.index_entry_position(last, SLOTS) + 2,
    }[where]  # fmt: skip
    flip(path, at)
    filled.open()
    check_complete(filled.store)
    filled.reopen()
    check_complete(filled.store)


def test_verify_names_damage_in_an_open_store(filled: Bench) -> None:
    path = disk.index_files(filled.root)[1]
    whole = path.read_bytes()
    for what, at in (
        ("index slot", 40 + 4 * SLOTS - 1),
        ("index entry", disk.index_entry_position(9, SLOTS)),
        ("index header", 30),
    ):
        raw = bytearray(whole)
        raw[at] ^= 1
        with path.open("r+b") as file:
            file.write(raw)
        problems = filled.store.verify().problems
        assert [one.what for one in problems] == [what], problems
        assert str(path) in problems[0].where
    with path.open("r+b") as file:
        file.write(whole)
    assert filled.store.verify().counts["index entries"] == 200


def test_file_may_fill_up_while_verify_reads_it(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest file has its header at an opening, and another one when it is full."""
    filled.reopen()
    index = inside(filled.store).dispatch.index
    take = index.snapshot

    def snapshot() -> object:
        found = take()
        for _ in range(100):
            filled.store.put("t", b"more", keys=KEYS[0])
        assert filled.store.query("t", KEYS[0], max_count=1)
        return found

    count = len(disk.index_files(filled.root))
    monkeypatch.setattr(index, "snapshot", snapshot)
    report = filled.store.verify()
    assert len(disk.index_files(filled.root)) > count, "the newest file was not filled"
    assert report.clean, report


def test_damage_in_an_open_store_is_repaired(filled: Bench) -> None:
    filled.reopen()
    path = disk.index_files(filled.root)[0]
    with path.open("r+b") as file:
        file.seek(disk.index_entry_position(1, SLOTS))
        file.write(b"\xff" * 20 * 40)
    check_complete(filled.store)


@pytest.mark.parametrize("call", ["reserve", "write", "sync"])
@pytest.mark.parametrize("nth", [1, 2, 3, 8])
def test_full_disk_adds_no_entry_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    """Any write of the index fails once, and is retried."""
    bench = Bench(tmp_path / "store", small(index_slot_count=3, index_entry_count=9))
    for n in range(20):
        bench.store.put("t", b"%d" % n, keys=[KEYS[n % 12], "all"])
    calls, inner = 0, getattr(File, call)

    def failing(self: File, *given: object) -> object:
        nonlocal calls
        calls += self.path.parent.name == "index"
        if self.path.parent.name == "index" and calls == nth:
            raise FullError("no space", where=self.path)
        return inner(self, *given)

    monkeypatch.setattr(File, call, failing)
    for _ in range(3):
        try:
            bench.turn()
            bench.store.flush()
        except FullError:
            continue
    monkeypatch.undo()
    assert calls >= nth or call == "sync"
    assert [m.body for m in bench.store.query("t", "all")] == [b"%d" % n for n in range(20)]
    bench.reopen()
    assert [m.body for m in bench.store.query("t", "all")] == [b"%d" % n for n in range(20)]
    bench.close()


@pytest.mark.parametrize("point", ["checkpoint_index_synced", "written"])
def test_file_is_dropped_while_the_position_is_saved(
    filled: Bench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Retention drops it. Neither thread overwrites the other's temporary file or result."""
    index = inside(filled.store).dispatch.index
    assert index is not None
    write = inside(filled.store).disk.write_small
    droppers: list[threading.Thread] = []

    def drop() -> None:
        if not droppers:
            end = int(index.files[0].native.end_offset) + 1
            droppers.append(threading.Thread(target=index.drop_below, args=(end,)))
            droppers[0].start()
            droppers[0].join(0.05)  # it may have to wait for this thread

    def write_small(path: Path, data: bytes) -> None:
        if path.name == inside(filled.store).tree.index_position.name:
            drop()
        write(path, data)

    if point == "written":
        monkeypatch.setattr(inside(filled.store).disk, "write_small", write_small)
    else:
        monkeypatch.setattr(failpoints, "hook", lambda name: drop() if name == point else None)
    index.save(inside(filled.store).log, is_clean=True)
    droppers[0].join()
    monkeypatch.undo()
    saved = index_position.read(inside(filled.store).tree.index_position.read_bytes())
    assert saved is not None
    on_disk = sorted(path.name for path in (filled.root / "index").iterdir())
    assert [state.name for state in saved.files] == on_disk
    assert len(on_disk) == 3
    parts = inside(filled.store)
    parts.dispatch.rebuild(parts.store_id)  # the log still has those messages


def test_index_is_rebuilt_while_the_position_is_saved(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved position must not be that of the old files."""
    parts = inside(filled.store)
    index = parts.dispatch.index
    assert index is not None

    def restart(name: str) -> None:
        if name == "checkpoint_index_synced":
            monkeypatch.setattr(failpoints, "hook", None)
            parts.dispatch.rebuild(parts.store_id)

    monkeypatch.setattr(failpoints, "hook", restart)
    index.save(parts.log, is_clean=True)
    saved = index_position.read(inside(filled.store).tree.index_position.read_bytes())
    assert saved is not None
    assert not saved.files
    check_complete(filled.store)
