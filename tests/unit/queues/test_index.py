"""The index's files: what is lost or damaged is made again; what failed is not added twice."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import disk_reader as disk
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.driver import abandon
from tests.support.inside import inside, write_index_in_each_checkpoint
from tests.support.points import noted
from timerstore import ConfigError, FullError, StoreConfig, TimerStore
from timerstore._engine.base import failpoints
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.format import index_position
from timerstore._engine.format.index_position import IndexFileState, IndexPosition
from timerstore._engine.format.store_paths import index_name
from timerstore._engine.storage.disk import File

SLOTS, ENTRIES = 10, 60
CONFIG = small(index_slot_count=SLOTS, index_entry_count=ENTRIES)
KEYS = [f"k{n}" for n in range(12)]


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Bench]:
    """Three files and a half, of messages that are there and of some that wait."""
    bench = Bench(tmp_path / "store", CONFIG)
    for n in range(100):
        due_ms = NOW + 40 * SECOND if n % 4 == 0 else None
        bench.store.put("t", b"%d" % n, keys=KEYS[n % 12], deliver_ms=due_ms)
    bench.turn()
    yield bench
    bench.close()


def complete(store: TimerStore) -> None:
    """Every key gives its messages, each once."""
    for at, key in enumerate(KEYS):
        found = [message.body for message in store.query("t", key)]
        assert found == [b"%d" % n for n in range(at, 100, 12)], key
    report = store.verify()
    assert report.clean, report


def passed_in(what: Callable[[], object]) -> list[str]:
    with noted() as points:
        what()
    return points


def open_again(bench: Bench) -> list[str]:
    """Which fail points opening passes."""
    return passed_in(bench.open)


# --- files as the format says ---------------------------------------------------------------------


def test_files_read_by_the_second_reader(filled: Bench) -> None:
    filled.close()
    paths = disk.index_files(filled.root)
    assert len(paths) == 4
    entries = [list(disk.iter_index(path, SLOTS)) for path in paths]
    assert [len(one) for one in entries] == [ENTRIES - 1] * 3 + [len(entries[3])]
    wanted = []
    for record in disk.records(filled.root):
        keys = [record.properties["UNIQ_KEY"], *record.properties["KEYS"].split(" ")]
        wanted += [(disk.index_hash(record.topic, key), record.position) for key in keys]
    assert [(one.key_hash, one.log_offset) for part in entries for one in part] == wanted
    for path, part in zip(paths, entries, strict=True):
        assert path.stat().st_size == 40 + 4 * SLOTS + 20 * ENTRIES
        header = disk.read_index_header(path)
        newest: dict[int, int] = {}
        for one in part:
            assert one.previous == newest.get(one.key_hash % SLOTS, 0)
            newest[one.key_hash % SLOTS] = one.number
        raw = path.read_bytes()
        slots = np.frombuffer(raw[40 : 40 + 4 * SLOTS], ">i4").tolist()
        assert slots == [newest.get(slot, 0) for slot in range(SLOTS)]
        assert header.slots_used == len(newest)
        assert header.next_entry == len(part) + 1
        assert (header.begin_offset, header.end_offset) == (part[0].log_offset, part[-1].log_offset)
        assert not raw[disk.index_entry_position(len(part) + 1, SLOTS) :].strip(b"\0")
    filled.open()


def test_seconds_are_counted_from_the_first_entry(tmp_path: Path) -> None:
    """But those of a file's first from the last of the file before."""
    bench = Bench(tmp_path / "store", small(index_slot_count=3, index_entry_count=5))
    times = [0, 999, 1000, 61_999, 70_000, 70_500, -5, 71_001, 10**13]
    for after_ms in times:
        bench.clock.set(NOW + after_ms)
        bench.store.put("t", b"x")
    bench.close()
    found = [[e.seconds for e in disk.iter_index(p, 3)] for p in disk.index_files(bench.root)]
    assert found == [[0, 0, 1, 61], [8, 0, 0, 1], [2**31 - 1]]


def test_vector() -> None:
    """The hash of a known topic and key."""
    key_hash = lib.ts_index_hash(b"TopicTest", 9, b"KEY1", 4)
    assert key_hash == 1_656_969_516
    slots, pages = np.zeros(20_000_000, np.uint8), np.zeros(4884, np.uint8)
    index = ffi.new("ts_index *")
    kept = address(slots), address(pages)
    index.slots, index.dirty_pages = kept
    index.slot_count, index.entry_count, index.next_entry = 5_000_000, 20_000_000, 1
    key = ffi.new("ts_key *", {"log_offset": 0, "store_ms": 1_700_000_000_123, "hash": key_hash})
    out = ffi.new("uint8_t[20]")
    assert lib.ts_index_append(index, key, 1, out) == 1
    assert bytes(ffi.buffer(out)).hex() == "62c3592c00000000000000000000000000000000"
    assert slots[7_878_104 - 40 :][:4].tobytes() == b"\0\0\0\1"
    assert np.flatnonzero(pages).tolist() == [(7_878_104 - 40) // 4096]


def test_names_rise_whatever_the_clock_says() -> None:
    assert len(index_name(NOW, None)) == 17
    first = index_name(NOW, None)
    assert index_name(NOW, first) > first
    assert index_name(0, first) == index_name(NOW, first)
    assert index_name(NOW + 1, first) == index_name(NOW, first)
    assert index_name(0, "20231231235959999") == "20240101000000000"
    assert index_name(0, "99999999999999998") == "99999999999999999"


def test_names_of_files_while_the_clock_stands(filled: Bench) -> None:
    names = [path.name for path in disk.index_files(filled.root)]
    assert names == sorted(set(names))
    assert names[0] == index_name(NOW, None)


# --- going on -------------------------------------------------------------------------------------


def test_closed_and_opened_nothing_is_made_again(filled: Bench) -> None:
    filled.close()
    before = [(path.name, path.read_bytes()) for path in disk.index_files(filled.root)]
    points = open_again(filled)
    assert not {"recover_index_relinked", "recover_index_removed"} & set(points)
    complete(filled.store)
    filled.close()
    assert before == [(path.name, path.read_bytes()) for path in disk.index_files(filled.root)]
    filled.open()


def test_killed_entries_are_linked_again(filled: Bench, tmp_path: Path) -> None:
    write_index_in_each_checkpoint(inside(filled.store).dispatch.index)
    filled.store.flush()
    filled.store.put("t", b"behind", keys="behind", flush="sync")
    filled.stepper.settle()
    shutil.copytree(filled.root, tmp_path / "killed")
    abandon(filled.store)
    filled.root = tmp_path / "killed"
    points = open_again(filled)
    assert "recover_index_relinked" in points
    assert "recover_index_removed" not in points
    complete(filled.store)
    assert len(filled.store.query("t", "behind")) == 1


def test_what_a_power_cut_left_behind_the_end_is_zeroed(filled: Bench) -> None:
    filled.close()
    [*_, path] = disk.index_files(filled.root)
    end = disk.index_entry_position(disk.read_index_header(path).next_entry, SLOTS)
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"\xff" * (path.stat().st_size - end))
    filled.open()
    complete(filled.store)
    filled.close()
    assert not path.read_bytes()[end:].strip(b"\0")
    filled.open()


# --- lost and damaged -----------------------------------------------------------------------------


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


@pytest.mark.parametrize("what", LOST)
def test_lost_and_made_again(filled: Bench, what: str) -> None:
    filled.close()
    LOST[what](filled.root)
    assert "recover_index_removed" in open_again(filled)
    complete(filled.store)
    filled.turn(40 * SECOND)
    filled.reopen()
    assert len(filled.store.query("t", KEYS[0])) == 9


def test_a_strange_file_is_removed(filled: Bench) -> None:
    filled.close()
    stray = filled.root / "index" / "20300101000000000"
    stray.write_bytes(b"x")
    (filled.root / "index" / "notes.txt").write_text("mine")
    filled.open()
    assert not stray.exists()
    assert (filled.root / "index" / "notes.txt").exists()
    complete(filled.store)


def test_a_folder_that_is_gone_before_anything_was_in_it(tmp_path: Path) -> None:
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
def test_a_flipped_bit_in_a_closed_store(filled: Bench, file: int, where: str) -> None:
    """It is noticed before anything is answered."""
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
    complete(filled.store)
    filled.reopen()
    complete(filled.store)


def test_verify_names_what_is_damaged_under_an_open_store(filled: Bench) -> None:
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


def test_damage_under_an_open_store_is_met_and_mended(filled: Bench) -> None:
    filled.reopen()
    path = disk.index_files(filled.root)[0]
    with path.open("r+b") as file:
        file.seek(disk.index_entry_position(1, SLOTS))
        file.write(b"\xff" * 20 * 40)
    complete(filled.store)


# --- a full disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["reserve", "write", "sync"])
@pytest.mark.parametrize("nth", [1, 2, 3, 8])
def test_a_full_disk_adds_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    """Any write of the index fails once; it goes on as if nothing had been."""
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


# --- settings -------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_directory(filled: Bench) -> None:
    filled.close()
    filled.config = small(index_slot_count=5_000_000, index_entry_count=20_000_000)  # the defaults
    filled.open()
    assert filled.store.config.index_slot_count == SLOTS
    assert filled.store.config.index_entry_count == ENTRIES
    filled.close()
    filled.config = small(index_slot_count=11, index_entry_count=61)
    with pytest.raises(ConfigError) as caught:
        filled.open()
    assert len(caught.value.problems) == 2
    filled.config = CONFIG
    filled.open()


def test_a_file_whose_sizes_nobody_knows_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "index"
    folder.mkdir(parents=True)
    (folder / "20300101000000000").write_bytes(bytes(1001))
    with pytest.raises(ConfigError, match="index_slot_count, index_entry_count"):
        Bench(tmp_path / "store", small(index_slot_count=5_000_000, index_entry_count=20_000_000))


@pytest.mark.parametrize(("slots", "entries"), [(1, 2), (1, 1000), (1000, 2), (1025, 3)])
def test_smallest_files(tmp_path: Path, slots: int, entries: int) -> None:
    bench = Bench(tmp_path / "store", small(index_slot_count=slots, index_entry_count=entries))
    for n in range(10):
        bench.store.put("t", b"%d" % n, keys=["k", f"k{n}"])
    bench.turn()
    bench.reopen()
    assert len(bench.store.query("t", "k")) == 10
    assert [m.body for m in bench.store.query("t", "k7")] == [b"7"]
    files = len(disk.index_files(bench.root))
    assert files == -(-30 // (entries - 1))
    bench.close()


def test_default_size_takes_little_space(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", StoreConfig(flush="async", staging_bytes=16_384))
    bench.store.put("t", b"x", keys="k")
    bench.turn()
    [path] = disk.index_files(bench.root)
    assert path.stat().st_size == 420_000_040
    assert path.stat().st_blocks * 512 < 24_000_000
    bench.close()


# --- the position file ----------------------------------------------------------------------------


def test_position_both_ways() -> None:
    files = (
        IndexFileState("20300101000000000", 1, 2, 3, 4, 5, 6, 7, 8),
        IndexFileState("20300101000000001", 1, 2, 3, 4, 5, 6, 7, None),
    )
    position = IndexPosition(1, 2, 3, True, 4, 5, files)
    raw = index_position.write(position)
    assert index_position.read(raw) == position
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0x01
        assert index_position.read(bytes(damaged)) in (None, position)
        assert index_position.read(raw[:at]) is None
    for other in (None, b"", b"\n", b"00000000\n", b"00000000\n[]", b"zz\n{}"):
        assert index_position.read(other) is None


def test_tags_are_entered_where_they_are_wanted_and_a_change_builds_anew(tmp_path: Path) -> None:
    def hashes() -> list[int]:
        files = disk.index_files(bench.root)
        return [one.key_hash for path in files for one in disk.iter_index(path, 50)]

    bench = Bench(tmp_path, small(index_tags=True))
    for tags in ("red", None, "blue"):
        bench.store.put("t", b"x", tags=tags, keys=["k", "l"])
    bench.store.put("t", b"x", tags="red", delay=1)
    bench.turn(1000)
    report = bench.store.verify()
    assert report.clean, report
    bench.close()
    with_tags = hashes()
    timer = "rmq_sys_wheel_timer"
    red, blue = disk.index_hash("t", "T#red"), disk.index_hash("t", "T#blue")
    assert with_tags.count(red) == 2
    assert with_tags.count(blue) == with_tags.count(disk.index_hash(timer, "T#red")) == 1
    assert with_tags[:4][-1] == red, "behind the keys"
    bench.config = small()
    bench.open()
    bench.close()
    tags = {red, blue, disk.index_hash(timer, "T#red")}
    assert hashes() == [one for one in with_tags if one not in tags]
    bench.config = small(index_tags=True)
    bench.open()
    assert len(bench.store.query("t", "k")) == 3
    bench.close()
    assert hashes() == with_tags


# --- saved while others change it -----------------------------------------------------------------


@pytest.mark.parametrize("point", ["checkpoint_index_synced", "written"])
def test_a_file_is_dropped_while_the_position_is_saved(
    filled: Bench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """By retention's thread: neither writes over the other's temporary file, nor its news."""
    index = inside(filled.store).dispatch.index
    assert index is not None
    write = inside(filled.store).disk.write_small
    droppers: list[threading.Thread] = []

    def drop() -> None:
        if not droppers:
            end = int(index.files[0].native.end_offset) + 1
            droppers.append(threading.Thread(target=index.drop_below, args=(end,)))
            droppers[0].start()
            droppers[0].join(0.05)  # it may have to wait until this one is through

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
    parts.dispatch.rebuild(parts.store_id)  # the log has those messages yet


def test_it_is_begun_anew_while_the_position_is_saved(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old files reached is not what the new ones do."""
    parts = inside(filled.store)
    index = parts.dispatch.index
    assert index is not None

    def restart(name: str) -> None:
        if name == "checkpoint_index_synced":
            monkeypatch.setattr(failpoints, "hook", None)
            parts.dispatch.rebuild(parts.store_id)

    monkeypatch.setattr(failpoints, "hook", restart)
    index.save(parts.log, is_clean=True)
    assert not inside(filled.store).tree.index_position.exists()
    complete(filled.store)
