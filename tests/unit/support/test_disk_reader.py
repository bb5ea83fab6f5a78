"""The second reader against the format's test vectors, both ways, and its own edges."""

import os
import struct
from pathlib import Path

import pytest

from tests.support import disk_reader as disk

BORN_MS, STORE_MS = 1700000000000, 1700000000123

PLAIN = bytes.fromhex(
    "00000073 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000000 00000000"
    "0000018bcfe56800 7f000001 00009c40 0000018bcfe5687b 7f000001 00002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 09 546f70696354657374 000a 544147530154616741 02"
)
WITH_CRC = (
    struct.pack(">i", 135)
    + PLAIN[4:-12]
    + bytes.fromhex("001e")
    + b"TAGS\x01TagA\x02__CRC32#\x015503154901\x02"
)


def encode_example(**changes: object) -> bytes:
    arguments: dict[str, object] = {
        "topic": "TopicTest",
        "body": b"hello",
        "properties": {"TAGS": "TagA"},
        "queue_id": 3,
        "queue_offset": 7,
        "born_ms": BORN_MS,
        "born_address": "127.0.0.1:40000",
        "store_ms": STORE_MS,
        "store_host": "127.0.0.1:10911",
    }
    return disk.encode_record(**(arguments | changes))  # type: ignore[arg-type]


def test_record_vector_round_trips() -> None:
    assert len(PLAIN) == 115
    assert encode_example() == PLAIN
    record = disk.decode_record(PLAIN, 0)
    assert (record.queue_id, record.queue_offset, record.log_offset) == (3, 7, 0)
    assert (record.born_ms, record.store_ms) == (BORN_MS, STORE_MS)
    assert (record.born_address, record.store_host) == ("127.0.0.1:40000", "127.0.0.1:10911")
    assert record.born_host == "127.0.0.1"
    assert (record.topic, record.body) == ("TopicTest", b"hello")
    assert record.properties == {"TAGS": "TagA"}
    assert record.body_crc == 0x3610A686
    assert record.body_crc_holds
    assert record.property_crc is None
    assert record.property_crc_holds is None


def test_property_crc_vector_round_trips() -> None:
    assert len(WITH_CRC) == 135
    assert encode_example(property_crc=True) == WITH_CRC
    record = disk.decode_record(WITH_CRC, 0)
    assert record.property_crc == 1094513055
    assert record.property_crc_holds
    assert record.properties == {"TAGS": "TagA", "__CRC32#": "5503154901"}


@pytest.mark.parametrize("at", [0, 5, 50, 90, 104, 120])
def test_property_crc_detects_a_flipped_bit(at: int) -> None:
    broken = bytearray(WITH_CRC)
    broken[at] ^= 1
    try:
        record = disk.decode_record(bytes(broken), 0)
    except ValueError:
        return
    assert not record.property_crc_holds


def test_property_crc_is_read_only_at_the_end() -> None:
    stale = encode_example(properties=b"__CRC32#\x015503154901\x02TAGS\x01TagA\x02")
    assert disk.decode_record(stale, 0).property_crc is None


def test_queue_unit_vectors_round_trip() -> None:
    tag = disk.java_hash("TagA")
    first = bytes.fromhex("0000000000000000 00000073 000000000027a807")
    second = bytes.fromhex("0000000000000073 00000073 ffffffff8e987641")
    assert disk.encode_queue_unit(0, 115, tag) == first
    assert disk.encode_queue_unit(115, 115, disk.java_hash("TopicTest")) == second
    assert disk.decode_queue_unit(first, 4) == disk.QueueUnit(4, 0, 115, 2598919)
    assert disk.decode_queue_unit(second, 5) == disk.QueueUnit(5, 115, 115, -1902610879)


def test_blank_vector_is_encoded() -> None:
    assert disk.encode_blank(1000) == bytes.fromhex("000003e8 cbd43194")
    assert disk.encode_timer_blank(16) == bytes.fromhex("00000010 0000000000000000 cbd43194")


def test_timer_unit_vector_round_trips() -> None:
    data = bytes.fromhex(
        "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00001388 0000001122334455"
        "0000012c 8e987641 0000000000000000"
    )
    topic_hash = disk.java_hash("TopicTest")
    made = disk.encode_timer_unit(
        -1, 1, BORN_MS, 5000, 0x1122334455, store_size=300, topic_hash=topic_hash
    )
    assert made == data
    unit = disk.decode_timer_unit(data, 104)
    assert unit.is_valid
    assert unit.slot_ms == BORN_MS + 5000
    assert unit[:5] == (104, 52, -1, 1, BORN_MS)
    assert unit[5:] == (5000, 0x1122334455, 300, topic_hash, 0)


def test_slot_vector_round_trips() -> None:
    data = bytes.fromhex("000000006553f105 0000000000000068 0000000000000138 00000003 00000000")
    slot_ms = 1700000005000
    assert disk.slot_index(slot_ms, 1000) == 512005
    assert 512005 * disk.SLOT_BYTES == 16384160
    assert disk.encode_slot(slot_ms // 1000, 104, 312, 3) == data
    slot = disk.decode_slot(data, 512005)
    assert slot == disk.Slot(512005, 1700000005, 104, 312, 3, 0)
    assert slot.slot_ms(1000) == slot_ms


def test_timer_check_vector_round_trips() -> None:
    data = bytes.fromhex(
        "0000018bcfe577a0 000000000000cb20 0000000000000384 0000000000000389"
        "0000000000000000 0000018bcfe578e1 000000000000002a"
    )
    check = disk.TimerCheck(1700000004000, 52000, 900, 905, 0, 1700000004321, 42)
    assert disk.encode_timer_check(check) == data
    assert disk.decode_timer_check(data + bytes(4040)) == check
    assert disk.decode_timer_check(data[:32]) == (*check[:4], 0, 0, 0)


def test_checkpoint_round_trips() -> None:
    check = disk.Checkpoint(1, 2, 3, 4, 5)
    data = disk.encode_checkpoint(check)
    assert len(data) == 40
    assert disk.decode_checkpoint(data + bytes(4056)) == check


def test_message_id_and_handle_vectors_match() -> None:
    host = "127.0.0.1:10911"
    assert disk.offset_message_id(host, 1000) == "7F00000100002A9F00000000000003E8"
    handle = (
        "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMDAw"
        "MDEgN0YwMDAwMDEwQTFCMThCNEFBQzIwMDAwMDAwMDAwMDA="
    )
    fields = ("TopicTest", "broker-a", 1700000000001, "7F0000010A1B18B4AAC2000000000000")
    assert disk.encode_recall_handle(*fields) == handle
    assert disk.decode_recall_handle(handle) == fields


def test_index_vector_round_trips() -> None:
    key_hash = disk.index_hash("TopicTest", "KEY1")
    assert key_hash == 1656969516
    assert disk.index_slot_position(key_hash) == 7878104
    assert disk.index_entry_position(1) == 20000060
    data = bytes.fromhex("62c3592c 0000000000000000 00000000 00000000")
    assert disk.encode_index_entry(key_hash, 0, 0, 0) == data
    header = disk.IndexHeader(1, 2, 3, 4, 5, 6)
    assert disk.decode_index_header(disk.encode_index_header(header)) == header


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TopicTest", -1902610879),
        ("_RECALL_TAG_", -847619372),
        ("\u4e2d\u6587", 646394),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash_vectors_match(text: str, value: int) -> None:
    assert disk.java_hash(text) == value


def test_crc_vectors_match() -> None:
    assert disk.stored_crc(b"123456789") == 1274296614
    assert disk.stored_crc(b"0") == 1960566561


def test_ts_id_round_trips() -> None:
    text = disk.encode_ts_id(0xFFEEDDCC, 2**63)
    assert len(text) == 16
    assert disk.decode_ts_id(text) == (0xFFEEDDCC, 2**63)
    for wrong in ("", text[:-1], text + "A", text[:-1] + "=", text[:-1] + "/"):
        assert disk.decode_ts_id(wrong) is None


def test_properties_are_read_without_the_last_terminator() -> None:
    pairs = {"TAGS": "T", "ключ": "значение"}
    for final in (True, False):
        assert disk.decode_properties(disk.encode_properties(pairs, final=final)) == pairs
    assert disk.decode_properties(b"EMPTY\x01\x02a\x01b\x02a\x01c") == {"a": "c"}
    assert disk.decode_properties(b"") == {}


@pytest.mark.parametrize("born", ["127.0.0.1:1", "[::1]:65535"])
@pytest.mark.parametrize("stored", ["10.0.0.1:2", "[fe80::1]:3"])
@pytest.mark.parametrize("version", [1, 2])
def test_hosts_of_both_families_round_trip_in_both_versions(
    born: str, stored: str, version: int
) -> None:
    data = encode_example(born_address=born, store_host=stored, version=version)
    extra = 12 * (born[0] == "[") + 12 * (stored[0] == "[") + (version - 1)
    assert len(data) == len(PLAIN) + extra
    record = disk.decode_record(data, 0)
    assert (record.born_address, record.store_host) == (born, stored)
    assert (record.topic, record.body, record.queue_offset) == ("TopicTest", b"hello", 7)


def make_log(root: Path, segment_bytes: int, count: int) -> list[bytes]:
    """Return a log of `count` records over as many segments as it takes, blanks between them."""
    made: list[bytes] = []
    files: dict[int, bytearray] = {0: bytearray()}
    start = 0
    for number in range(count):
        at = start + len(files[start])
        data = encode_example(log_offset=at, queue_offset=number)
        left = segment_bytes - len(files[start])
        if len(data) + 8 > left:
            files[start] += disk.encode_blank(left)
            start += segment_bytes
            files[start] = bytearray()
            data = encode_example(log_offset=start, queue_offset=number)
        files[start] += data
        made.append(data)
    (root / "commitlog").mkdir(parents=True)
    for begin, content in files.items():
        path = root / "commitlog" / f"{begin:020d}"
        path.write_bytes(content)
        os.truncate(path, segment_bytes)
    return made


def test_log_continues_after_blanks_and_stops_at_zeros(tmp_path: Path) -> None:
    made = make_log(tmp_path, 512, 10)
    assert [record.raw for record in disk.records(tmp_path)] == made
    blanks = [item for item in disk.iter_log(tmp_path) if isinstance(item, disk.Blank)]
    assert [(item.position, item.size) for item in blanks] == [(460, 52), (972, 52)]
    assert disk.log_end(tmp_path) == disk.LogEnd(1024 + 2 * 115, "zeros")


def test_log_stops_at_each_kind_of_damage(tmp_path: Path) -> None:
    made = make_log(tmp_path, 4096, 4)
    path = tmp_path / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    for at, reason in ((4, "magic"), (88, "body CRC"), (35, "PHYSICALOFFSET"), (0, "size")):
        broken = bytearray(whole)
        broken[2 * 115 + at] ^= 0x40
        path.write_bytes(broken)
        assert [record.raw for record in disk.records(tmp_path)] == made[:2]
        end = disk.log_end(tmp_path)
        assert end.position == 230
        assert reason in end.reason


def test_missing_segment_ends_the_log(tmp_path: Path) -> None:
    make_log(tmp_path, 512, 10)
    (tmp_path / "commitlog" / f"{512:020d}").unlink()
    assert disk.log_end(tmp_path) == disk.LogEnd(512, "next segment starts at 1024")


def test_used_slots_of_a_sparse_wheel_are_found(tmp_path: Path) -> None:
    with (tmp_path / "timerwheel").open("wb") as file:
        file.truncate(1209600 * disk.SLOT_BYTES)
        for index in (0, 512005, 1209599):
            file.seek(index * disk.SLOT_BYTES)
            file.write(disk.encode_slot(1700000000 + index, 52, 104, 2))
    found = list(disk.iter_slots(tmp_path))
    assert [slot.number for slot in found] == [0, 512005, 1209599]
    assert all(slot.last_pos == 104 and slot.unit_count == 2 for slot in found)


def make_unit(prev_pos: int, log_offset: int) -> bytes:
    return disk.encode_timer_unit(prev_pos, 1, 1000, 1000, log_offset, store_size=9, topic_hash=0)


def test_chain_spans_files_and_reports_damage(tmp_path: Path) -> None:
    (tmp_path / "timerlog").mkdir()
    units = [make_unit(-1, 0)]
    units.append(make_unit(0, 100))
    first = b"".join(units) + disk.encode_timer_blank(16)
    (tmp_path / "timerlog" / f"{0:020d}").write_bytes(first)
    second = make_unit(52, 200)
    path = tmp_path / "timerlog" / f"{120:020d}"
    path.write_bytes(second + bytes(68))
    slot = disk.Slot(2, 2, 0, 120, 3, 0)
    assert [unit.pos for unit in disk.chain(tmp_path, slot)] == [120, 52, 0]
    assert [unit.pos for unit in disk.timer_units(tmp_path)] == [0, 52, 120]
    path.write_bytes(make_unit(120, 200) + bytes(68))
    with pytest.raises(ValueError, match="is followed by"):
        disk.chain(tmp_path, slot)
    path.write_bytes(bytes(120))
    with pytest.raises(ValueError, match="no unit"):
        disk.chain(tmp_path, slot)


def test_loose_json_quotes_keys_but_not_text() -> None:
    text = '{"offsetTable":{"t@g":{0:12, 1:7},-3:1},"note":"{0:12} \\" ,5:"}'
    found = disk.parse_loose_json(text)
    assert found["offsetTable"] == {"t@g": {"0": 12, "1": 7}, "-3": 1}
    assert found["note"] == '{0:12} " ,5:'


def test_json_copy_is_read_when_the_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.with_name("x.json.bak").write_text('{"a":1}')
    assert disk.read_json(path) == {"a": 1}
    path.write_text("")
    assert disk.read_json(path) == {"a": 1}
    assert disk.read_json(tmp_path / "none.json") is None
