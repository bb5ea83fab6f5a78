"""Parquet files divided into tasks: each row is in exactly one task, for any row groups."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402 - behind the skip

from tests.support.bucket.fixtures import prefix, s3_endpoint  # noqa: E402
from tests.support.bucket.uploads import upload  # noqa: E402
from timerstore.errors import BucketError, ConfigError  # noqa: E402
from timerstore.spark.jobs import parquet_tasks as tasks  # noqa: E402

__all__ = ["prefix", "s3_endpoint"]


def write(path: Path, first: int, count: int, group: int, **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": pa.array(range(first, first + count), pa.int64()), **more})
    pq.write_table(table, path, row_group_size=group)
    return path


def rows_of(task: tasks.Task) -> list[int]:
    batches = tasks.read_task(task, ["n"], batch_rows=3)
    return [n for batch in batches for n in batch.column(0).to_pylist()]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=4),
    per_task=st.integers(1, 40),
)
def test_tasks_contain_every_row_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], per_task: int
) -> None:
    root = tmp_path_factory.mktemp("parquet")
    begin, files = 0, []
    for k, (count, group) in enumerate(sizes):
        files.append(write(root / f"{k}.parquet", begin, count, group))
        begin += count
    cut = tasks.tasks_of(files, per_task)
    assert [n for task in cut for n in rows_of(task)] == list(range(begin))
    assert cut == tasks.tasks_of(files, per_task)
    largest = max((min(group, count) for count, group in sizes), default=0)
    assert all(sum(piece.rows for piece in task) <= max(per_task, largest) for task in cut)


def test_adjacent_row_groups_form_one_piece(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", 0, 10, 2)
    assert tasks.tasks_of([file], 4) == [
        (tasks.Piece(file, 0, 2, 4),),
        (tasks.Piece(file, 2, 2, 4),),
        (tasks.Piece(file, 4, 1, 2),),
    ]


def test_parquet_files_skips_hidden_names(tmp_path: Path) -> None:
    file = write(tmp_path / "d" / "a.parquet", 0, 1, 1)
    write(tmp_path / "_staging" / "b.parquet", 0, 1, 1)
    write(tmp_path / ".c.parquet", 0, 1, 1)
    assert tasks.parquet_files(str(tmp_path)) == [file]
    assert tasks.parquet_files(str(file)) == [file]


def test_parquet_files_rejects_other_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        tasks.parquet_files(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="there are no Parquet files"):
        tasks.parquet_files(str(tmp_path))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(ConfigError, match=r"a\.parquet: not a readable"):
        tasks.tasks_of(tasks.parquet_files(str(tmp_path)))


def test_schema_of_rejects_missing_and_mismatched_columns(tmp_path: Path) -> None:
    one = write(tmp_path / "1.parquet", 0, 2, 2, x=pa.array([1, 2], pa.int64()))
    two = write(tmp_path / "2.parquet", 0, 2, 2, x=pa.array(["a", "b"]))
    assert tasks.schema_of([one], ["n", "x"]).names == ["n", "x"]
    with pytest.raises(ConfigError) as error:
        tasks.schema_of([one, two], ["n", "x", "y"])
    assert len(error.value.problems) == 3
    assert "wanted int64 as in" in str(error.value)


@pytest.mark.parametrize("old_kind", [True, False])
def test_int96_and_int64_timestamps_are_read_as_utc(tmp_path: Path, old_kind: bool) -> None:
    kind = pa.timestamp("us", tz="UTC")
    times = [1_700_000_000_123_456, None, -1]
    path = tmp_path / "a.parquet"
    table = pa.table({"at": pa.array(times, kind)})
    pq.write_table(table, path, use_deprecated_int96_timestamps=old_kind)
    (batch,) = tasks.read_task(tasks.tasks_of([path])[0], ["at"])
    assert batch.schema.field("at").type == kind
    assert batch.column(0).cast(pa.int64()).to_pylist() == times


def test_objects_of_a_bucket_give_the_tasks_of_the_same_folder(tmp_path: Path, prefix: str) -> None:
    for k in range(3):
        write(tmp_path / f"d/{k}.parquet", 10 * k, 10, 3)
    write(tmp_path / "d/_staging/b.parquet", 0, 1, 1)
    write(tmp_path / "d/.c.parquet", 0, 1, 1)
    bucket = upload(tmp_path, prefix)
    local = tasks.parquet_files(str(tmp_path / "d"))
    files = tasks.parquet_files(f"{prefix}/d")
    assert [str(one) for one in files] == [f"{prefix}/d/{k}.parquet" for k in range(3)]
    assert tasks.schema_of(files, ["n"]) == tasks.schema_of(local, ["n"])
    cut = tasks.tasks_of(files, 7)
    assert [[piece[1:] for piece in task] for task in cut] == [
        [piece[1:] for piece in task] for task in tasks.tasks_of(local, 7)
    ]
    cut = pickle.loads(pickle.dumps(cut))
    assert [n for task in cut for n in rows_of(task)] == list(range(30))
    assert len(tasks.parquet_files(f"{prefix}/d/.c.parquet")) == 1
    with pytest.raises(ConfigError, match=f"{prefix}/none: there are no Parquet files"):
        tasks.parquet_files(f"{prefix}/none")
    bucket.put("d/1.parquet", (tmp_path / "d/2.parquet").read_bytes())
    with pytest.raises(BucketError, match=r"d/1\.parquet"):
        [n for task in cut for n in rows_of(task)]
    bucket.put("d/1.parquet", b"PAR1 no PAR1")
    with pytest.raises(ConfigError, match=r"d/1\.parquet: not a readable"):
        tasks.tasks_of(tasks.parquet_files(f"{prefix}/d"))
