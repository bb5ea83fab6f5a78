"""Reader options and stream offsets: accepted and rejected values, and the error messages."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore._engine.snapshot.columns.schemas import TABLES
from timerstore.errors import ConfigError
from timerstore.spark import offsets
from timerstore.spark.offsets import Position
from timerstore.spark.read_options import parse

DEFAULT = tuple(
    column.name for column in TABLES["messages"] if column.name not in ("body", "properties")
)


def test_parse_returns_defaults() -> None:
    got = parse({"path": "/s"})
    assert got.paths == (Path("/s"),)
    assert (got.table, got.columns, got.shards, got.as_of) == ("messages", DEFAULT, None, None)
    assert (got.max_partition_bytes, got.batch_bytes, got.batch_rows) == (
        256 << 20,
        4 << 20,
        10_000,
    )
    assert (got.verify_crc, got.fail_on_data_loss) == (True, True)


def test_parse_accepts_all_options() -> None:
    got = parse(
        {
            "PATHS": '["/a", "/b"]', "Table": "deliveries", "shards": "0-2, 7",
            "Columns": "Topic, DELIVER_AT", "topics": "a,b", "keys": "7,x", "deliver_from_ms": "-5",
            "stored_to_ms": "7", "pushdown": "TRUE", "time_type": "long",
            "max_partition_bytes": "64m", "batch_bytes": "1MB", "batch_rows": "1",
            "on_corrupt": "skip", "verify_crc": "false", "precision_ms": "100", "ledger": "true",
            "properties": "DELAY,a",
            "starting_offsets": "timestamp:5", "max_records_per_trigger": "3",
            "max_bytes_per_trigger": "2k", "fail_on_data_loss": "False", "write_id": "of a writer",
        }
    )  # fmt: skip
    assert got.paths == (Path("/a"), Path("/b"))
    assert got.shards == frozenset({0, 1, 2, 7})
    assert got.columns == ("topic", "deliver_at")
    every = tuple(column.name for column in TABLES["messages"])
    assert parse({"path": "/s", "columns": "*"}).columns == every
    assert set(every) - set(DEFAULT) == {"body", "properties"}
    bounds = got.bounds
    assert (bounds.deliver_from_ms, bounds.deliver_to_ms, bounds.stored_to_ms) == (-5, None, 7)
    assert (bounds.topics, bounds.keys) == (("a", "b"), ("7", "x"))
    assert (got.max_partition_bytes, got.batch_bytes, got.batch_rows) == (64 << 20, 1 << 20, 1)
    assert (got.max_records_per_trigger, got.max_bytes_per_trigger) == (3, 2048)
    assert got.times_as_long
    assert (got.with_ledger, got.property_names) == (True, ("DELAY", "a"))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("tabel", "timers", "tabel: unknown option"),
        ("table", "x", "table: wanted one of messages"),
        ("shards", "3-1", "shards: wanted"),
        ("shards", "", "shards: wanted"),
        ("columns", "topic,,body", "columns: wanted names"),
        ("columns", "nope", "has no 'nope'"),
        ("paths", "/a", "paths: wanted a JSON list"),
        ("pushdown", "yes", "pushdown: wanted true or false"),
        ("verify_crc", "yes", "verify_crc: wanted true or false"),
        ("batch_rows", "0", "batch_rows: wanted a whole number from 1"),
        ("batch_rows", "1e3", "batch_rows: wanted a whole number"),
        ("batch_bytes", "1t", "batch_bytes: wanted bytes"),
        ("max_partition_bytes", "65535", "max_partition_bytes: wanted bytes"),
        ("on_corrupt", "ignore", "on_corrupt: wanted one of fail, skip, stop"),
        ("time_type", "timestamp_ntz", "time_type: wanted one of"),
        ("deliver_from_ms", "now", "deliver_from_ms: wanted a whole number"),
        ("starting_offsets", "latest", "latest_offsets"),
        ("starting_offsets", "{}", "starting_offsets: wanted"),
        ("as_of", '{"format":1,"shards":{"0":{"p":-1}}}', "as_of: shard 0: wanted a whole number"),
        ("as_of", '{"format":1,"shards":{"0":{"p":true}}}', "wanted a whole number"),
        ("as_of", '{"format":1,"shards":{"x":{"p":1}}}', "wanted a shard number"),
        ("as_of", '{"format":1,"shards":{"0":{"q":1}}}', 'wanted {"p"'),
    ],
)
def test_parse_rejects_invalid_option(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"path": "/s", name: value})
    assert text in str(caught.value)


def test_parse_lists_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"table": "timer_units", "topics": "a", "keys": "k", "batch_rows": "0"})
    assert len(caught.value.problems) == 4
    assert "keys: table timer_units has no keys" in caught.value.problems
    assert "CREATE TEMPORARY VIEW" in str(parse_error({}))


def parse_error(given_options: dict[str, str]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(given_options)
    return caught.value


ENDS = st.dictionaries(st.integers(0, 99_999), st.integers(0, 2**63 - 1), max_size=5)


@given(ends=ENDS)
def test_stream_offset_text_is_independent_of_key_order(ends: dict[int, int]) -> None:
    import json

    one = offsets.make(ends)
    other = offsets.make(dict(reversed(ends.items())))
    assert json.dumps(one) == json.dumps(other)
    assert list(one["shards"]) == sorted(one["shards"])
    assert offsets.ends_of(json.loads(json.dumps(one))) == ends


@given(
    at=st.dictionaries(
        st.integers(0, 99_999),
        st.builds(
            Position,
            st.integers(0, 2**63 - 1),
            st.none() | st.integers(0, 2**63 - 1),
            st.none() | st.integers(0, 253_402_300_799_999),
        ),
        max_size=4,
    )
)
def test_positions_survive_json_round_trip(at: dict[int, Position]) -> None:
    assert offsets.read("as_of", offsets.text(at)) == at


def test_as_of_rejects_shard_number_of_thousands_of_digits() -> None:
    with pytest.raises(ConfigError, match="as_of: wanted a shard number"):
        offsets.read("as_of", '{"format": 1, "shards": {"%s": {"p": 0}}}' % ("9" * 5000))
