"""Frames and messages of hostile and broken peers."""

import contextlib
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.errors import ProtocolError
from timerstore.net.frames import FrameSplitter, frame
from timerstore.net.wire_messages import (
    Abandon,
    Call,
    Hello,
    decode_from_client,
    decode_from_server,
    encode,
)

LIMIT = 1000


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.data())
def test_splitter_returns_every_frame_however_the_stream_is_cut(
    payloads: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(map(frame, payloads))
    splitter, found, at = FrameSplitter(LIMIT), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += splitter.feed(stream[at : at + size])
        at += size
    assert found == payloads
    assert splitter.is_empty


def test_splitter_returns_a_frame_of_the_limit() -> None:
    assert list(FrameSplitter(LIMIT).feed(frame(bytes(LIMIT)))) == [bytes(LIMIT)]


@pytest.mark.parametrize("length", [0, LIMIT + 1, 2**31, 2**32 - 1])
def test_splitter_rejects_a_length_before_the_frame_is_there(length: int) -> None:
    splitter = FrameSplitter(LIMIT)
    with pytest.raises(ProtocolError, match=f"wanted 1 to {LIMIT} bytes; got {length}"):
        list(splitter.feed(length.to_bytes(4, "big")))


def test_splitter_returns_the_frames_before_an_invalid_length() -> None:
    found = FrameSplitter(LIMIT).feed(frame(b"good") + b"\0\0\0\0")
    assert next(found) == b"good"
    with pytest.raises(ProtocolError):
        next(found)


@given(st.binary(max_size=200))
def test_decoder_raises_only_protocol_error_on_any_bytes(payload: bytes) -> None:
    for decode in (decode_from_client, decode_from_server):
        with contextlib.suppress(ProtocolError):
            decode(payload)


def test_decoder_survives_damaged_messages() -> None:
    random.seed(1)
    good = [
        encode(Hello(1, ["x"], "token")),
        encode(Call(7, "put", ["t", b"body"], {"delay": 3, "properties": {"a": "b"}})),
        encode(Abandon(7)),
    ]
    for _ in range(20_000):
        payload = bytearray(random.choice(good))
        for _ in range(random.randint(1, 4)):
            payload[random.randrange(len(payload))] = random.randrange(256)
        del payload[random.randint(1, len(payload)) :]
        with contextlib.suppress(ProtocolError):
            decode_from_client(bytes(payload))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,  # arrays in arrays
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion entries
        b"\xdd\xff\xff\xff\xff\x02",  # an array of as many
        b"\xc6\xff\xff\xff\xff",  # bytes
        msgspec.msgpack.encode([9, 1, "put"]),  # an unknown kind
        msgspec.msgpack.encode([2, "x", "put"]),  # an id that is no number
        msgspec.msgpack.encode([2, 1, "put", [msgspec.msgpack.Ext(77, b"?")]]),
        msgspec.msgpack.encode([2, 1, "put", [msgspec.msgpack.Ext(1, b"123")]]),
        msgspec.msgpack.encode([2, 1, "put", [msgspec.msgpack.Ext(3, b"\xff" * 16)]]),
        msgspec.msgpack.encode([2, 1, "put", [msgspec.msgpack.Ext(4, b"\xc1")]]),
        msgspec.msgpack.encode([2, 1, "put", []]) + b"\x01",  # something after it
    ],
)
def test_decoder_rejects_hostile_messages(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_from_client(payload)


def test_unknown_elements_at_the_end_are_ignored() -> None:
    """A later version of the protocol can add some."""
    payload = msgspec.msgpack.encode([1, 1, ["new"], None, False, "new"])
    assert decode_from_client(payload) == Hello(1, ["new"], None, False)
