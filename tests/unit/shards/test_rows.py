"""Rows of Arrow batches are checked and converted into staged columns."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from tests.support.bench import NOW, small  # noqa: E402
from tests.support.staging import UTC_US, batch_of, make_root, staged_rows  # noqa: E402
from timerstore import ConfigError, MessageError, StoreConfig  # noqa: E402
from timerstore.shards import WriteOptions, parse_options, stage  # noqa: E402
from timerstore.shards.arrow_rows import Reader  # noqa: E402
from timerstore.shards.routing import shard_of_key  # noqa: E402
from timerstore.shards.row_columns import check_columns  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402


def _reasons(config: StoreConfig | None = None, options: Any = None, **columns: Any) -> list[str]:
    """Return the problems of two rows, the second of which is valid."""
    batch = batch_of(2, **columns)
    given = WriteOptions(**(options or {}))
    check_columns(batch.schema, given)
    rows = Reader(config or small(), given).read(batch, NOW)
    assert list(rows.invalid) == [bool(rows.reason(k)) for k in range(2)]
    return [rows.reason(k) for k in range(2)]


FAR = NOW + small().delay_ms_max
TEXT = pa.string()
PAIRS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"topic": pa.array([None, "t"])}, "topic: NULL"),
        ({"topic": ["no.point", "t"]}, "topic: wanted ASCII"),
        ({"topic": ["", "t"]}, "topic: wanted 1 to 127"),
        ({"topic": ["t" * 128, "t" * 127]}, "topic: wanted 1 to 127"),
        ({"topic": ["rmq_sys_wheel_timer", "t"]}, "reserved for the engine"),
        ({"body": pa.array([None, b""], pa.binary())}, "body: NULL"),
        ({"deliver_at": pa.array([None, NOW * 1000], UTC_US)}, "deliver_at: NULL"),
        ({"deliver_at": pa.array([NOW // 1000, 0])}, "deliver_at: wanted 0 (now), or 946684800000"),
        ({"deliver_at": pa.array([1, -1])}, "if these are seconds, multiply them by 1000"),
        ({"deliver_at": pa.array([FAR + 1, FAR])}, "deliver_at: wanted at most"),
        ({"key": ["two words", "one"]}, "key: wanted text without spaces"),
        ({"key": ["a\u3000b", "\u00e9"]}, "key: wanted text without spaces"),
        ({"key": ["a\x00", None]}, "key: wanted text without spaces"),
        ({"tags": ["a\x02", "a b"]}, "tags: wanted text without control"),
        ({"tags": ["a||b", "a|b"]}, "tags: wanted one tag that a filter can name"),
        ({"tags": [" \u20ac", "\u20ac"]}, "tags: wanted one tag that a filter can name"),
        ({"tags": ["*", "**"]}, "tags: wanted one tag that a filter can name"),
        ({"message_id": ["a b", "a"]}, "message_id: wanted text without spaces"),
        ({"message_id": ["i" * 129, "i" * 128]}, "message_id: wanted at most 128"),
        ({"properties": pa.array([[("a", "")], [("a", "b")]], PAIRS)}, "properties: an empty"),
        ({"properties": pa.array([[("a", None)], None], PAIRS)}, "properties: an empty"),
        ({"properties": pa.array([[("a\x01", "b")], []], PAIRS)}, "properties: an empty"),
        ({"properties": pa.array([[("KEYS", "b")], [("k", "b")]], PAIRS)}, "reserved"),
        ({"properties": pa.array([[("TIMER_X", "b")], [("k", "b")]], PAIRS)}, "reserved"),
        ({"tags": ["x" * 40_000, "x"]}, "properties: too many bytes"),
        (
            {"key": [], "keys": pa.array([["a", "b c"], ["a", "b"]], pa.list_(TEXT))},
            "keys: wanted each",
        ),
        ({"key": [], "keys": pa.array([["a", None], []], pa.list_(TEXT))}, "keys: wanted each"),
        ({"key": [], "keys": pa.array([[""], None], pa.list_(TEXT))}, "keys: wanted each"),
    ],
)
def test_invalid_row_is_reported(columns: dict[str, Any], why: str) -> None:
    first, second = _reasons(**columns)
    assert why in first
    assert second == ""
    fine, wrong = _reasons(**{name: one[::-1] for name, one in columns.items()})  # the last row
    assert why in wrong
    assert fine == ""


def test_body_sizes_at_limits_are_accepted() -> None:
    config = small(message_bytes_max=1000)
    assert _reasons(config, body=[b"x" * 1001, b"x" * 1000]) == [
        "body: wanted at most 1000 bytes", "",
    ]  # fmt: skip
    small_log = small(commit_log_segment_bytes=8192)
    first, second = _reasons(small_log, body=[b"x" * 8000, b"x" * 2000])
    assert "does not fit a record" in first
    assert second == ""


def test_row_reason_depends_on_options() -> None:
    past = {"deliver_at": pa.array([NOW, NOW + 1])}
    assert _reasons(**past) == ["", ""]
    assert _reasons(options={"past": "fail"}, **past) == [
        "deliver_at: has passed (past=deliver takes it)", "",
    ]  # fmt: skip
    null = {"body": pa.array([None, b"x"], pa.binary())}
    assert _reasons(options={"null_body": "empty"}, **null) == ["", ""]


def test_text_that_is_not_utf8_is_reported() -> None:
    bad = pa.array([b"\xff", "é".encode()], pa.binary()).cast(pa.string(), safe=False)
    for name in ("key", "tags", "message_id"):
        first, second = _reasons(**{name: bad})
        assert f"{name}: not UTF-8" in first
        assert second == ""
    assert "topic: wanted ASCII" in _reasons(topic=bad)[0]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_bytes_in_lists_and_maps_that_are_not_utf8_are_reported(kind: Any) -> None:
    raw = pa.array([b"\xff", "é".encode(), b"ok"], pa.binary())
    if kind == pa.string_view():
        views = raw.cast(pa.binary_view())
        bad = pa.Array.from_buffers(kind, 3, views.buffers())
    else:
        bad = raw.cast(kind, safe=False)
    names = pa.array(["a", "b", "c"])
    spans = pa.array([0, 1, 3], pa.int32())
    for name, column in (
        ("keys", pa.ListArray.from_arrays(spans, bad)),
        ("properties", pa.MapArray.from_arrays(spans, names, bad)),
        ("properties", pa.MapArray.from_arrays(spans, bad, names)),
    ):
        given = {"key": [], name: column} if name == "keys" else {name: column}
        assert _reasons(**given) == [f"{name}: not UTF-8", ""]


def _covering(kind: Any, part: Any) -> Any:
    """Three rows with an entry each; the second is NULL and yet covers its own."""
    spans = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    valid = pa.py_buffer(bytes([0b101]))
    column = pa.Array.from_buffers(kind, 3, [valid, spans], children=[part])
    column.validate(full=True)
    assert column.null_count == 1
    return column


@pytest.mark.parametrize("first", [0, 1])
def test_entries_covered_by_null_row_are_not_delivered(tmp_path: Path, first: int) -> None:
    root = make_root(tmp_path / "s", 1)
    texts = pa.array(["zero", "hidden row", "two"])
    pairs = pa.StructArray.from_arrays(
        [texts, texts], fields=[pa.field("key", TEXT, nullable=False), pa.field("value", TEXT)]
    )
    batch = batch_of(
        3, key=[], keys=_covering(pa.list_(TEXT), texts), properties=_covering(PAIRS, pairs)
    ).slice(first)
    staged = stage(root, "s", 0, "a", [batch], clock=ManualClock(NOW))
    found = sorted(row[1:2] + row[3:4] + row[6:] for row in staged_rows(root, staged.files))
    assert (
        found
        == [
            (b"body-0", "zero", (("zero", "zero"),)),
            (b"body-1", "", ()),
            (b"body-2", "two", (("two", "two"),)),
        ][first:]
    )


def test_slices_of_lists_and_maps_are_read_correctly(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    texts = pa.array(["before", "a", "b", "c", "behind"]).slice(1, 3)
    pairs = pa.StructArray.from_arrays(
        [pa.array(["before", "a", "b", "c", "behind"])] * 2, names=["key", "value"]
    ).slice(1, 3)
    batch = batch_of(
        4,
        key=[],
        keys=pa.ListArray.from_arrays(pa.array([0, 1, 1, 2, 3], pa.int32()), texts),
        properties=pa.Array.from_buffers(
            PAIRS, 4, [None, pa.array([0, 1, 1, 2, 3], pa.int32()).buffers()[1]], children=[pairs]
        ),
    ).slice(1)
    staged = stage(root, "s", 0, "a", [batch], clock=ManualClock(NOW))
    found = sorted(row[1:2] + row[3:4] + row[6:] for row in staged_rows(root, staged.files))
    assert found == [
        (b"body-1", "", ()),
        (b"body-2", "b", (("b", "b"),)),
        (b"body-3", "c", (("c", "c"),)),
    ]


def test_delayed_row_is_invalid_when_timers_are_off() -> None:
    off = small(timer_enabled=False)
    given = {"deliver_at": pa.array([NOW + 1, NOW])}
    assert _reasons(off, **given) == [
        "deliver_at: wanted one that has passed, timers are off (timer_enabled)", "",
    ]  # fmt: skip
    assert _reasons(**given) == ["", ""]


def test_past_row_is_due_now_on_any_clock_when_timers_are_off(tmp_path: Path) -> None:
    """The owner's clock may be behind the writer's, so a past time might be in its future."""
    root = make_root(tmp_path / "s", 1, timer_enabled=False)
    batch = batch_of(3, deliver_at=pa.array([NOW, NOW - 1, -(2**63)]))
    staged = stage(root, "s", 0, "a", [batch], clock=ManualClock(NOW))
    assert [row[2] for row in staged_rows(root, staged.files)] == [0, 0, 0]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_smallest_and_largest_timestamps_are_distinguished(unit: str) -> None:
    moments = pa.array([2**63 - 1, -(2**63)]).cast(pa.timestamp(unit, tz="UTC"))
    rows = Reader(small(), WriteOptions()).read(batch_of(2, deliver_at=moments), NOW)
    # 2^63 ns are in the year 2262: too far ahead.
    assert "deliver_at: wanted at most" in rows.reason(0)
    assert rows.reason(1) == ""
    assert rows.due_ms[1] < 0


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ({"body": []}, {}, "body: there is no such column"),
        ({"deliver_at": []}, {}, "deliver_at: wanted"),
        ({"deliver_ms": [1, 2]}, {}, "deliver_at: wanted"),
        ({"deliver_at": pa.array([0, 1], pa.timestamp("us"))}, {}, "not timestamp_ntz"),
        ({"deliver_at": [0.5, 1.5]}, {}, "column deliver_at: wanted timestamp"),
        ({"deliver_at": [], "deliver_ms": pa.array([1, 2], pa.int32())}, {}, "wanted long"),
        ({"topic": []}, {}, "topic: wanted a column topic or the option"),
        ({}, {"topic": "t"}, "topic: wanted a column topic or the option"),
        ({"bodi": ["a", "b"]}, {}, "column bodi: not known"),
        ({"BODY": [b"a", b"b"]}, {}, "column body: given twice"),
        ({"keys": pa.array([["a"], ["b"]])}, {}, "key, keys: wanted one"),
        ({"key": [1, 2]}, {}, "column key: wanted string"),
        ({"tags": [b"a", b"b"]}, {}, "column tags: wanted string"),
        ({"properties": ["a", "b"]}, {}, "map<string,string>"),
        ({"key": [], "keys": ["a", "b"]}, {}, "array<string>"),
        ({}, {"shard_by": "customer"}, "there is no column 'customer'"),
        ({"customer": [0.5, 1]}, {"shard_by": "customer"}, "shard_by: wanted text"),
        ({}, {"shard_by": "msg_id"}, "needs a column message_id"),
    ],
)
def test_check_columns_rejects_invalid_columns(columns: Any, options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match="(?s)" + why.replace("<", "[<]")):
        check_columns(batch_of(2, **columns).schema, WriteOptions(**options))


@pytest.mark.parametrize("shard_by", ["Customer", "CUSTOMER", "KEY", "Msg_Id"])
def test_names_of_columns_ignore_case(tmp_path: Path, shard_by: str) -> None:
    root = make_root(tmp_path / "s", 1)
    batch = batch_of(2, customer=["a", "b"], message_id=["x", "y"])
    if shard_by not in ("Customer", "CUSTOMER"):
        batch = batch.drop_columns(["customer"])
    upper = batch.rename_columns([name.upper() for name in batch.schema.names])
    options, clock = WriteOptions(shard_by=shard_by), ManualClock(NOW)
    wanted = staged_rows(root, stage(root, "s", 0, "a", [batch], options, clock=clock).files)
    assert (
        staged_rows(root, stage(root, "s", 0, "b", [upper], options, clock=clock).files) == wanted
    )


@pytest.mark.parametrize("name", ["deliver_ms", "deliver_at"])
def test_due_time_in_seconds_is_rejected(tmp_path: Path, name: str) -> None:
    root = make_root(tmp_path / "s", 1)
    batch = batch_of(2, deliver_at=[]).append_column(name, pa.array([NOW, NOW // 1000]))
    with pytest.raises(MessageError, match=f"row 1 of this part: {name}: wanted.*seconds"):
        stage(root, "s", 0, "a", [batch], clock=ManualClock(NOW))


def test_check_columns_lists_every_problem() -> None:
    schema = batch_of(2, bodi=["a", "b"], body=[], deliver_at=[0.5, 1.5]).schema
    with pytest.raises(ConfigError) as caught:
        check_columns(schema, WriteOptions())
    assert len(caught.value.problems) == 3


def test_times_are_rounded_up_to_milliseconds(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    clock = ManualClock(NOW)
    for unit, raw, want in (
        ("us", NOW * 1000 + 1, NOW + 1),
        ("us", NOW * 1000, NOW),
        ("us", -1, 0),
        ("ns", NOW * 10**6 + 1, NOW + 1),
        ("ms", NOW, NOW),
        ("s", NOW // 1000, NOW // 1000 * 1000),
    ):
        kind = pa.timestamp(unit, tz="America/New_York")
        batch = batch_of(1, deliver_at=pa.array([raw], kind))
        staged = stage(root, "s", 0, f"a-{unit}-{raw}"[:50].replace("-", "_"), [batch], clock=clock)
        assert staged_rows(root, staged.files)[0][2] == want
    when = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    batch = batch_of(1, deliver_at=pa.array([when], UTC_US))
    staged = stage(root, "s", 0, "moment", [batch], clock=clock)
    assert staged_rows(root, staged.files)[0][2] == 1_893_553_445_678


def test_all_columns_arrive(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    batch = batch_of(
        3,
        key=[],
        keys=pa.array([["a", "b"], [], None], pa.large_list(pa.large_string())),
        tags=["red", None, ""],
        message_id=[None, "id-1", "é"],
        properties=pa.array([[("x", "1"), ("y", "2")], None, [("x", "1")]], PAIRS),
        topic=["t", "u", "t"],
    )
    staged = stage(root, "s", 0, "a", [batch], clock=ManualClock(NOW))
    found = staged_rows(root, staged.files)
    assert sorted(row[1:2] + row[:1] + row[3:] for row in found) == [
        (b"body-0", "t", "a b", "red", "", (("x", "1"), ("y", "2"))),
        (b"body-1", "u", "", "", "id-1", ()),
        (b"body-2", "t", "", "", "é", (("x", "1"),)),
    ]


def test_text_bodies_and_wide_types(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    batch = batch_of(2, body=pa.array(["é", None], pa.large_string()), key=[], topic=[])
    options = WriteOptions(topic="t", null_body="empty")
    staged = stage(root, "s", 0, "a", [batch], options, clock=ManualClock(NOW))
    assert [row[1] for row in staged_rows(root, staged.files)] == ["é".encode(), b""]


# --- options ---


@pytest.mark.parametrize(
    ("shard_by", "columns", "decides"),
    [
        ("key", {}, ["k0", "k1", "m2", "m3"]),
        ("msg_id", {}, ["m0", "m1", "m2", "m3"]),
        ("customer", {"customer": ["c0", "", None, "c3"]}, ["c0", "m1", "m2", "c3"]),
        ("number", {"number": [7, None, -1, 0]}, ["7", "m1", "-1", "0"]),
    ],
)
def test_route_of_rows(
    tmp_path: Path, shard_by: str, columns: dict[str, Any], decides: list[str]
) -> None:
    """Where it is empty the message id does."""
    root = make_root(tmp_path / "s", 5)
    ids = ["m0", "m1", "m2", "m3"]
    batch = batch_of(4, key=["k0", "k1", "", None], message_id=ids, **columns)
    options = WriteOptions(shard_by=shard_by)
    staged = stage(root, "s", 0, "a", [batch], options, clock=ManualClock(NOW))
    for k, text in enumerate(decides):
        mine = staged_rows(root, staged.files, shard_of_key(text, 5))
        assert b"body-%d" % k in [row[1] for row in mine]


def test_options_ignore_case() -> None:
    options = parse_options(
        {"path": "/p", "SHARD_BY": "Customer", "On_Invalid": "Quarantine", "sync": "FALSE"}
    )
    assert options == WriteOptions(shard_by="Customer", on_invalid="quarantine", sync="false")
    assert not options.is_synced


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"on_invald": "fail"}, "did you mean on_invalid"),
        ({"qqq": "1"}, "known: topic, shard_by"),
        ({"past": "maybe"}, "past: wanted 'deliver' or 'fail', got 'maybe'"),
        ({"topic": "a.b"}, "topic: wanted ASCII"),
        ({"write_id": "x" * 241}, "write_id: wanted 1 to 240"),
        ({"shard_by": ""}, "shard_by"),
        ({"past": "x", "sync": "y", "z": "z"}, "(?s)z: not known.*past:.*sync:"),
    ],
)
def test_parse_options_rejects_invalid_options(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_options(given)


def test_failed_stage_leaves_no_file(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    batches = [batch_of(), batch_of(20, 20, key=["x y"] * 20)]
    with pytest.raises(MessageError, match=r"20 of 40 rows .*row 20 of this part: key: wanted"):
        stage(root, "s", 0, "a", batches, clock=ManualClock(NOW))
    assert not list((root / "_ingest/staging").rglob("*.arrow"))
