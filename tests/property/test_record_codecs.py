"""Test records in both directions: C against the tables of `disk_reader`, and arbitrary bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.strategies import BODY, I32, I64, NAT63, PROPERTIES, TOPIC
from tests.support import disk_reader as disk
from tests.support.inside import Disk
from tests.support.record_kind import RecordKind
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import store_paths
from timerstore._engine.log.scanned_records import PLACE_OFFSET_BITS, SCAN_DTYPE
from timerstore._engine.queues.routes import Routes


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
        assert one["kind"] == (RecordKind.ORDINARY if topic == "T" else RecordKind.UNUSABLE)
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
    assert one["kind"] == RecordKind.TIMER
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
        assert one["kind"] == RecordKind.ORDINARY
        return
    assert one["kind"] == RecordKind.LEVEL_DELIVERED
    assert (one["store_id"], one["due_ms"]) == (store_id, due_ms)
    assert one["timer_id"] == queue_id << PLACE_OFFSET_BITS | queue_offset


HERE = b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
OUT = b"TIMER_OUT_MS\x011000\x02"
EDGES: list[tuple[str, bytes, RecordKind]] = [
    ("nothing", b"", RecordKind.UNUSABLE),
    ("all there", OUT + HERE, RecordKind.TIMER),
    ("no end", OUT + HERE[:-1], RecordKind.TIMER),
    ("no out", HERE, RecordKind.UNUSABLE),
    ("no topic", OUT + b"REAL_QID\x010\x02", RecordKind.UNUSABLE),
    ("empty topic", OUT + b"REAL_TOPIC\x01\x02REAL_QID\x010\x02", RecordKind.UNUSABLE),
    ("no queue", OUT + b"REAL_TOPIC\x01T\x02", RecordKind.UNUSABLE),
    ("queue -1", OUT + b"REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02", RecordKind.UNUSABLE),
    ("queue 65536", OUT + b"REAL_TOPIC\x01T\x02REAL_QID\x0165536\x02", RecordKind.UNUSABLE),
    ("no name", OUT + b"REAL_TOPIC\x01../T\x02REAL_QID\x010\x02", RecordKind.UNUSABLE),
    ("to itself", OUT + HERE.replace(b"T\x02", b"rmq_sys_wheel_timer\x02", 1), RecordKind.UNUSABLE),
    (
        "to the levels",
        OUT + HERE.replace(b"T\x02", b"SCHEDULE_TOPIC_XXXX\x02", 1),
        RecordKind.UNUSABLE,
    ),
    ("letters", b"TIMER_OUT_MS\x01abc\x02" + HERE, RecordKind.UNUSABLE),
    ("too large", b"TIMER_OUT_MS\x0192233720368547758080\x02" + HERE, RecordKind.UNUSABLE),
    ("one is broken", b"TIMER_OUT_MS\x01x\x02" + OUT + HERE, RecordKind.UNUSABLE),
    ("level -1", b"DELAY\x01-1\x02" + OUT + HERE, RecordKind.TIMER),  # a broker uses the time then
    ("rolls", b"TIMER_ROLL_TIMES\x01x\x02" + OUT + HERE, RecordKind.TIMER),
    ("last counts", OUT + b"REAL_TOPIC\x01no\x02" + HERE, RecordKind.TIMER),
    ("no separator", b"\x02\x02junk\x02" + OUT + HERE, RecordKind.TIMER),
    ("delete", b"TIMER_DEL_UNIQKEY\x01T+K\x02" + OUT + HERE, RecordKind.DELETE),
]


@pytest.mark.parametrize(("text", "kind"), [e[1:] for e in EDGES], ids=[e[0] for e in EDGES])
def test_property_texts_at_their_edges(scanner: Scanner, text: bytes, kind: RecordKind) -> None:
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
    assert (one["kind"], one["due_ms"]) == (RecordKind.TIMER, 2000)


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
    assert (one["kind"], one["timer_id"]) == (RecordKind.TIMER, wanted)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"TIMER_OUT_MS": "1000", "REAL_TOPIC": "T"}, RecordKind.DELIVERED),
        ({"TIMER_OUT_MS": "1000", "TS_ID": disk.encode_ts_id(7, 4)}, RecordKind.DELIVERED),
        ({"TIMER_OUT_MS": "1000", "REAL_TOPIC": "U", "TS_ID": disk.encode_ts_id(7, 4)}, None),
        ({"TIMER_OUT_MS": "1000", "REAL_TOPIC": "U", "DELAY": "0"}, None),  # a dead letter
        ({"TIMER_OUT_MS": "1000"}, None),
        ({"TS_ID": disk.encode_ts_id(7, 4)}, None),
        ({"DELAY": "1", "REAL_TOPIC": "T"}, RecordKind.LEVEL_DELIVERED),
        ({"DELAY": "1", "REAL_TOPIC": "U"}, None),
        ({"DELAY": "1"}, None),
    ],
)
def test_forwarded_message_is_not_a_delivery(
    scanner: Scanner, given: dict[str, str], kind: RecordKind | None
) -> None:
    [one], _, _ = scanner.scan(record("T", disk.encode_properties(given)))
    assert one["kind"] == (RecordKind.ORDINARY if kind is None else kind)


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
