"""Messages, batches, receipts and reports as values."""

import base64
import dataclasses
import json
import pickle
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import timerstore
from timerstore import RowBatch
from timerstore.errors import ConfigError, CorruptError, MessageError, quoted
from timerstore.testing import Stepper
from timerstore.types import messages, receipts, reports
from timerstore.types.messages import Message, MessageBatch
from timerstore.types.receipts import PutBatch, PutReceipt, ReceiptOrigin

ORIGIN = ReceiptOrigin("orders", "7F000001ABCD01234567", "timerstore", 1000)


def make_message(**changes):
    values = {
        "topic": "t", "queue_id": 0, "queue_offset": 1, "log_offset": 2, "raw_body": b"body",
        "properties": {}, "born_ms": 3, "store_ms": 4, "due_ms": 5, "delivered_ms": 6,
    }  # fmt: skip
    return Message(**{**values, **changes})


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (b"", {}),
        (b"A\x01b\x02", {"A": "b"}),
        (b"A\x01b", {"A": "b"}),
        (b"A\x01b\x02A\x01c\x02", {"A": "c"}),
        (b"A\x01\x02B\x01b\x02\x01c\x02D\x02", {"B": "b"}),
        (b"A\x01b=\x01c\x02", {"A": "b=\x01c"}),
        ("é\x01ü\x02".encode(), {"é": "ü"}),
        (b"A\x01\xff\x02", {"A": "\ufffd"}),
    ],
)
def test_properties_text(text, want):
    assert messages.parse_properties(text) == want


def test_message_fields_come_from_properties():
    one = make_message(properties={"UNIQ_KEY": "id", "TAGS": "a", "KEYS": "k1 k2"})
    assert (one.message_id, one.tags, one.keys) == ("id", "a", ("k1", "k2"))
    bare = make_message()
    assert (bare.message_id, bare.tags, bare.keys, bare.body) == ("", None, (), b"body")
    with pytest.raises(dataclasses.FrozenInstanceError):
        bare.topic = "other"


@pytest.mark.parametrize("sys_flag", [0x01, 0x301, 0x331])
def test_compressed_body_is_inflated_once_and_equal_to_itself(sys_flag):
    raw = zlib.compress(b"x" * 5000)
    one = make_message(raw_body=raw, sys_flag=sys_flag)
    other = make_message(raw_body=raw, sys_flag=sys_flag)
    assert one.body == b"x" * 5000
    assert one.body is one.body
    assert one == other
    assert one.raw_body == raw


def test_inflate_stops_at_limit():
    raw = zlib.compress(bytes(1000))
    assert make_message(raw_body=raw, sys_flag=1, body_bytes_max=1000).body == bytes(1000)
    with pytest.raises(MessageError, match="more than 999"):
        _ = make_message(raw_body=raw, sys_flag=1, body_bytes_max=999).body


@pytest.mark.parametrize(("sys_flag", "name"), [(0x101, "LZ4"), (0x201, "ZSTD"), (0x401, "type 4")])
def test_inflate_error_names_other_compression(sys_flag, name):
    with pytest.raises(MessageError, match=name):
        _ = make_message(sys_flag=sys_flag).body


def test_inflate_rejects_damaged_body():
    raw = zlib.compress(b"x" * 5000)
    for bad in (raw[:-5], b"", b"nothing"):
        with pytest.raises(CorruptError):
            _ = make_message(raw_body=bad, sys_flag=1).body


def batch_of(bodies, sys_flags, **changes):
    count = len(bodies)
    numbers = np.arange(count)
    texts = dict.fromkeys(("queue_offset", "log_offset", "born_ms", "store_ms", "due_ms"), numbers)
    texts |= dict.fromkeys(("delivered_ms", "flag", "reconsume_times", "body_crc"), numbers)
    return MessageBatch(
        topic="t", queue_id=0, bodies=memoryview(b"".join(bodies)),
        body_offsets=np.cumsum([0, *map(len, bodies)]), properties=b"",
        properties_offsets=np.zeros(count + 1, np.int64), sys_flag=np.array(sys_flags, np.int32),
        store_bytes=numbers, next_offset=count, min_offset=0, max_offset=count, **texts, **changes,
    )  # fmt: skip


def test_body_list_equals_bodies_of_messages():
    raw = zlib.compress(b"x" * 5000)
    batch = batch_of([b"one", raw, b"", raw], [0, 1, 0, 0x301])
    assert batch.body_list() == [b"one", b"x" * 5000, b"", b"x" * 5000]
    assert batch.body_list() == [one.body for one in batch]
    assert batch_of([], []).body_list() == []
    with pytest.raises(MessageError, match="LZ4"):
        batch_of([b"one", raw], [0, 0x101]).body_list()
    with pytest.raises(MessageError, match="more than 4999"):
        batch_of([raw], [1], body_bytes_max=4999).body_list()


def test_hosts():
    assert messages.host_text(bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F]), False) == "127.0.0.1:10911"
    v6 = bytes(15) + b"\x01" + (80).to_bytes(4, "big")
    assert messages.host_text(v6, True) == "[::1]:80"
    with pytest.raises(CorruptError):
        messages.host_text(v6[:19], True)


@pytest.mark.parametrize(("due", "want"), [(1000, 0), (1001, 1000), (1999, 1000), (2000, 1000)])
def test_out_ms_is_previous_slot_boundary(due, want):
    assert receipts.out_ms(due, 1000) == want


def test_receipt():
    one = PutReceipt(ORIGIN, 0xAB, 17, 2, None, 4096, 1_700_000_005_000)
    assert one.message_id == "7F000001ABCD012345670000000000AB"
    text = base64.urlsafe_b64decode(one.handle).decode()
    assert text == f"v1 orders timerstore 1700000004001 {one.message_id} 17"
    fast = tuple.__new__(
        PutReceipt, (ORIGIN, 0xAB, 17, 2, None, 4096, 1_700_000_005_000, False, False)
    )
    assert fast == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert json.loads(json.dumps(one.handle)) == one.handle
    assert one.topic == "orders"
    assert not one.duplicate
    assert one.message_id in repr(one)


def test_message_id_counter_wraps_at_48_bits():
    assert receipts.unique_key("P" * 20, 2**48 + 1) == "P" * 20 + "000000000001"


def test_put_batch():
    rows = np.arange(3, dtype=np.int64)
    batch = PutBatch(ORIGIN, 10, 1, rows * 100, rows - 1, rows + 1000, rows)
    assert len(batch) == 3
    assert [one.queue_offset for one in batch] == [None, 0, 1]
    assert batch[-1] == batch[2] == list(batch)[2]
    assert batch[1:] == [batch[1], batch[2]]
    assert batch.message_ids == [one.message_id for one in batch]
    assert batch.handles == [one.handle for one in batch]
    assert type(batch[0].log_offset) is int
    for at in (3, -4):
        with pytest.raises(IndexError):
            _ = batch[at]


def make_batch(**changes):
    two = np.array([1, 2], np.int64)
    word = np.zeros(2, np.int32)
    hosts = np.zeros((2, 20), np.uint8)
    hosts[:, 3] = 9
    hosts[:, 7] = 80
    values = {
        "topic": "t", "queue_id": 0, "queue_offset": two, "log_offset": two * 100, "born_ms": two,
        "store_ms": two, "due_ms": two, "delivered_ms": two, "bodies": b"onetwo!",
        "body_offsets": np.array([0, 3, 7], np.int64), "properties": b"A\x01b\x02",
        "properties_offsets": np.array([0, 0, 4], np.int64), "flag": word, "sys_flag": word,
        "reconsume_times": word, "body_crc": word, "store_bytes": word, "born_hosts": hosts,
        "next_offset": 3, "min_offset": 0, "max_offset": 3,
    }  # fmt: skip
    return MessageBatch(**{**values, **changes})


def test_message_batch_returns_messages():
    batch = make_batch()
    assert [one.body for one in batch] == [b"one", b"two!"]
    assert batch[1].properties == {"A": "b"}
    assert batch[-1] == batch[1] == batch[0:2][1]
    assert batch[0].born_host == "0.0.0.9:80"
    assert batch[0].store_host == ""
    with pytest.raises(IndexError):
        _ = batch[2]


def test_to_arrow_error_names_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pyarrow"):
        make_batch().to_arrow()


def test_to_arrow():
    pytest.importorskip("pyarrow")
    table = make_batch().to_arrow()
    assert table["body"].to_pylist() == [b"one", b"two!"]
    assert table["topic"].to_pylist() == ["t", "t"]
    assert table["queue_offset"].to_pylist() == [1, 2]


def test_report():
    assert reports.Report().clean
    bad = reports.Report((reports.Problem("size", "f offset 0", "52", "0"),), {"units": 3})
    assert not bad.clean
    assert "size at f offset 0: wanted 52, got 0" in str(bad)
    assert "3 units" in str(bad)


def test_repr_shows_length_of_body(tmp_path: Path) -> None:
    body = b"secret" * 100_000
    with timerstore.open(tmp_path / "s", threads=False) as store:
        stepper = Stepper(store)
        store.put("t", body, tags="a", keys="k", properties={"long": "y" * 20_000})
        store.put("t", body, delay=1000, keys="k")
        batch = store.put_many("t", [body] * 50, message_ids=[f"i{k}" for k in range(50)])
        stepper.settle()
        page = store.pull("t", 0, 0, max_count=100)
        leased = store.receive("t", "g", max_count=10)
        shown = [
            page, page.messages[0], store.pull_batch("t", 0, 0, max_count=100), batch, batch.given,
            store.query("t", "k"), leased[0], leased, store.put("t", b"x"), list(store.pending()),
            RowBatch("t", body * 9, np.arange(1_000_000), np.zeros(5)),
            RowBatch("t", None, None, 0),
        ]  # fmt: skip
    with timerstore.open_shards(tmp_path / "shards", 2, threads=False) as shards:
        shown.append(shards.put_many("t", [body] * 50))
        for one in shards.stores:
            Stepper(one).settle()
        shown.append(shards.receive("t", "g"))
    for one in shown:
        text = repr(one)
        assert "secret" not in text
        assert "yyy" * 200 not in text
        assert len(text) < 12_000, text
    text = repr(page.messages[0])
    assert text.startswith("Message(topic='t', queue_id=0, queue_offset=0, log_offset=0, ")
    assert "raw_body=<600000 bytes>" in text
    assert "'TAGS': 'a'" in text
    assert repr(leased[0]).startswith("LeasedMessage(")
    assert "attempt=1" in repr(leased[0])
    assert repr(page).startswith("PullResult(status=FOUND, <51 messages>, next_offset=51")


def test_error_shortens_long_values() -> None:
    assert len(quoted("x" * 10_000_000)) == len(quoted(b"x" * 10_000_000)) == 80
    assert quoted("x" * 81).endswith("x...")
