"""Rows of the table `messages` that are written back: rows=messages."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa

from tests.support.bench import NOW
from tests.support.shards import ShardBench
from tests.support.staging import make_root, staged_rows
from timerstore import tables
from timerstore.errors import MessageError
from timerstore.shards import WriteOptions, stage
from timerstore.shards.message_writeback import SET_BY_STORE, rows_of_messages
from timerstore.shards.row_columns import COLUMNS
from timerstore.testing import ManualClock

BACK = WriteOptions(rows="messages")
PAIRS = pa.map_(pa.string(), pa.string())


def test_columns_of_messages_are_all_handled() -> None:
    names = {one.name for one in tables.TABLES["messages"]}
    assert names - SET_BY_STORE - {*COLUMNS} == {"msg_id"}
    assert names >= SET_BY_STORE


@pytest.mark.parametrize("times_as_long", [True, False])
def test_messages_are_written_back(
    shards: ShardBench, tmp_path: Path, *, times_as_long: bool
) -> None:
    store = shards.store
    store.put("t", b"due", message_id="a", keys=["k1", "k2"], tags="red", properties={"x": "1"})
    store.put("t", b"later", deliver_ms=NOW + 5_000_000, message_id="b", properties={"y": "é"})
    shards.turn(1000)
    paths = [one.path for one in store.stores]
    batches = [
        batch
        for path in paths
        for batch in tables.read(path, "messages", times_as_long=times_as_long)
        if len(batch)
    ]
    kept = [
        batch.filter(pa.compute.is_in(batch.column("kind"), pa.array(["ordinary", "timer"])))
        for batch in batches
    ]
    root = make_root(tmp_path / "other", 2)
    part = stage(root, "s", 0, "a", kept, BACK, clock=ManualClock(NOW))
    assert sorted(staged_rows(root, part.files), key=str) == [
        ("t", b"due", 0, "k1 k2", "red", "a", (("x", "1"),)),
        ("t", b"later", NOW + 5_000_000, "", "", "b", (("y", "é"),)),
    ]
    with pytest.raises(Exception, match="column shard: not known"):
        stage(root, "s", 1, "a", kept, clock=ManualClock(NOW))


def messages(**columns: Any) -> Any:
    given = {
        "topic": pa.array(["t", "t"]),
        "body": pa.array([b"1", b"2"]),
        "deliver_at": pa.array([5, None], pa.timestamp("us", tz="UTC")),
        **columns,
    }
    return pa.record_batch(given)


def test_real_topic_replaces_topic_and_reserved_properties_are_dropped() -> None:
    properties = pa.array(
        [[("REAL_TOPIC", "orders"), ("TIMER_X", "1"), ("a", "b"), ("TS_ID", "1")], None], PAIRS
    )
    rows = rows_of_messages(messages(properties=properties)).to_pydict()
    assert rows["topic"] == ["orders", "t"]
    assert rows["properties"] == [[("a", "b")], []]


def test_missing_time_is_now_except_for_a_level() -> None:
    rows = rows_of_messages(messages(topic=pa.array(["SCHEDULE_TOPIC_XXXX", "t"])))
    assert rows.column("deliver_at").cast(pa.int64()).to_pylist() == [5, 0]
    level = messages(topic=pa.array(["t", "SCHEDULE_TOPIC_XXXX"]))
    assert rows_of_messages(level).column("deliver_at").null_count == 1


@pytest.mark.parametrize(
    ("key", "wanted"), [(b"a", ["a"]), (b"a b", ["a", "b"]), (b" a  b ", ["a", "b"]), (b"", None)]
)
def test_key_is_split_at_spaces(key: bytes, wanted: Any) -> None:
    rows = rows_of_messages(messages(key=pa.array([key, None])))
    assert rows.column("keys").to_pylist() == [wanted, None]


def test_compressed_body_is_inflated() -> None:
    body = pa.array([zlib.compress(b"long"), b"2"])
    rows = rows_of_messages(messages(body=body, flags=pa.array([1, 0], pa.int32())))
    assert rows.column("body").to_pylist() == [b"long", b"2"]
    flags = pa.array([1 | 2 << 8, 0], pa.int32())
    with pytest.raises(MessageError, match="compressed with"):
        rows_of_messages(messages(body=body, flags=flags))
