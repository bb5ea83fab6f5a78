"""Compare our writer with the test vectors of records, timer units, slots, checks and handles."""

import zlib

from tests.support import disk_reader as disk
from timerstore._engine.base.native import ffi, lib

RECORD_HEAD = (
    "00000073 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000000 00000000"
    "0000018bcfe56800 7f000001 00009c40 0000018bcfe5687b 7f000001 00002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 09 546f70696354657374"
)


def encode(*, property_crc: bool) -> bytes:
    out = ffi.new("uint8_t[]", 4096)
    size = lib.ts_encode(
        out, 4096, b"TopicTest", 9, 3, 7, 0, 0, 0,
        1_700_000_000_000, bytes.fromhex("7f00000100009c40"),
        1_700_000_000_123, bytes.fromhex("7f00000100002a9f"),
        b"hello", 5, b"TAGS\x01TagA\x02", 10, int(property_crc),
    )  # fmt: skip
    return bytes(ffi.buffer(out, size))


def test_record_vector_is_written() -> None:
    wanted = bytes.fromhex(RECORD_HEAD + "000a 544147530154616741 02")
    assert len(wanted) == 115
    assert encode(property_crc=False) == wanted


def test_record_vector_is_written_with_its_crc() -> None:
    found = encode(property_crc=True)
    assert len(found) == 135
    assert found[:4] == bytes.fromhex("00000087")
    assert found[4:103] == bytes.fromhex(RECORD_HEAD)[4:]
    assert found[103:] == b"\x00\x1eTAGS\x01TagA\x02__CRC32#\x015503154901\x02"


class Linker:
    """Our own enqueue side on a wheel in memory."""

    def __init__(self, write_ms: int, segment_bytes: int = 104_857_600) -> None:
        self.slots = bytearray(38_707_200)
        self.pages = bytearray(38_707_200 // 4096)
        self.wheel = ffi.new("ts_wheel *")
        self._kept = ffi.from_buffer(self.slots), ffi.from_buffer(self.pages)
        self.wheel.slots = ffi.cast("uint8_t *", self._kept[0])
        self.wheel.dirty_pages = ffi.cast("uint8_t *", self._kept[1])
        self.wheel.slot_count, self.wheel.precision_ms = 1_209_600, 1000
        self.link = ffi.new("ts_link *")
        self.link.segment_bytes = segment_bytes
        self.link.write_slot = self.link.read_slot = self.link.reuse_below = write_ms // 1000
        self.link.roll_slots = 172_800
        self.chunk = ffi.new("uint8_t[]", bytes([0b01010101]) * (128 * 481))  # every id is pending
        self.blocks = ffi.new("uint8_t *[]", [self.chunk])
        self.states = ffi.new("ts_states *", (self.blocks, 128 * 1920, 1))

    def unit(self, pos: int, due_ms: int) -> bytes:
        """Return the bytes written for one request at this position of the timer log."""
        self.link.pos = pos
        request = ffi.new("ts_request *")
        request.log_offset, request.size = 0x1122334455, 300
        request.due_ms = due_ms
        request.topic_hash = disk.java_hash("TopicTest")
        units, late = ffi.new("uint8_t[]", 200), ffi.new("ts_due[1]")
        count = lib.ts_timer_link(self.wheel, self.link, self.states, request, 1, units, 200, late)
        assert count in (0, 1)
        return bytes(ffi.buffer(units, self.link.bytes))


def test_timer_unit_and_slot_vectors_are_written() -> None:
    linker = Linker(1_700_000_000_000)
    unit = linker.unit(0, 1_700_000_005_001)
    assert unit[:44] == bytes.fromhex(
        "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00001388 0000001122334455 0000012c"
        "8e987641"
    )
    assert unit[44:] == b"TSU1" + zlib.crc32(unit[:44]).to_bytes(4)  # zeros in a unit of a broker
    linker = Linker(1_700_000_000_000)
    for pos in (104, 208, 312):
        linker.unit(pos, 1_700_000_006_000)
    assert linker.slots[16_384_160:16_384_192] == bytes.fromhex(
        "000000006553f105 0000000000000068 0000000000000138 00000003 00000000"
    )
    assert sum(map(bool, linker.slots)) == sum(map(bool, linker.slots[16_384_160:16_384_192]))


def test_timer_blank_vector_is_written() -> None:
    linker = Linker(1_700_000_000_000)
    blank = linker.unit(104_857_584, 1_700_000_005_001)
    assert blank == bytes.fromhex("00000010 0000000000000000 cbd43194")
    assert linker.link.pos == 104_857_600


def test_timer_check_vector_is_written() -> None:
    data = ffi.new("uint8_t[]", 4096)
    fields = (1_700_000_004_000, 52_000, 900, 905, 0, 1_700_000_004_321, 42)
    lib.ts_timer_check_pack(ffi.new("int64_t[]", fields), data)
    found = bytes(ffi.buffer(data))
    assert found[:56] == bytes.fromhex(
        "0000018bcfe577a0 000000000000cb20 0000000000000384 0000000000000389 0000000000000000"
        "0000018bcfe578e1 000000000000002a"
    )
    assert not found[56:].strip(b"\0")


def test_message_id_and_handle_vectors_are_written() -> None:
    from timerstore._engine.format import handle

    assert disk.offset_message_id("127.0.0.1:10911", 1000) == "7F00000100002A9F00000000000003E8"
    text = handle.encode(
        handle.Handle(
            "TopicTest", "broker-a", 1_700_000_000_001, "7F0000010A1B18B4AAC2000000000000", None
        )
    )
    assert text == (
        "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMDAwMDEg"
        "N0YwMDAwMDEwQTFCMThCNEFBQzIwMDAwMDAwMDAwMDA="
    )
