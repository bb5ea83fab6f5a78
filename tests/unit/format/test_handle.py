import base64

import pytest

from timerstore._engine.format import handle
from timerstore._engine.format.handle import Handle
from timerstore.errors import MessageError

BROKERS = (
    "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgN0YwMDAwMDEwQTFCMThCNEFBQzIwMDAwMDAwMDAwMDA="
)
PARTS = Handle("TopicTest", "broker-a", 1_700_000_000_001, "7F0000010A1B18B4AAC2000000000000", None)


def pack(text):
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_brokers_handle_round_trips():
    assert handle.decode(BROKERS) == PARTS
    assert handle.encode(PARTS) == BROKERS
    assert PARTS.out_ms == 1_700_000_000_000


@pytest.mark.parametrize("timer_id", [-1, 0, 17, 2**63 - 1])
def test_own_handle_has_a_sixth_field(timer_id):
    ours = PARTS._replace(timer_id=timer_id)
    assert handle.decode(handle.encode(ours)) == ours


def test_fields_after_the_sixth_are_ignored():
    assert handle.decode(pack("v1 t b 5 id 7 more")).timer_id == 7


@pytest.mark.parametrize(
    "text",
    ["", "x", "====", "djE", "djE g", BROKERS[:-1], BROKERS + "\n", "é", "A" * 4097, None, 5,
     pack("v1 t b 5"), pack("v2 t b 5 id"), pack("v1  b 5 id"), pack("v1 t b 05 id"),
     pack("v1 t b -5 id"), pack("v1 t b x id"), pack("v1 t b 9223372036854775808 id"),
     pack("v1 t b 5 "), pack("v1 t b 5 id -2"), pack("v1 t b 5 id x"), pack("v1 t b 5 id "),
     base64.urlsafe_b64encode(b"v1 t b 5 \xff").decode()],
)  # fmt: skip
def test_decode_rejects_other_text(text):
    with pytest.raises(MessageError, match="handle"):
        handle.decode(text)
