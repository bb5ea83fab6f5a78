"""The memory of a message is estimated before it is decoded, and not by less than it takes."""

import struct
import tracemalloc
from datetime import UTC, datetime

import msgspec
import pytest

from timerstore.errors import ProtocolError
from timerstore.net.wire_messages import (
    TOO_DEEP,
    Call,
    Hello,
    decode_from_client,
    decode_head,
    encode,
    memory_of,
)

_COUNT = 20_000

ELEMENTS = {
    "empty maps": b"\x80",
    "empty lists": b"\x90",
    "small numbers": b"\x01",
    "small negative numbers": b"\xfb",
    "negative numbers of one byte": b"\xfa",
    "numbers of 2 bytes": b"\xcd\x10\x00",
    "numbers of 8 bytes": b"\xcf" + b"\x7f" * 8,
    "floats": b"\xcb" + b"\x11" * 8,
    "empty texts": b"\xa0",
    "short texts": b"\xa3abc",
    "texts with one wide character": b"\xd9\xff\xf0\x9f\x98\x80" + b"a" * 251,
    "texts with one character of two bytes": b"\xd9\xff\xc4\x80" + b"a" * 253,
    "empty byte strings": b"\xc4\x00",
    "short byte strings": b"\xc4\x05abcde",
    "maps of one": b"\x81\xa3abc\x01",
    "maps of 15": b"\x8f" + b"".join(b"\xa3ab%c\x01" % (97 + k) for k in range(15)),
    "lists of one": b"\x91\x01",
    "times": b"\xd6\xff\x11\x11\x11\x11",
    "columns": b"\xd7\x01" + bytes(8),
    "longer columns": b"\xc8\x04\x00\x01" + bytes(1024),
}


def _call_with(elements: bytes, count: int) -> bytes:
    return b"\x94\x02\x01\xa8ack_many\x91\xdd" + struct.pack(">I", count) + elements * count


def check_estimate(payload: bytes) -> None:
    tracemalloc.start()
    try:
        call = decode_from_client(payload)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(call, Call)
    assert memory_of(payload) + 16384 >= taken


@pytest.mark.parametrize("kind", ELEMENTS)
def test_estimate_is_above_the_memory_of_each_kind_of_value(kind: str) -> None:
    check_estimate(_call_with(ELEMENTS[kind], _COUNT))


def test_estimate_is_above_the_memory_of_large_maps() -> None:
    for count in (6, 11, 1000, 30_000, 100_000):
        check_estimate(encode(Call(1, "put_many", [dict.fromkeys(range(count), 1)])))


def test_estimate_of_large_values_is_near_their_size() -> None:
    for value in (bytes(1_000_000), "x" * 1_000_000):
        assert memory_of(encode(Call(1, "put", ["t", value]))) < 1_001_000


@pytest.mark.parametrize(
    "message",
    [
        Hello(1, ["a"], "token"),
        Call(1, "put", ["t", b"x"], {"delay": 1.5, "keys": ["k"], "deliver_at": datetime.now(UTC)}),
        Call(1, "put_many", ["t", [b"x"] * 70_000], {"properties": [{"a": "b"}] * 70_000}),
        [None, True, -1, -200, -70_000, -(2**40), 2**63, 1.5, "x" * 40, "x" * 300, b"x" * 300],
    ],
)
def test_every_message_has_an_estimate(message: object) -> None:
    assert 0 < memory_of(encode(message)) < 1 << 30


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91", b"\x01\x01", b"\xdd\xff\xff\xff\xff"])
def test_bytes_that_are_not_one_value_are_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="not one msgpack value"):
        memory_of(payload)


def test_depth_has_a_limit() -> None:
    value: object = 1
    for _ in range(32):
        value = [value]
    assert memory_of(msgspec.msgpack.encode(value)) < 1 << 20
    assert memory_of(msgspec.msgpack.encode([value])) == TOO_DEEP


def test_head_of_a_call_leaves_its_arguments_undecoded() -> None:
    payload = _call_with(b"\x80", _COUNT)
    tracemalloc.start()
    try:
        head = decode_head(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (head.id, head.name) == (1, "ack_many")
    assert peak < 10_000
