"""The code of the executors without Spark: count, inflate and rename; also plots."""

import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from tests.support.inside import span_text  # noqa: E402 - behind the skip
from timerstore.errors import CorruptError  # noqa: E402
from timerstore.shards.staged_files import Staged, StagedFile  # noqa: E402
from timerstore.spark.jobs.bulk_worker import Renaming, files_text, staged_of  # noqa: E402
from timerstore.spark.jobs.forecast_worker import CountBuckets  # noqa: E402
from timerstore.spark.jobs.inflate_worker import inflate  # noqa: E402

TIMER = st.tuples(
    st.integers(0, 3), st.integers(-(2**45), 2**45) | st.integers(0, 5000),
    st.integers(0, 2**31 - 1),
)  # fmt: skip


def timers(rows: list[Any]) -> Any:
    schema = pa.schema([("shard", pa.int32()), ("deliver_at", pa.int64()), ("size", pa.int32())])
    columns = [pa.array([row[k] for row in rows], kind.type) for k, kind in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@given(
    batches=st.lists(st.lists(TIMER, max_size=20), max_size=4),
    bucket=st.sampled_from([1, 7, 1000, 3_600_000]),
)
def test_count_buckets_equals_simple_loop(batches: list[Any], bucket: int) -> None:
    wanted: dict[tuple[int, int], list[int]] = {}
    for shard, due, size in (row for rows in batches for row in rows):
        found = wanted.setdefault((shard, due // bucket), [0, 0])
        found[0] += 1
        found[1] += size
    results = CountBuckets(bucket)(0, map(timers, batches))
    got = {
        (row["shard"], row["bucket"]): [row["due"], row["bytes"]]
        for batch in results
        for row in batch.to_pylist()
    }
    assert got == wanted


def test_inflate_changes_only_compressed_bodies() -> None:
    whole = b"body " * 1000
    bodies = [whole, zlib.compress(whole), None, b""]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(bodies, pa.binary()), pa.array([0, 1, 1, 0], pa.int32()), pa.array(list("abcd"))],
        names=["body", "flags", "key"],
    )
    (got,) = inflate(iter([batch]))
    assert got.schema.names == ["body", "key"]
    assert got.column("body").to_pylist() == [whole, whole, None, b""]
    broken = batch.set_column(0, "body", pa.array([b"x"] * 4, pa.binary()))
    with pytest.raises(CorruptError):
        list(inflate(iter([broken])))


def test_renaming_may_use_column_twice() -> None:
    renaming = Renaming((("body", "text"), ("key", "id"), ("message_id", "id")))
    assert renaming.read == ["text", "id"]
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "id"])
    assert renaming.apply(batch).to_pylist() == [{"body": "x", "key": "y", "message_id": "y"}]


def test_staged_files_survive_json_round_trip() -> None:
    file = StagedFile("_ingest/a", 3, 10, 100, 2**32 - 1, -5, 2**62, 2**64 - 1)
    staged = Staged("source", 4, (file, file._replace(shard=-1)))
    assert staged_of("source", 4, files_text(staged)) == staged


@pytest.mark.parametrize("is_empty", [True, False])
def test_plots_are_png_files(tmp_path: Path, is_empty: bool) -> None:
    pytest.importorskip("matplotlib")
    from timerstore.spark.jobs import plots

    late = {} if is_empty else {0: 5, 1: 3, 1000: 2, 2_592_000_000: 1}
    by_day = {} if is_empty else {19_000: 5, 19_400: 2}
    by_hour = {} if is_empty else {24 * 19_000 + 5: 7, 24 * 19_002 + 23: 1}
    times = [] if is_empty else [0, 1000, 5000]
    made = [
        plots.lateness_plot(tmp_path / "new" / "late.png", late, "late"),
        plots.due_plot(tmp_path / "due.png", by_day, "due"),
        plots.heat_plot(tmp_path / "heat.png", by_hour, "heat"),
        plots.line_plot(tmp_path / "line.png", times, [1] * len(times), "line"),
    ]
    for path in made:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_labels_spans_with_units() -> None:
    pytest.importorskip("matplotlib")
    assert [span_text(ms) for ms in (1, 1000, 90_000, 7_200_000, 86_400_000)] == [
        "1 ms", "1 s", "1.5 min", "2 h", "1 d",
    ]  # fmt: skip
