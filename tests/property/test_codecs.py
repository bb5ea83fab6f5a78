"""Test each format in both directions, and with arbitrary bytes.

C reads the files that `disk_reader` writes, and the reverse. `disk_reader` knows the formats only
from their tables. The stores are written by the engine itself, with plain calls.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import disk_reader as disk
from tests.support.driver import START_MS, tiny
from timerstore import PullStatus, StoreConfig, TimerStore
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import store_paths
from timerstore._engine.log.scanned_records import PLACE_OFFSET_BITS, SCAN_DTYPE, Kind
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.disk import Disk
from timerstore.testing import ManualClock, Stepper

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAT63 = st.integers(0, 2**63 - 1)
TOPIC = st.text("abcXYZ019_-%", min_size=1, max_size=255)
NAME = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=3, max_size=8)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=30)
PROPERTIES = st.dictionaries(NAME, VALUE, max_size=6)
BODY = st.binary(max_size=300)


# --- records ---


@given(
    topic=TOPIC, queue_id=I32, queue_offset=I64, log_offset=I64, flag=I32, born_ms=I64,
    store_ms=I64, born_v6=st.booleans(), store_v6=st.booleans(), body=BODY,
    properties=PROPERTIES, property_crc=st.booleans(), compressed=st.booleans(), hosts=st.data(),
)  # fmt: skip
def test_c_writes_records_by_the_table(
    topic: str, queue_id: int, queue_offset: int, log_offset: int, flag: int, born_ms: int,
    store_ms: int, born_v6: bool, store_v6: bool, body: bytes,
    properties: dict[str, str], property_crc: bool, compressed: bool, hosts: st.DataObject,
) -> None:  # fmt: skip
    sys_flag = disk.BORN_IPV6 * born_v6 | disk.STORE_IPV6 * store_v6 | compressed
    size = [20 if v6 else 8 for v6 in (born_v6, store_v6)]
    raw_hosts = [
        hosts.draw(st.binary(min_size=n - 4, max_size=n - 4))
        + hosts.draw(st.integers(0, 65_535)).to_bytes(4, "big")
        for n in size
    ]
    text = disk.encode_properties(properties)
    out = ffi.new("uint8_t[]", 20_000)
    got = lib.ts_encode(
        out, 20_000, topic.encode(), len(topic), queue_id, queue_offset, log_offset, flag, sys_flag,
        born_ms, raw_hosts[0], store_ms, raw_hosts[1], body, len(body), text, len(text),
        property_crc,
    )  # fmt: skip
    raw = bytes(ffi.buffer(out, got))
    assert raw == disk.encode_record(
        topic,
        body,
        text,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        log_offset=log_offset,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_address=disk.decode_host(raw_hosts[0]),
        store_ms=store_ms,
        store_host=disk.decode_host(raw_hosts[1]),
        property_crc=property_crc,
        version=1 if len(topic) <= 127 else 2,
    )
    found = disk.decode_record(raw, log_offset)
    assert (found.topic, found.raw_body) == (topic, body)
    assert found.body_crc_holds
    assert found.property_crc_holds is (True if property_crc else None)


class Scanner:
    """`ts_scan` over bytes in memory, with routes for two topics."""

    def __init__(self, root: Path) -> None:
        self.routes = Routes(Disk(), store_paths.Tree(root), 200)
        self.routes.make("T", 0, 0, persist=False)
        self.routes.make(disk.TIMER_TOPIC, 0, 0, persist=False)

    def scan(self, data: bytes) -> tuple[Any, int, int]:
        """Return the records, the end or a status, and the fault."""
        buffer = np.frombuffer(data.ljust(64, b"\0"), np.uint8).copy()
        held = ffi.from_buffer("uint8_t[]", buffer)
        view = ffi.new("ts_view *")
        table = ffi.new("const uint8_t *[]", [held])
        view.segments, view.segment_count, view.segment_bytes = table, 1, len(buffer)
        view.end = len(buffer)
        out = np.zeros(64, SCAN_DTYPE)
        following = ffi.new("int64_t *")
        got = lib.ts_scan(
            view, self.routes.native, 1000, 0, following, 64, ffi.from_buffer("ts_scanned[]", out)
        )
        return out[: max(0, got)], following[0] if got >= 0 else got, view.fault


@pytest.fixture(scope="module")
def scanner(tmp_path_factory: pytest.TempPathFactory) -> Scanner:
    return Scanner(tmp_path_factory.mktemp("scanner"))


def record(topic: str, properties: bytes, at: int = 0, body: bytes = b"x", **fields: Any) -> bytes:
    return disk.encode_record(topic, body, properties, log_offset=at, **fields)


@given(
    items=st.lists(
        st.tuples(st.sampled_from(["T", disk.TIMER_TOPIC]), BODY, PROPERTIES, st.booleans()),
        max_size=6,
    )
)
def test_c_reads_records_by_the_table(
    scanner: Scanner, items: list[tuple[str, bytes, dict[str, str], bool]]
) -> None:
    log = b""
    for n, (topic, body, properties, crc) in enumerate(items):
        log += disk.encode_record(
            topic, body, properties, log_offset=len(log), queue_offset=n, store_ms=7 + n,
            property_crc=crc,
        )  # fmt: skip
    found, end, fault = scanner.scan(log + bytes(64))
    assert (len(found), end, fault) == (len(items), len(log), lib.TS_FAULT_END)
    at = 0
    for n, (one, (topic, *_)) in enumerate(zip(found, items, strict=True)):
        assert (one["log_offset"], one["queue_offset"], one["store_ms"]) == (at, n, 7 + n)
        assert one["kind"] == (Kind.ORDINARY if topic == "T" else Kind.UNUSABLE)
        at += one["size"]


@given(
    real=st.integers(0, 2**31 - 1), out_ms=NAT63, deliver_ms=NAT63, relative=st.booleans(),
    store_id=st.integers(0, 2**32 - 1), timer_id=NAT63, rolls=st.integers(0, 2**31 - 1),
)  # fmt: skip
def test_c_reads_every_timer_property(
    scanner: Scanner, real: int, out_ms: int, deliver_ms: int, relative: bool,
    store_id: int, timer_id: int, rolls: int,
) -> None:  # fmt: skip
    out_ms = min(out_ms, 2**63 - 1001)
    properties = {
        "UNIQ_KEY": "K", "TIMER_DELIVER_MS": str(deliver_ms), "TIMER_OUT_MS": str(out_ms),
        "REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_ROLL_TIMES": str(rolls),
        "TS_ID": disk.encode_ts_id(store_id, timer_id),
    }  # fmt: skip
    if relative:
        properties["TIMER_DELAY_MS"] = "5"
    data = record(disk.TIMER_TOPIC, disk.encode_properties(properties))
    [one], end, _ = scanner.scan(data)
    assert end == len(data)
    assert one["kind"] == Kind.TIMER
    assert one["out_ms"] == out_ms
    assert one["due_ms"] == (out_ms + 1000 if relative else deliver_ms)
    assert (one["store_id"], one["timer_id"]) == (store_id, timer_id)
    assert one["roll_times"] == rolls


@given(
    store_id=st.integers(0, 2**32 - 1), queue_id=st.integers(0, 2**15 - 1),
    queue_offset=st.integers(0, 2**48 - 1), due_ms=st.integers(0, 2**48 - 1),
    level=st.integers(0, 2**31 - 1),
)  # fmt: skip
def test_c_reads_every_level_mark(
    scanner: Scanner, store_id: int, queue_id: int, queue_offset: int, due_ms: int, level: int
) -> None:
    properties = {
        "UNIQ_KEY": "K", "DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0",
        "TS_LEVEL": disk.encode_ts_level(store_id, queue_id, queue_offset, due_ms),
    }  # fmt: skip
    assert disk.decode_ts_level(properties["TS_LEVEL"]) == (
        store_id, queue_id, queue_offset, due_ms,
    )  # fmt: skip
    [one], _, _ = scanner.scan(record("T", disk.encode_properties(properties)))
    if not level:  # forwarded by a client: it was no delayed level message
        assert one["kind"] == Kind.ORDINARY
        return
    assert one["kind"] == Kind.LEVEL_DELIVERED
    assert (one["store_id"], one["due_ms"]) == (store_id, due_ms)
    assert one["timer_id"] == queue_id << PLACE_OFFSET_BITS | queue_offset


HERE = b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
OUT = b"TIMER_OUT_MS\x011000\x02"
EDGES: list[tuple[str, bytes, Kind]] = [
    ("nothing", b"", Kind.UNUSABLE),
    ("all there", OUT + HERE, Kind.TIMER),
    ("no end", OUT + HERE[:-1], Kind.TIMER),
    ("no out", HERE, Kind.UNUSABLE),
    ("no topic", OUT + b"REAL_QID\x010\x02", Kind.UNUSABLE),
    ("empty topic", OUT + b"REAL_TOPIC\x01\x02REAL_QID\x010\x02", Kind.UNUSABLE),
    ("no queue", OUT + b"REAL_TOPIC\x01T\x02", Kind.UNUSABLE),
    ("queue -1", OUT + b"REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02", Kind.UNUSABLE),
    ("queue 65536", OUT + b"REAL_TOPIC\x01T\x02REAL_QID\x0165536\x02", Kind.UNUSABLE),
    ("no name", OUT + b"REAL_TOPIC\x01../T\x02REAL_QID\x010\x02", Kind.UNUSABLE),
    ("to itself", OUT + HERE.replace(b"T\x02", b"rmq_sys_wheel_timer\x02", 1), Kind.UNUSABLE),
    ("to the levels", OUT + HERE.replace(b"T\x02", b"SCHEDULE_TOPIC_XXXX\x02", 1), Kind.UNUSABLE),
    ("letters", b"TIMER_OUT_MS\x01abc\x02" + HERE, Kind.UNUSABLE),
    ("too large", b"TIMER_OUT_MS\x0192233720368547758080\x02" + HERE, Kind.UNUSABLE),
    ("one is broken", b"TIMER_OUT_MS\x01x\x02" + OUT + HERE, Kind.UNUSABLE),
    ("level -1", b"DELAY\x01-1\x02" + OUT + HERE, Kind.TIMER),  # a broker uses the time then
    ("rolls", b"TIMER_ROLL_TIMES\x01x\x02" + OUT + HERE, Kind.TIMER),
    ("last counts", OUT + b"REAL_TOPIC\x01no\x02" + HERE, Kind.TIMER),
    ("no separator", b"\x02\x02junk\x02" + OUT + HERE, Kind.TIMER),
    ("delete", b"TIMER_DEL_UNIQKEY\x01T+K\x02" + OUT + HERE, Kind.DELETE),
]


@pytest.mark.parametrize(("text", "kind"), [e[1:] for e in EDGES], ids=[e[0] for e in EDGES])
def test_property_texts_at_their_edges(scanner: Scanner, text: bytes, kind: Kind) -> None:
    found, end, _ = scanner.scan(record(disk.TIMER_TOPIC, text))
    assert found["kind"].tolist() == [kind]
    assert end > 0


@pytest.mark.parametrize("asked", ["abc", "-1", "9" * 20, "\u0661"])
def test_absolute_time_is_ignored_when_a_relative_delay_is_given(
    scanner: Scanner, asked: str
) -> None:
    """A relative delay takes precedence, whatever the absolute time is."""
    text = disk.encode_properties({"TIMER_DELAY_SEC": "5", "TIMER_DELIVER_MS": asked})
    [one], _, _ = scanner.scan(record(disk.TIMER_TOPIC, text + OUT + HERE))
    assert (one["kind"], one["due_ms"]) == (Kind.TIMER, 2000)


@pytest.mark.parametrize(
    ("timer_id", "more", "wanted"),
    [
        (9, {}, 9),
        (4, {}, -1),
        (4, {"TIMER_ROLL_TIMES": "1"}, 4),
        (4, {"TS_PLACE": disk.encode_ts_id(7, 9)}, 4),
        (4, {"TS_PLACE": disk.encode_ts_id(7, 8)}, -1),
        (4, {"TS_PLACE": disk.encode_ts_id(6, 9)}, -1),
        (12, {}, 12),  # of another store
    ],
)
def test_timer_id_of_a_forwarded_message_is_ignored(
    scanner: Scanner, timer_id: int, more: dict[str, str], wanted: int
) -> None:
    text = disk.encode_properties({"TS_ID": disk.encode_ts_id(7, timer_id), **more})
    [one], _, _ = scanner.scan(record(disk.TIMER_TOPIC, text + OUT + HERE, queue_offset=9))
    assert (one["kind"], one["timer_id"]) == (Kind.TIMER, wanted)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"TIMER_OUT_MS": "1000", "REAL_TOPIC": "T"}, Kind.DELIVERED),
        ({"TIMER_OUT_MS": "1000", "TS_ID": disk.encode_ts_id(7, 4)}, Kind.DELIVERED),
        ({"TIMER_OUT_MS": "1000", "REAL_TOPIC": "U", "TS_ID": disk.encode_ts_id(7, 4)}, None),
        ({"TIMER_OUT_MS": "1000", "REAL_TOPIC": "U", "DELAY": "0"}, None),  # a dead letter
        ({"TIMER_OUT_MS": "1000"}, None),
        ({"TS_ID": disk.encode_ts_id(7, 4)}, None),
        ({"DELAY": "1", "REAL_TOPIC": "T"}, Kind.LEVEL_DELIVERED),
        ({"DELAY": "1", "REAL_TOPIC": "U"}, None),
        ({"DELAY": "1"}, None),
    ],
)
def test_forwarded_message_is_not_a_delivery(
    scanner: Scanner, given: dict[str, str], kind: Kind | None
) -> None:
    [one], _, _ = scanner.scan(record("T", disk.encode_properties(given)))
    assert one["kind"] == (Kind.ORDINARY if kind is None else kind)


@pytest.mark.parametrize("value", ["", "A" * 15, "A" * 17, "A" * 15 + "=", "A" * 15 + "+"])
def test_invalid_timer_id_counts_as_absent(scanner: Scanner, value: str) -> None:
    text = disk.encode_properties({"TS_ID": value, "TIMER_OUT_MS": "1000", "REAL_TOPIC": "T"})
    [one], _, _ = scanner.scan(record(disk.TIMER_TOPIC, text + b"REAL_QID\x010\x02"))
    assert one["timer_id"] == -1


@given(data=st.binary(max_size=600), valid_head=st.booleans())
def test_scan_of_any_bytes_ends_without_crash(
    scanner: Scanner, data: bytes, valid_head: bool
) -> None:
    if valid_head:
        data = record("T", b"a\x01b\x02") + data
    found, end, fault = scanner.scan(data)
    if isinstance(end, int) and end < 0:
        assert end in (lib.TS_NEED_ROUTE, lib.TS_CORRUPT)
    assert fault != lib.TS_FAULT_NONE or not len(found)
    assert len(found) >= valid_head


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), property_crc=st.booleans())
def test_flipped_bit_of_a_record_with_its_own_crc_is_detected(
    scanner: Scanner, at: int, bit: int, property_crc: bool
) -> None:
    """Without this CRC, flips outside the body may be missed, but the scan must not crash."""
    text = disk.encode_properties({"KEYS": "k", "UNIQ_KEY": "u"})
    data = bytearray(record("T", text, body=b"body", property_crc=property_crc))
    data[at % len(data)] ^= 1 << bit
    found, end, _ = scanner.scan(bytes(data))
    if property_crc:
        # A flip in the name of the CRC makes it an ordinary property, and only the body's CRC is
        # left.
        in_crc = at % len(data) >= len(data) - disk.CRC_BYTES
        assert in_crc or not len(found) or end == lib.TS_NEED_ROUTE


# --- small files ---


@given(st.tuples(*[I64] * 7))
def test_timer_check_round_trip(fields: tuple[int, ...]) -> None:
    out = ffi.new("uint8_t[56]")
    lib.ts_timer_check_pack(ffi.new("int64_t[]", fields), out)
    assert bytes(ffi.buffer(out)) == disk.encode_timer_check(disk.TimerCheck(*fields))
    back = ffi.new("int64_t[7]")
    assert lib.ts_timer_check_unpack(out, 56, back) == 0
    assert tuple(back) == fields
    assert lib.ts_timer_check_unpack(out, 32, back) == 0
    assert tuple(back) == (*fields[:4], 0, 0, 0)
    assert lib.ts_timer_check_unpack(out, 31, back) == lib.TS_CORRUPT


@given(st.tuples(*[I64] * 5))
def test_checkpoint_matches_the_table(fields: tuple[int, ...]) -> None:
    out = ffi.new("uint8_t[40]")
    lib.ts_store_checkpoint_pack(ffi.new("int64_t[]", fields), out)
    assert bytes(ffi.buffer(out)) == disk.encode_checkpoint(disk.Checkpoint(*fields))


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**20)), max_size=40), NAT63)
def test_units_below_counts_records_up_to_an_offset(
    rows: list[tuple[int, int]], limit: int
) -> None:
    rows = sorted(rows)
    ends = np.maximum.accumulate([at + size for at, size in rows]) if rows else []
    rows = [(int(end) - size, size) for end, (_, size) in zip(ends, rows, strict=True)]
    data = b"".join(disk.encode_queue_unit(at, size, 0) for at, size in rows)
    limit %= 2**41
    wanted = sum(at + size <= limit for at, size in rows)
    assert lib.ts_units_below(data, len(rows), limit) == wanted


# --- the files of a store ---

PUT = st.tuples(
    st.sampled_from(["orders", "mail"]),
    st.binary(min_size=1, max_size=400),
    st.one_of(st.just(0), st.integers(1, 200_000)),  # ms from now
    st.one_of(st.none(), st.text("abc", min_size=1, max_size=5)),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(max_examples=25)
@given(
    puts=st.lists(PUT, max_size=40), cancels=st.sets(st.integers(0, 39)), ms=st.integers(0, 90_000)
)
def test_files_of_a_closed_store_match_the_tables(
    folder: Path, puts: list[tuple[str, bytes, int, str | None]], cancels: set[int], ms: int
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        check_store(Path(name), tiny(1000, "async"), puts, cancels, ms)


def check_store(
    root: Path,
    config: StoreConfig,
    puts: list[tuple[str, bytes, int, str | None]],
    cancels: set[int],
    ms: int,
) -> None:
    clock = ManualClock(START_MS)
    receipts = []
    with TimerStore(root, config, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        for topic, body, delay_ms, tags in puts:
            due_ms = START_MS + delay_ms if delay_ms else None
            receipts.append(store.put(topic, body, deliver_ms=due_ms, tags=tags))
        stepper.settle()
        for n in cancels:
            if n < len(receipts):
                store.cancel(receipts[n])
        clock.advance(ms)
        stepper.settle()
        pending = {one.message_id: one for one in store.pending()}
        pulled = []
        for topic in {topic for topic, *_ in puts}:
            batch = store.pull_batch(topic, 0, 0)
            assert batch.status in (PullStatus.FOUND, PullStatus.NO_MESSAGE_IN_QUEUE)
            pulled += list(batch)
    records = {one.position: one for one in disk.records(root)}
    for one in records.values():
        assert one.body_crc_holds
        assert one.property_crc_holds
        assert one.log_offset == one.position
    for (topic, body, delay_ms, tags), receipt in zip(puts, receipts, strict=True):
        source = records[receipt.log_offset]
        assert (source.raw_body, source.properties["UNIQ_KEY"]) == (body, receipt.message_id)
        assert source.properties.get("TAGS") == tags
        assert (source.born_ms, source.store_ms) == (START_MS, START_MS)
        assert source.topic == (disk.TIMER_TOPIC if delay_ms else topic)
        if delay_ms:
            due_ms = START_MS + delay_ms
            assert source.properties["TIMER_DELIVER_MS"] == str(due_ms)
            assert source.properties["TIMER_OUT_MS"] == str((due_ms - 1) // 1000 * 1000)
            assert (source.properties["REAL_TOPIC"], source.properties["REAL_QID"]) == (topic, "0")
            assert source.timer_id is not None
            assert source.timer_id[1] == source.queue_offset
    check_pulled(records, pulled)
    check_queues(root, records)
    check_timer(root, records, set(pending), START_MS + ms)


def check_pulled(records: dict[int, disk.Record], pulled: list[Any]) -> None:
    for message in pulled:
        one = records[message.log_offset]
        assert (one.topic, one.raw_body, one.queue_offset) == (
            message.topic, message.body, message.queue_offset,
        )  # fmt: skip
        assert one.properties == message.properties
        assert one.store_ms == message.delivered_ms >= message.due_ms


def check_queues(root: Path, records: dict[int, disk.Record]) -> None:
    expected: dict[tuple[str, int], list[disk.Record]] = {}
    for one in records.values():
        expected.setdefault((one.topic, one.queue_id), []).append(one)
    for (topic, queue_id), wanted in expected.items():
        units = list(disk.iter_queue(root, topic, queue_id))
        found = [(u.queue_offset, u.log_offset, u.size, u.tags_code) for u in units]
        assert found == [
            (
                one.queue_offset,
                one.position,
                one.size,
                disk.java_hash(one.properties.get("TAGS", "")),
            )
            for one in wanted
        ]


def check_timer(
    root: Path, records: dict[int, disk.Record], pending: set[str], now_ms: int
) -> None:
    queued = [one for one in records.values() if one.topic == disk.TIMER_TOPIC]
    units = list(disk.timer_units(root))
    assert [unit.log_offset for unit in units] == [one.position for one in queued]
    for unit, one in zip(units, queued, strict=True):
        assert unit.store_size == one.size
        assert unit.is_sealed
        assert unit.topic_hash == disk.java_hash(one.properties["REAL_TOPIC"])
        assert unit.prev_pos < unit.pos
    check = disk.read_timer_check(root)
    assert check is not None
    assert check.queue_offset == len(queued)
    waiting = set()
    for slot in disk.iter_slots(root):
        for unit in disk.chain(root, slot):
            assert unit.slot_ms == slot.slot_ms(1000)
            one = records[unit.log_offset]
            if slot.slot_ms(1000) >= check.read_ms and not unit.magic & disk.TIMER_DELETE:
                waiting.add(one.properties["UNIQ_KEY"])
    assert pending <= waiting, "a broker would not find what waits"
    stored = disk.read_checkpoint(root)
    assert stored is not None
    assert stored.log_ms == max((one.store_ms for one in records.values()), default=0)
    assert not disk.is_unclean(root)
    counts = disk.read_timer_metrics(root)
    assert sum(counts.values()) == len(pending)


# --- the index ---

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
