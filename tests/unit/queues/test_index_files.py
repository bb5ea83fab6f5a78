"""Index files, their names and sizes, and the position file."""

import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import disk_reader as disk
from tests.support.bench import NOW, Bench, small
from tests.support.index_bench import CONFIG, ENTRIES, SLOTS
from tests.support.inside import inside
from timerstore import ConfigError, StoreConfig
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.format import index_position
from timerstore._engine.format.index_position import IndexFileState, IndexPosition
from timerstore._engine.format.store_paths import index_name
from timerstore._engine.queues.index_file import IndexFile
from timerstore._engine.storage.disk import File


def test_files_equal_the_format(filled: Bench) -> None:
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


def test_map_of_a_file_stays_while_a_thread_reads_it(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread mapped the file at the same time, as neither had found a map."""
    filled.reopen()
    index = inside(filled.store).dispatch.index
    maps: list[weakref.ref[Any]] = []
    found: list[Any] = []
    original = File.map_read

    def map_read(file: File, size: int) -> Any:
        memory = original(file, size)
        maps.append(weakref.ref(memory))
        if len(maps) == 1:  # the other thread comes in between, and is still reading
            found.append(index.find(b"t", b"k1"))
            next(found[0])
        return memory

    monkeypatch.setattr(File, "map_read", map_read)
    mine = list(index.find(b"t", b"k1"))
    assert maps[1]() is not None, "the map is gone"
    assert len(mine) == 1 + len(list(found[0]))


def test_seconds_are_counted_from_the_first_entry(tmp_path: Path) -> None:
    """The first entry of a file counts from the last of the file before."""
    bench = Bench(tmp_path / "store", small(index_slot_count=3, index_entry_count=5))
    times = [0, 999, 1000, 61_999, 70_000, 70_500, -5, 71_001, 10**13]
    for after_ms in times:
        bench.clock.set(NOW + after_ms)
        bench.store.put("t", b"x")
    bench.close()
    found = [[e.seconds for e in disk.iter_index(p, 3)] for p in disk.index_files(bench.root)]
    assert found == [[0, 0, 1, 61], [8, 0, 0, 1], [2**31 - 1]]


def test_hash_and_entry_of_a_known_key() -> None:
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


def test_file_names_rise_when_the_clock_is_set_back() -> None:
    assert len(index_name(NOW, None)) == 17
    first = index_name(NOW, None)
    assert index_name(NOW, first) > first
    assert index_name(0, first) == index_name(NOW, first)
    assert index_name(NOW + 1, first) == index_name(NOW, first)
    assert index_name(0, "20231231235959999") == "20240101000000000"
    assert index_name(0, "99999999999999998") == "99999999999999999"


def test_file_names_differ_at_equal_times(filled: Bench) -> None:
    names = [path.name for path in disk.index_files(filled.root)]
    assert names == sorted(set(names))
    assert names[0] == index_name(NOW, None)


def test_sizes_of_the_directory_take_precedence(filled: Bench) -> None:
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


def test_file_of_unknown_sizes_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "index"
    folder.mkdir(parents=True)
    (folder / "20300101000000000").write_bytes(bytes(1001))
    with pytest.raises(ConfigError, match="index_slot_count, index_entry_count"):
        Bench(tmp_path / "store", small(index_slot_count=5_000_000, index_entry_count=20_000_000))


@pytest.mark.parametrize(("slots", "entries"), [(1, 2), (1, 1000), (1000, 2), (1025, 3)])
def test_smallest_files_hold_all_entries(tmp_path: Path, slots: int, entries: int) -> None:
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


def test_position_file_round_trips() -> None:
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


def test_tags_are_indexed_and_a_change_rebuilds_the_index(tmp_path: Path) -> None:
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
    assert with_tags[:4][-1] == red, "after the keys"
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


def test_file_is_made_again_under_its_name_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each interrupted attempt left a file of its own, until the next opening."""
    bench = Bench(tmp_path / "store", small(index_slot_count=3, index_entry_count=5))
    make = IndexFile.make

    def cut_off(*given: Any) -> IndexFile:
        make(*given)
        raise KeyboardInterrupt

    for number in range(20):  # several files
        bench.clock.advance(1000)
        bench.store.put("t", b"x", keys=f"k{number}")
        with monkeypatch.context() as patched:
            patched.setattr(IndexFile, "make", cut_off)
            for _ in range(2):
                bench.clock.advance(1000)
                with suppress(KeyboardInterrupt):
                    bench.stepper.step("dispatch")
        bench.stepper.settle()
    assert len(list((bench.root / "index").iterdir())) == 10  # of 4 entries each
    assert [len(bench.store.query("t", f"k{number}")) for number in range(20)] == [1] * 20
    bench.close()
    assert sum(len(list(disk.iter_index(path, 3))) for path in disk.index_files(bench.root)) == 40
