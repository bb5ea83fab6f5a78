"""What C reads of a caller's lists: the plain case, and where it stops."""

import base64
import random
from typing import Any

import numpy as np
import pytest

from timerstore._engine.base.native import join, read_handles, split
from timerstore._engine.format.handle import HANDLE_CHARACTERS_MAX, Handle, decode, of_receipt
from timerstore._engine.write.cancel import NAMED
from timerstore.errors import MessageError
from timerstore.types.receipts import KeptOrigin, PutReceipt, ReceiptOrigin

ORIGIN = ReceiptOrigin("orders", "0123456789ABCDEF0123", "broker", 1000)
RECEIPT = PutReceipt(ORIGIN, 0xABC, 7, 0, None, 4711, 1_700_000_000_500)


def handle(*fields: object) -> str:
    return base64.urlsafe_b64encode(" ".join(map(str, fields)).encode()).decode()


def read(given: list[Any], begin: int = 0) -> tuple[int, Any, bytearray]:
    named, names = np.zeros(len(given), NAMED), bytearray()
    return read_handles(given, begin, named, names, PutReceipt, ReceiptOrigin), named, names


def told(given: Any) -> tuple[Any, ...] | None:
    """Return topic, id, slot time and timer id as C reads them, None if C leaves them to Python."""
    reached, named, names = read([given])
    if not reached:
        return None
    one = named[0]
    at, topic, key = (int(one[name]) for name in ("name_at", "topic_size", "key_size"))
    assert len(names) == at + topic + key
    text = names.decode()
    return text[:topic], text[topic:], int(one["out_ms"]), int(one["timer_id"])


def wanted(one: Handle) -> tuple[Any, ...]:
    return one.topic, one.message_id, one.out_ms, one.timer_id


@pytest.mark.parametrize(
    "text",
    [handle("v1", "t", "b", stamp, "id" * size, number)
     for stamp in (0, 1, 1_700_000_000_001, 10**18 - 1) for size in (1, 2, 3, 100)
     for number in (-1, 0, 9, 10**18 - 1)]
    + [handle("v1", "~|%_-" * 20, "!~", 5, "?>" * 40, 3)],
)  # fmt: skip
def test_c_reads_a_handle_as_python_does(text: str) -> None:
    assert told(text) == wanted(decode(text))


PLAIN = handle("v1", "topic", "broker", 1_700_000_000_001, "0123456789ABCDEF", 12)


@pytest.mark.parametrize(
    "given",
    ["", "A", "AAAA", "====", "not base64", PLAIN[:-1], PLAIN + "AAAA", PLAIN + "=",
     "=" + PLAIN, PLAIN.replace("d", "é", 1), PLAIN.replace("d", "\n", 1), " " * 8,
     handle("v2", "t", "b", 1, "i", 1), handle("v1", "t", "b", 1, "i"), handle("v1", "t", "b", 1),
     handle("v1", "t", "b", 1, "i", 1, "more"), handle("v1", "", "b", 1, "i", 1),
     handle("v1", "t", "", 1, "i", 1), handle("v1", "t", "b", "", "i", 1),
     handle("v1", "t", "b", 1, "", 1), handle("v1", "t", "b", 1, "i", ""),
     handle("v1", "t", "b", "01", "i", 1), handle("v1", "t", "b", "-1", "i", 1),
     handle("v1", "t", "b", 1, "i", "-2"), handle("v1", "t", "b", 1, "i", "01"),
     handle("v1", "t", "b", 1, "i", "1_0"), handle("v1", "t", "b", 10**18, "i", 1),
     handle("v1", "t", "b", 1, "i", 10**18), handle("v1", "t", "b", 1, "i", 2**63),
     handle("v1", "tö", "b", 1, "i", 1), handle("v1", "t\t", "b", 1, "i", 1),
     handle("v1", "t", "b", 1, "i" * HANDLE_CHARACTERS_MAX, 1),
     7, None, b"bytes", PLAIN.encode(), (1, 2), type("Text", (str,), {})(PLAIN)],
)  # fmt: skip
def test_other_values_are_left_to_python(given: Any) -> None:
    assert told(given) is None


def test_c_accepts_no_text_that_python_rejects() -> None:
    chance = random.Random(3)
    read_by_c = 0
    for _ in range(20_000):
        raw = list(PLAIN)
        for _ in range(chance.randrange(1, 4)):
            raw[chance.randrange(len(raw))] = chance.choice("AQgw_-+/=0z ~")
        text = "".join(raw)
        found = told(text)
        if found is not None:
            read_by_c += 1
            assert found == wanted(decode(text))
    assert read_by_c > 1000


@pytest.mark.parametrize("due_ms", [1, 999, 1000, 1001, 1_700_000_000_000, 2**62])
@pytest.mark.parametrize("precision_ms", [1, 1000, 60_000])
def test_c_reads_a_receipt_as_python_does(due_ms: int, precision_ms: int) -> None:
    origin = ORIGIN._replace(precision_ms=precision_ms)
    for counter in (0, 1, 2**48 - 1, 2**48 + 5):
        receipt = RECEIPT._replace(origin=origin, counter=counter, due_ms=due_ms)
        assert told(receipt) == wanted(of_receipt(receipt))
    assert read([receipt])[1]["log_offset"].tolist() == [4711]


@pytest.mark.parametrize(
    "receipt",
    [RECEIPT._replace(timer_id=-1), RECEIPT._replace(timer_id=2**63), RECEIPT._replace(due_ms=0),
     RECEIPT._replace(due_ms=True), RECEIPT._replace(counter="1"),
     RECEIPT._replace(origin=KeptOrigin("t", "own id", "b", 1000)),
     RECEIPT._replace(origin=tuple(ORIGIN)), RECEIPT._replace(origin=None),
     RECEIPT._replace(origin=ORIGIN._replace(precision_ms=0)),
     RECEIPT._replace(origin=ORIGIN._replace(topic="tö")),
     RECEIPT._replace(origin=ORIGIN._replace(id_prefix=b"bytes")), tuple(RECEIPT)],
)  # fmt: skip
def test_other_receipts_are_left_to_python(receipt: Any) -> None:
    assert told(receipt) is None


def test_reading_stops_at_a_value_for_python_and_continues_after_it() -> None:
    given = [PLAIN, RECEIPT, "no handle", RECEIPT, PLAIN] * 50
    named, names = np.zeros(len(given), NAMED), bytearray(b"before")
    reached = read_handles(given, 0, named, names, PutReceipt, ReceiptOrigin)
    assert reached == 2
    reached = read_handles(given, 3, named, names, PutReceipt, ReceiptOrigin)
    assert reached == 7
    assert named["name_at"][:2].tolist() == [6, 6 + len("topic0123456789ABCDEF")]
    plain, ours = b"topic0123456789ABCDEF", b"orders0123456789ABCDEF0123000000000ABC"
    assert bytes(names[6:]) == b"".join([plain, ours, ours, plain, plain, ours])
    assert read([])[0] == 0


def test_python_raises_for_invalid_handles() -> None:
    for text in ("", "no handle", PLAIN[:-4] + "!!!="):
        assert told(text) is None
        with pytest.raises(MessageError):
            decode(text)


def test_join_returns_data_and_offsets() -> None:
    offsets = np.empty(4, np.int64)
    assert join([b"one", b"", b"four"], offsets) == (b"onefour", 4)
    assert offsets.tolist() == [0, 3, 3, 7]
    assert join([], np.empty(1, np.int64)) == (b"", 0)
    for other in (bytearray(b"x"), memoryview(b"x"), "x", None, type("Own", (bytes,), {})(b"x")):
        assert join([b"one", other, b""], offsets) is None


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_split_returns_the_pieces(kind: Any) -> None:
    whole = kind(b"onefour")
    assert split(whole, np.array([0, 3, 3, 7])) == [b"one", b"", b"four"]
    assert split(whole, np.array([1, 2])) == [b"n"]
    assert split(whole, np.array([7])) == []
    assert all(type(one) is bytes for one in split(whole, np.array([0, 7])))


@pytest.mark.parametrize(
    ("offsets", "what"),
    [([0, 8], "object 0 lies in bytes 0 to 8 of 7"), ([-1, 3], "bytes -1 to 3"),
     ([0, 3, 2], "object 1 lies in bytes 3 to 2"), ([0, 2**63 - 1], "of 7"),
     ([8, 8], "bytes 8 to 8 of 7")],
)  # fmt: skip
def test_split_rejects_invalid_offsets(offsets: list[int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        split(b"onefour", np.array(offsets))


@pytest.mark.parametrize(
    "call",
    [lambda: split(b"x"), lambda: split(b"x", b""), lambda: split(b"x", b"seven b"),
     lambda: join([b"x"], np.empty(1, np.int64)), lambda: join({b"x"}, np.empty(2, np.int64)),
     lambda: join([b"x"]), lambda: read_handles([], 0, np.zeros(1, NAMED), bytearray(), str, str),
     lambda: read_handles([], -1, np.zeros(0, NAMED), bytearray(), str, str),
     lambda: read_handles((), 0, np.zeros(0, NAMED), bytearray(), str, str)],
)  # fmt: skip
def test_calls_with_other_arguments_raise(call: Any) -> None:
    with pytest.raises(TypeError, match="called with other arguments"):
        call()
