"""Properties of staged rows: a column of the staged file, and files of the format before it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
import pyarrow as pa

import timerstore
from tests.support.bench import NOW, small
from tests.support.shards import ShardBench
from tests.support.staging import batch_of, make_root, staged_rows
from timerstore._engine.base import message_fields
from timerstore._engine.storage.disk import Disk
from timerstore._engine.write.row_batch import StagedBatch
from timerstore.errors import ClosedError, CorruptError, FormatVersionError, MessageError
from timerstore.shards import commit, manifest, stage
from timerstore.shards.property_texts import property_texts
from timerstore.shards.shard_paths import ShardsTree
from timerstore.shards.staged_files import open_staged, read_staged
from timerstore.testing import ManualClock

PAIRS = pa.map_(pa.string(), pa.string())
FORMAT_1 = Path(__file__).parents[2] / "fixtures" / "staged_format_1"
OLD_PROPERTIES = [
    [("x", "1"), ("y", "é")], None, [("x", "1"), ("y", "é")], [("x", "2")], [],
    [("TS_ID", "z"), ("n", "5")], [("x", "2")], None,
]  # fmt: skip
OLD_ROWS = batch_of(
    8,
    topic=["t"] * 6 + ["u"] * 2,
    tags=["red", None] * 4,
    message_id=[f"id-{k}" for k in range(8)],
    properties=pa.array(OLD_PROPERTIES, PAIRS),
)
"""The rows of the fixture."""


def copy_format_1(root: Path) -> manifest.Manifest:
    shutil.copytree(FORMAT_1, root / "_ingest", dirs_exist_ok=True)
    found = manifest.load(Disk(), ShardsTree(root), "old", 0)
    assert found is not None
    return found


@pytest.fixture
def two(tmp_path: Path) -> Iterator[ShardBench]:
    bench = ShardBench(tmp_path / "two", 2)
    yield bench
    bench.close()


def delivered(bench: ShardBench, topic: str) -> list[Any]:
    with bench.store.consumer(topic, "g", wait=0) as consumer:
        return list(consumer)


def own(properties: Any) -> dict[str, str]:
    return {name: value for name, value in (properties or {}).items() if name in ("x", "y", "n")}


def test_rows_of_format_1_are_ingested_once(two: ShardBench) -> None:
    copy_format_1(two.root)
    assert sum(one.row_count for one in two.store.ingest()) == 8
    assert two.store.ingest() == []
    two.turn(60_000)
    messages = delivered(two, "t") + delivered(two, "u")
    found = {one.message_id: one for one in messages}
    assert len(found) == len(messages) == 8
    for k, pairs in enumerate(OLD_PROPERTIES):
        message = found[f"id-{k}"]
        wanted = {name: value for name, value in pairs or () if name != "TS_ID"}
        assert own(message.properties) == wanted
        assert (message.topic, message.tags) == ("t" if k < 6 else "u", None if k % 2 else "red")


def test_write_committed_in_format_1_is_recognized(tmp_path: Path) -> None:
    """A repeated write compares a digest of all rows, which the format does not change."""
    root = make_root(tmp_path / "s", 2)
    known = copy_format_1(root)
    part = stage(root, "old", 0, "again", [OLD_ROWS], clock=ManualClock(NOW))
    assert {one.digest for one in part.files} == {one.digest for one in known.files}
    assert commit(root, "old", 0, [part], same_rows=True).is_replay
    changed = OLD_ROWS.set_column(
        OLD_ROWS.schema.names.index("properties"), "properties", pa.array([None] * 8, PAIRS)
    )
    other = stage(root, "old", 0, "other", [changed], clock=ManualClock(NOW))
    with pytest.raises(MessageError, match="other rows"):
        commit(root, "old", 0, [other], same_rows=True)


@pytest.mark.parametrize("is_old", [True, False])
def test_ingest_continues_after_a_part_of_a_version(tmp_path: Path, *, is_old: bool) -> None:
    root = make_root(tmp_path / "s", 2)
    if is_old:
        known = copy_format_1(root)
    else:
        part = stage(root, "old", 0, "a", [OLD_ROWS], clock=ManualClock(NOW))
        known = commit(root, "old", 0, [part]).manifest

    def first_batches(number: int) -> Iterator[Any]:
        yield from islice(read_staged(Disk(), root, known.of_shard(1)), number)
        raise ClosedError("stop here")

    with timerstore.open(tmp_path / "one", small(), clock=ManualClock(NOW), threads=False) as store:
        with pytest.raises(ClosedError):
            store.ingest("old", 0, first_batches(2))
        assert store.ingested("old").partial == {0: 1 if is_old else 2}
        every = list(read_staged(Disk(), root, known.of_shard(1)))
        receipt = store.ingest("old", 0, every)
        assert (receipt.row_count, receipt.is_replay) == (4, False)
        assert store.ingest("old", 0, every).is_replay


def test_rows_with_own_properties_are_one_record_batch(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    column = pa.array([[("trace", f"{k:016x}")] for k in range(500)], PAIRS)
    part = stage(root, "s", 0, "a", [batch_of(500, properties=column)], clock=ManualClock(NOW))
    (file,) = part.files
    assert open_staged(Disk(), root, file).num_record_batches == 1
    found = {row[1]: row[-1] for row in staged_rows(root, part.files)}
    assert found == {b"body-%d" % k: (("trace", f"{k:016x}"),) for k in range(500)}


@pytest.mark.parametrize(
    ("old", "new", "kind", "match"),
    [
        (b"\1\0\0\0002\0", b"\1\0\0\0003\0", FormatVersionError, r"\.arrow; wanted 2 or 1; got 3"),
        (
            b"timerstore.staging",
            b"timerstore.stagin9",
            CorruptError,
            r"not of this release.*format 2 or 1",
        ),
    ],
    ids=["later", "none"],
)
def test_unknown_format_is_rejected(
    tmp_path: Path, old: bytes, new: bytes, kind: type[CorruptError], match: str
) -> None:
    root = make_root(tmp_path / "s", 1)
    part = stage(root, "s", 0, "a", [batch_of(3)], clock=ManualClock(NOW))
    (file,) = part.files
    path = root / file.path
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw.replace(old, new))
    with pytest.raises(CorruptError, match=match) as error:
        open_staged(Disk(), root, file, checked=True)
    assert type(error.value) is kind


# --- encoding ---

_NAMES = st.one_of(
    st.sampled_from(["a", "b", "TS_ID", "TS_GROUP", "KEYS", "TIMER_X", "DELAY", "é"]),
    st.text(st.characters(codec="utf-8"), max_size=3),
)
_VALUES = st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=4))
_ROWS = st.lists(st.one_of(st.none(), st.lists(st.tuples(_NAMES, _VALUES), max_size=4)))


@settings(max_examples=200, deadline=None)
@given(_ROWS, st.integers(0, 3))
def test_texts_are_those_of_encode_properties(rows: list[Any], skipped: int) -> None:
    column = pa.array(rows, PAIRS).slice(skipped)
    reasons: list[Any] = []
    texts = property_texts(column, len(column), reasons).to_pylist()
    for k, pairs in enumerate(rows[skipped:]):
        wrong = [text for mask, text in reasons if mask[k]]
        values = dict(pairs or ())
        # Every entry is checked, also one that a later entry of the same name replaces.
        entries = [{name: value} for name, value in pairs or () if value is not None]
        has_null = len(entries) < len(pairs or ())
        try:
            for one in entries:
                if not (one.keys() & message_fields.DROPPED_NAMES):
                    message_fields.encode_properties(None, (), one)
        except MessageError:
            assert wrong
            continue
        if has_null or any("" in one.values() or _has_control(one) for one in entries):
            assert wrong
            continue
        assert not wrong
        assert texts[k] == message_fields.encode_properties(None, (), values)


def _has_control(one: dict[str, str]) -> bool:
    return any(char < " " for text in (*one, *one.values()) for char in text)


@pytest.mark.parametrize(
    ("texts", "offsets", "why"),
    [
        (b"a\x01b", [0, 3], "separators"),
        (b"a\x01b\x01", [0, 4], "separators"),
        (b"a\x02b\x01", [0, 4], "separators"),
        (b"a\x01\x02", [0, 3], "separators"),
        (b"\x01b\x02", [0, 3], "separators"),
        (b"a\x01b\x02c\x02", [0, 6], "separators"),
        (b"a\x01b\x02", [0, 2, 4], "separators"),
        (b"a\x01b\n\x02", [0, 5], "separators"),
        (b"\xff\x01b\x02", [0, 4], "UTF-8"),
        (b"a\x01b\x02", [0, 5], "offsets|spans|bytes"),
        (b"a\x01b\x02", [0, 4, 4, 4], "whole offsets"),
        (None, [0, 4], "one without the other"),
    ],
)
def test_malformed_property_texts_are_rejected(
    tmp_path: Path, texts: bytes | None, offsets: list[int], why: str
) -> None:
    count = 2 if len(offsets) == 3 else 1
    batch = StagedBatch(
        topic="t",
        bodies=b"x" * count,
        body_offsets=np.arange(count + 1),
        due_ms=np.zeros(count, np.int64),
        property_texts=texts,
        property_offsets=np.array(offsets),
    )
    with (
        timerstore.open(tmp_path / "s", small(), clock=ManualClock(NOW), threads=False) as store,
        pytest.raises(MessageError, match=why),
    ):
        store.ingest("s", 0, [batch])


def test_property_texts_and_properties_are_both_stored(two: ShardBench) -> None:
    batch = StagedBatch(
        topic="t",
        bodies=b"xy",
        body_offsets=np.arange(3),
        due_ms=np.full(2, NOW + 1000),
        properties={"x": "1"},
        property_texts=b"y\x01\xc3\xa9\x02n\x015\x02",
        property_offsets=np.array([0, 9, 9]),
    )
    assert two.store.stores[0].ingest("s", 0, [batch]).row_count == 2
    two.turn(2000)
    found = {one.body: own(one.properties) for one in delivered(two, "t")}
    assert found == {b"x": {"x": "1", "y": "é", "n": "5"}, b"y": {"x": "1"}}
