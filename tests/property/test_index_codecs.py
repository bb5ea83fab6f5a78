"""Test the index in both directions: C against the tables of `disk_reader`, and arbitrary bytes."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.property.strategies import I32, I64, NAT63, PROPERTIES, TOPIC
from tests.support import disk_reader as disk
from timerstore._engine.base.native import ffi, lib

KEY = st.text(st.characters(min_codepoint=33, exclude_categories=["Cs", "Z"]), min_size=1)


@given(topic=TOPIC, key=st.one_of(KEY, st.text("Aa#BB0", min_size=1, max_size=60)))
def test_index_hash_matches_the_table(topic: str, key: str) -> None:
    raw = key.encode()
    got = lib.ts_index_hash(topic.encode(), len(topic), raw, len(raw))
    assert got == disk.index_hash(topic, key)


@given(
    numbers=st.tuples(I64, I64, I64, I64),
    entry_count=st.integers(2, 100_000_000), next_entry=I32, used=I32,
)  # fmt: skip
def test_index_header_round_trip(
    numbers: tuple[int, int, int, int], entry_count: int, next_entry: int, used: int
) -> None:
    index = ffi.new("ts_index *")
    index.entry_count = entry_count
    raw = disk.encode_index_header(disk.IndexHeader(*numbers, used, next_entry))
    status = lib.ts_index_header_get(index, raw)
    at = max(next_entry, 1)
    assert (status == 0) == (at <= entry_count and 0 <= used < at)
    out = ffi.new("uint8_t[40]")
    index.slots_used, index.next_entry = used, next_entry
    lib.ts_index_header_put(index, out)
    assert bytes(ffi.buffer(out)) == raw


class IndexInMemory:
    """An index file as C fills it."""

    def __init__(self, slot_count: int, entry_count: int) -> None:
        self.slots = np.zeros(4 * slot_count, np.uint8)
        self.pages = np.zeros(len(self.slots) // 4096 + 1, np.uint8)
        self.entries = np.zeros(20 * entry_count, np.uint8)
        self.native = ffi.new("ts_index *")
        self.native.slots = ffi.from_buffer("uint8_t[]", self.slots)
        self.native.dirty_pages = ffi.from_buffer("uint8_t[]", self.pages)
        self.native.slot_count, self.native.entry_count = slot_count, entry_count
        self.native.next_entry = 1

    def entry_buffer(self, number: int) -> Any:
        return ffi.from_buffer("uint8_t[]", self.entries) + 20 * number

    def read(self) -> list[tuple[int, int, int, int]]:
        raw = self.entries.tobytes()[20 : 20 * self.native.next_entry]
        return [
            (
                int.from_bytes(raw[at : at + 4], "big", signed=True),
                int.from_bytes(raw[at + 4 : at + 12], "big", signed=True),
                int.from_bytes(raw[at + 12 : at + 16], "big", signed=True),
                int.from_bytes(raw[at + 16 : at + 20], "big", signed=True),
            )
            for at in range(0, len(raw), 20)
        ]


HASHES = st.one_of(st.integers(0, 9), st.integers(0, 2**31 - 1))
ADDED = st.lists(
    st.tuples(HASHES, NAT63, st.one_of(st.integers(0, 10**13), I64)), min_size=1, max_size=60
)


@given(slot_count=st.integers(1, 12), entry_count=st.integers(2, 70), added=ADDED, cut=st.data())
def test_index_entries_match_the_table(
    slot_count: int, entry_count: int, added: list[tuple[int, int, int]], cut: st.DataObject
) -> None:
    """Add entries in parts.

    A second reader builds the same file, and relinking gives the same slots.
    """
    index = IndexInMemory(slot_count, entry_count)
    keys = ffi.new("ts_key[]", len(added))
    for at, (key_hash, log_offset, store_ms) in enumerate(added):
        keys[at].hash, keys[at].log_offset, keys[at].store_ms = key_hash, log_offset, store_ms
    done = 0
    while done < len(added):
        part = cut.draw(st.integers(1, len(added) - done))
        here = index.entry_buffer(int(index.native.next_entry))
        taken = lib.ts_index_append(index.native, keys + done, part, here)
        assert taken == min(part, entry_count - 1 - done)
        done += taken
        if taken < part:
            break
    newest: dict[int, int] = {}
    begin_ms = added[0][2]
    wanted = []
    for number, (key_hash, log_offset, store_ms) in enumerate(added[:done], 1):
        seconds = (store_ms - begin_ms) // 1000 if number > 1 and begin_ms > 0 else 0
        if store_ms - begin_ms >= 2**63 or store_ms - begin_ms < 0:
            seconds = 0
        before = newest.get(key_hash % slot_count, 0)
        wanted.append((key_hash, log_offset, min(max(seconds, 0), 2**31 - 1), before))
        newest[key_hash % slot_count] = number
    assert index.read() == wanted
    assert index.slots.view(">i4").tolist() == [newest.get(n, 0) for n in range(slot_count)]
    native = index.native
    assert (native.slots_used, native.next_entry) == (len(newest), done + 1)
    assert (native.begin_ms, native.end_ms) == (begin_ms, added[done - 1][2])
    assert (native.begin_offset, native.end_offset) == (added[0][1], added[done - 1][1])
    for key_hash in {one[0] for one in added} | {1}:
        assert found_of(index, key_hash) == [
            at for one, at, _ in reversed(added[:done]) if one == key_hash
        ]
    again = IndexInMemory(slot_count, entry_count)
    assert lib.ts_index_relink(again.native, index.entry_buffer(1), done) == 0
    assert (again.slots == index.slots).all()


def found_of(index: IndexInMemory, key_hash: int) -> list[int]:
    native = index.native
    slots = ffi.from_buffer("uint8_t[]", index.slots)
    number = ffi.new("int64_t *", lib.ts_index_slot(slots, native.slot_count, key_hash))
    out, found = ffi.new("int64_t[3]"), []
    while number[0]:
        count = lib.ts_index_find(
            index.entry_buffer(0), native.slot_count, native.next_entry, key_hash,
            native.begin_ms, -(2**63), 2**63 - 1, number, out, 3,
        )  # fmt: skip
        assert count >= 0
        found += list(out[0:count])
    return found


@given(
    entries=st.lists(st.tuples(I32, I64, I32, I32), max_size=12), slot_count=st.integers(1, 5),
    key_hash=st.integers(0, 5), number=st.integers(-2, 14), limit=st.integers(1, 12),
)  # fmt: skip
def test_index_read_of_any_bytes_ends_without_crash(
    entries: list[tuple[int, int, int, int]], slot_count: int, key_hash: int, number: int,
    limit: int,
) -> None:  # fmt: skip
    raw = b"".join(disk.encode_index_entry(*one) for one in entries).ljust(20 * 12, b"\0")
    at = ffi.new("int64_t *", number)
    out = ffi.new("int64_t[2]")
    for _ in range(20):
        count = lib.ts_index_find(
            raw, slot_count, limit, key_hash, 5, -(2**63), 2**63 - 1, at, out, 2
        )
        assert count == lib.TS_CORRUPT or 0 <= count <= 2
        if count < 0 or at[0] <= 0:
            break
    else:
        raise AssertionError("a chain without an end")
    index = IndexInMemory(slot_count, 13)
    status = lib.ts_index_relink(index.native, raw, 12)
    assert status in (lib.TS_CORRUPT, 0)


@given(
    keys=st.lists(st.one_of(st.just(""), KEY), max_size=5), unique=st.one_of(st.none(), KEY),
    others=PROPERTIES, place=st.integers(0, 3), is_ended=st.booleans(),
)  # fmt: skip
def test_keys_of_a_record_match_its_properties(
    keys: list[str], unique: str | None, others: dict[str, str], place: int, is_ended: bool
) -> None:
    """Try any order of properties, several spaces between keys, and a missing last separator."""
    pairs = list(others.items())
    pairs.insert(min(place, len(pairs)), ("KEYS", " ".join(keys)))
    if unique is not None:
        pairs.insert(place % (len(pairs) + 1), ("UNIQ_KEY", unique))
    text = b"".join(f"{name}\1{value}\2".encode() for name, value in pairs)
    text = text if is_ended else text[:-1]
    out = ffi.new("uint8_t[]", 20_000)
    host = bytes.fromhex("7f00000100002a9f")
    size = lib.ts_encode(
        out, 20_000, b"topic", 5, 0, 0, 0, 0, 0, 1, host, 77, host, b"", 0, text, len(text), 0
    )
    view = ffi.new("ts_view *")
    segments = ffi.new("uint8_t *[1]", [out])
    view.segments, view.segment_count = ffi.cast("uint8_t **", segments), 1
    view.segment_bytes, view.end = 20_000, size
    array = ffi.new("ts_key[]", 50)
    gathered = ffi.new("ts_keys *", {"at": array, "capacity": 50})
    following = ffi.new("int64_t *")
    assert lib.ts_index_keys(view, 0, following, 10, gathered) == 1
    assert following[0] == size
    parsed = disk.decode_properties(text)
    wanted = [parsed["UNIQ_KEY"]] if parsed.get("UNIQ_KEY") else []
    wanted += [key for key in parsed.get("KEYS", "").split(" ") if key]
    got = [(one.hash, one.log_offset, one.store_ms) for one in array[0 : gathered.count]]
    assert got == [(disk.index_hash("topic", key), 0, 77) for key in wanted]
    gathered.count, gathered.begin = 0, 1
    assert lib.ts_index_keys(view, 0, following, 10, gathered) == 1
    assert gathered.count == 0
