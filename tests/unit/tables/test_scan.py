"""Columns against the files read a second time; any log, any window, any batch size, damage."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import disk_reader as disk
from tests.support import tables_expected
from tests.support.arrow_rows import read_rows, rows_of
from timerstore import tables
from timerstore._engine.snapshot.columns.arrow_batches import read_part
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, Wanted
from timerstore._engine.snapshot.position import Snapshot, take
from timerstore.errors import ConfigError, CorruptError

NOW = 1_700_000_000_000
SEGMENT = 4096

NAME = st.sampled_from(["a", "b", "UNIQ_KEY", "KEYS", "TAGS", "TAGSX", "ä", "PGROUP"])
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=12)
KEYS = st.sampled_from(["k1", "k2", "k1 k2", "k k1", "ä", "k11"])
PAIRS = st.lists(st.tuples(NAME, VALUE) | st.tuples(st.just("KEYS"), KEYS), max_size=6)
TIMED = st.sampled_from(
    [
        {},
        {"TIMER_OUT_MS": str(NOW + 4000), "TIMER_DELIVER_MS": str(NOW + 4321)},
        {"TIMER_OUT_MS": str(NOW), "TIMER_DELAY_MS": "5000", "TIMER_ROLL_TIMES": "2"},
        {"DELAY": "3"},
        {"TIMER_OUT_MS": str(NOW), "TIMER_DEL_UNIQKEY": "t+A"},
    ]
)
RECORD = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["t", "orders", disk.TIMER_TOPIC, disk.LEVEL_TOPIC]),
        "body": st.binary(max_size=120),
        "pairs": PAIRS,
        "timed": TIMED,
        "is_real": st.booleans(),
        "store_ms": st.integers(NOW - 5000, NOW + 5000),
        "queue_id": st.integers(0, 5),
        "property_crc": st.booleans(),
        "ipv6": st.booleans(),
        "sys_flag": st.sampled_from([0, 0, 0, 1, 4, 8, 12]),
    }
)


def text_of(one: dict[str, Any]) -> bytes:
    real = {"REAL_TOPIC": "t", "REAL_QID": "0"} if one["is_real"] else {}
    pairs = [*one["pairs"], *one["timed"].items(), *real.items()]
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs)


def write_log(root: Path, records: list[dict[str, Any]], segment: int = SEGMENT) -> list[int]:
    """Return a commit log of small segments; log offsets of its records."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    log, starts = bytearray(), []
    for number, one in enumerate(records):
        raw = b""
        for _ in range(2):
            raw = disk.encode_record(
                one["topic"],
                one["body"],
                text_of(one),
                queue_id=one["queue_id"],
                queue_offset=number,
                log_offset=len(log),
                store_ms=one["store_ms"],
                sys_flag=one["sys_flag"],
                born_address="[::1]:5" if one["ipv6"] else "127.0.0.1:5",
                property_crc=one["property_crc"],
            )
            left = segment - len(log) % segment
            if len(raw) + 16 <= left:
                break
            log += disk.encode_blank(left).ljust(left, b"\0")
        starts.append(len(log))
        log += raw
    log += bytes(-len(log) % segment or segment)
    for begin in range(0, len(log), segment):
        (folder / f"{begin:020d}").write_bytes(log[begin : begin + segment])
    return starts


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


COUNTER = iter(range(10**9))


@given(
    records=st.lists(RECORD, max_size=30),
    window=st.sampled_from([1, 200, 1000, 1 << 20]),
    batch_rows=st.integers(1, 40),
    batch_bytes=st.sampled_from([1, 500, 1 << 20]),
)
def test_messages_table_has_the_records_of_the_log(
    scratch: Path, records: list[dict[str, Any]], window: int, batch_rows: int, batch_bytes: int
) -> None:
    root = scratch / str(next(COUNTER))
    write_log(root, records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timerstore._engine.snapshot.log_windows.WINDOW_BYTES", window)
        got = read_rows(root, batch_rows=batch_rows, batch_bytes=batch_bytes)
        delivered = read_rows(root, "deliveries", batch_rows=batch_rows)
    assert got == tables_expected.messages(root, 1000)
    assert delivered == tables_expected.deliveries(root, 1000)


@given(
    records=st.lists(RECORD, min_size=1, max_size=20),
    due=st.tuples(*2 * [st.none() | st.integers(NOW - 1, NOW + 5001)]),
    stored=st.tuples(*2 * [st.none() | st.integers(NOW - 5001, NOW + 5001)]),
    topics=st.none() | st.lists(st.sampled_from(["t", "orders", "none"]), max_size=2),
    keys=st.none() | st.lists(st.sampled_from(["k1", "k2", "k", "ä"]), max_size=2),
)
def test_bounds_keep_the_rows_that_plain_python_keeps(
    scratch: Path,
    records: list[dict[str, Any]],
    due: tuple[int | None, int | None],
    stored: tuple[int | None, int | None],
    topics: list[str] | None,
    keys: list[str] | None,
) -> None:
    root = scratch / str(next(COUNTER))
    write_log(root, records)
    names = [None if given is None else tuple(given) for given in (topics, keys)]
    bounds = Bounds(*due, *stored, *names)

    def inside(value: int | None, edges: tuple[int | None, int | None]) -> bool:
        low, high = edges
        if value is None:
            return low is None and high is None
        return (low is None or value >= low) and (high is None or value < high)

    wanted = [
        row["log_offset"]
        for row in tables_expected.messages(root, 1000)
        if inside(row["deliver_at"], due)
        and inside(row["stored_at"], stored)
        and (topics is None or row["topic"] in topics)
        and (keys is None or set((row["key"] or b"").decode().split(" ")) & set(keys))
    ]
    got = read_rows(root, bounds=bounds, columns=("log_offset",))
    assert [row["log_offset"] for row in got] == wanted


@given(
    records=st.lists(RECORD, max_size=20),
    names=st.lists(st.sampled_from(["a", "KEYS", "TAGSX", "ä", "DELAY", "none"]), min_size=1),
)
def test_properties_are_limited_to_the_names_that_are_wanted(
    scratch: Path, records: list[dict[str, Any]], names: list[str]
) -> None:
    root = scratch / str(next(COUNTER))
    write_log(root, records)
    got = read_rows(root, columns=("properties",), property_names=tuple(names))
    assert [dict(row["properties"]) for row in got] == [
        {name: text for name, text in dict(row["properties"]).items() if name in names}
        for row in tables_expected.messages(root, 1000)
    ]


def plain(body: bytes = b"x" * 50, topic: str = "t") -> dict[str, Any]:
    return {
        "topic": topic, "body": body, "pairs": [("UNIQ_KEY", "A")], "timed": {}, "is_real": False,
        "store_ms": NOW, "queue_id": 0, "property_crc": False, "ipv6": False, "sys_flag": 0,
    }  # fmt: skip


def write_queue(root: Path, starts: list[int], sizes: list[int]) -> None:
    folder = root / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    units = b"".join(
        disk.encode_queue_unit(at, size, 0) for at, size in zip(starts, sizes, strict=True)
    )
    (folder / f"{0:020d}").write_bytes(units.ljust(2000, b"\0"))


def damaged(root: Path, at: int) -> tuple[list[int], Snapshot]:
    """Return a log of 60 records in 3 segments with its queue, a byte of record `at` flipped."""
    starts = write_log(root, [plain() for _ in range(60)])
    sizes = [one.size for one in disk.records(root)]
    write_queue(root, starts, sizes)
    store = take(root)
    path = root / "commitlog" / f"{starts[at] // SEGMENT * SEGMENT:020d}"
    raw = bytearray(path.read_bytes())
    raw[starts[at] % SEGMENT + 90] ^= 1  # in the body
    path.write_bytes(raw)
    return starts, store


def test_damage_raises_with_place_and_options(tmp_path: Path) -> None:
    starts, store = damaged(tmp_path / "s", 10)
    with pytest.raises(CorruptError) as caught:
        list(tables.read(store.root, snapshot=store))
    text = str(caught.value)
    for wanted in ("shard 0", "CRC", f"offset {starts[10]}", "commitlog", "on_corrupt=skip"):
        assert wanted in text


@pytest.mark.parametrize("at", [0, 10, 59])
def test_damage_is_skipped_to_next_record_when_asked(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    starts, store = damaged(tmp_path / "s", at)
    with caplog.at_level(logging.WARNING, "timerstore.tables"):
        got = read_rows(store.root, snapshot=store, on_corrupt="skip")
    assert [row["log_offset"] for row in got] == starts[:at] + starts[at + 1 :]
    assert f"offset={starts[at]}" in caplog.text


def test_damage_ends_the_part_when_asked(tmp_path: Path) -> None:
    starts, store = damaged(tmp_path / "s", 10)
    got = read_rows(store.root, snapshot=store, on_corrupt="stop")
    assert [row["log_offset"] for row in got] == starts[:10]


def test_flipped_body_is_read_without_crc_checks(tmp_path: Path) -> None:
    starts, store = damaged(tmp_path / "s", 10)
    got = read_rows(store.root, snapshot=store, verify_crc=False)
    assert [row["log_offset"] for row in got] == starts


def overwritten(root: Path, offset: int, raw: bytes) -> None:
    path = root / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}"
    with path.open("r+b") as file:
        file.seek(offset % SEGMENT)
        file.write(raw)


def test_blank_that_ends_before_segment_end_is_damage(tmp_path: Path) -> None:
    starts = write_log(tmp_path / "s", [plain() for _ in range(60)])
    store = take(tmp_path / "s")
    last = max(at for at in starts if at < SEGMENT)
    blank = last + starts[1]  # all records are as long as the first
    overwritten(tmp_path / "s", blank, disk.encode_blank(SEGMENT - blank - 1))
    with pytest.raises(CorruptError, match=f"offset {blank}"):
        read_rows(store.root, snapshot=store)
    got = read_rows(store.root, snapshot=store, on_corrupt="skip")
    assert [row["log_offset"] for row in got] == starts


def test_record_with_wrong_position_is_damage(tmp_path: Path) -> None:
    """What a segment that was used before may still hold."""
    starts = write_log(tmp_path / "s", [plain() for _ in range(9)])
    store = take(tmp_path / "s")
    stale = disk.encode_record("t", b"x" * 50, text_of(plain()), log_offset=starts[4] + SEGMENT)
    overwritten(tmp_path / "s", starts[4], stale)
    with pytest.raises(CorruptError, match=f"position.*offset {starts[4]}"):
        read_rows(store.root, snapshot=store)


def test_missing_segment_is_reported_by_name(tmp_path: Path) -> None:
    _, store = damaged(tmp_path / "s", 10)
    gone = tmp_path / "s" / "commitlog" / f"{SEGMENT:020d}"
    gone.unlink()
    for policy in ("fail", "skip", "stop"):
        with pytest.raises(CorruptError, match=str(gone)):
            read_rows(store.root, snapshot=store, on_corrupt=policy, verify_crc=False)


def test_columns_have_the_order_of_the_request(tmp_path: Path) -> None:
    write_log(tmp_path / "s", [plain(), plain(b"")])
    [batch] = tables.read(tmp_path / "s", columns=("body_len", "topic", "shard"))
    assert batch.schema.names == ["body_len", "topic", "shard"]
    assert batch.to_pylist()[1] == {"body_len": 0, "topic": "t", "shard": 0}
    for names, text in ((("bodi",), "bodi"), (("topic", "topic"), "twice")):
        with pytest.raises(ConfigError, match=text):
            list(tables.read(tmp_path / "s", columns=names))


def test_batch_without_columns_has_row_count(tmp_path: Path) -> None:
    write_log(tmp_path / "s", [plain()] * 7)
    assert sum(batch.num_rows for batch in tables.read(tmp_path / "s", columns=())) == 7


def test_time_outside_timestamp_range_is_clamped(tmp_path: Path) -> None:
    far = 2**63 - 2
    given = plain()
    given["timed"] = {"TIMER_OUT_MS": str(far - 1000), "TIMER_DELIVER_MS": str(far)}
    write_log(tmp_path / "s", [given | {"topic": disk.TIMER_TOPIC, "is_real": True}])
    [batch] = tables.read(tmp_path / "s", columns=("deliver_at",))
    import pyarrow as pa

    us = batch.column(0).cast(pa.int64()).to_pylist()
    assert us == [(2**63 - 1) // 1000 * 1000]
    assert read_rows(tmp_path / "s", columns=("deliver_at",)) == [{"deliver_at": far}]


def test_batch_stays_valid_after_next_read(tmp_path: Path) -> None:
    """A batch points at nothing that the next one changes."""
    write_log(tmp_path / "s", [plain(bytes([n]) * 40) for n in range(60)])
    kept = list(tables.read(tmp_path / "s", batch_rows=7))
    assert [row["body"][0] for row in rows_of(kept)] == list(range(60))


def test_record_larger_than_window_is_read(tmp_path: Path) -> None:
    body = bytes(range(256)) * 80_000
    write_log(tmp_path / "s", [plain(body), plain()], segment=32 << 20)
    assert [row["body"] for row in read_rows(tmp_path / "s", columns=("body",))] == [
        body,
        plain()["body"],
    ]


def test_part_has_only_its_rows(tmp_path: Path) -> None:
    starts = write_log(tmp_path / "s", [plain()] * 9)
    store = take(tmp_path / "s")
    wanted = Wanted("messages", ("log_offset", "shard"))
    got = rows_of(read_part(Part(4, store, starts[3], starts[5]), wanted))
    assert got == [{"log_offset": at, "shard": 4} for at in starts[3:5]]


def test_take_raises_when_there_is_no_store(tmp_path: Path) -> None:
    for path, text in ((tmp_path / "none", "no directory"), (tmp_path, "holds no store")):
        with pytest.raises(ConfigError, match=text):
            take(path)
    (tmp_path / "timerstore").mkdir()  # its first opening has begun
    assert read_rows(tmp_path) == []
    (tmp_path / "commitlog").mkdir()
    assert read_rows(tmp_path) == []


def test_window_names_spark_setting_when_memory_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "s", [plain()])

    def full(size: int) -> bytearray:
        if size:
            raise MemoryError
        return bytearray()

    monkeypatch.setattr("timerstore._engine.snapshot.log_windows.bytearray", full, raising=False)
    with pytest.raises(ConfigError, match=r"spark\.executor\.pyspark\.memory"):
        read_rows(tmp_path / "s")


def test_stored_since_keeps_the_later_bound() -> None:
    for before, wanted in ((None, 5), (3, 5), (7, 7)):
        assert Bounds(stored_from_ms=before, topics=("t",)).stored_since(5) == Bounds(
            stored_from_ms=wanted, topics=("t",)
        )
