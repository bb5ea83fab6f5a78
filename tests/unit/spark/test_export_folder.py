"""The output of `export`, in a folder and in a bucket: both behave alike."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow.parquet as pq  # noqa: E402 - behind the skip

from tests.support.bucket.fault_proxy import Fault, FaultProxy  # noqa: E402
from tests.support.bucket.fixtures import prefix, proxy, s3_endpoint  # noqa: E402
from timerstore._engine.buckets import Bucket, BucketUrl, location_of  # noqa: E402
from timerstore.errors import BucketError  # noqa: E402
from timerstore.spark.jobs.export_folder import ExportFolder  # noqa: E402
from timerstore.spark.jobs.export_worker import WriteParquet  # noqa: E402
from timerstore.spark.jobs.shared_folder import shared_folder  # noqa: E402

__all__ = ["prefix", "proxy", "s3_endpoint"]


class Place:
    """A folder or a prefix, with its files by name."""

    def __init__(self, out: Path | BucketUrl) -> None:
        self.out = out

    def files(self) -> dict[str, bytes]:
        if isinstance(self.out, BucketUrl):
            bucket = Bucket(self.out)
            return {one.path: bucket.get(one.path) or b"" for one in bucket.list()}
        found = (one for one in self.out.rglob("*") if one.is_file())
        return {one.relative_to(self.out).as_posix(): one.read_bytes() for one in found}

    def put(self, name: str, data: bytes) -> None:
        if isinstance(self.out, BucketUrl):
            Bucket(self.out).put(name, data)
        else:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            (self.out / name).write_bytes(data)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(tmp_path / "out")
    found = location_of("out", request.getfixturevalue("prefix"))
    assert isinstance(found, BucketUrl)
    return Place(found)


def export_folder(out: Path | BucketUrl, run_id: str) -> ExportFolder:
    return ExportFolder(shared_folder(out), run_id)


def write_in(folder: ExportFolder) -> WriteParquet:
    return WriteParquet(folder.folder, folder.staging, "zstd")


def batches(*counts: int) -> Iterator[pa.RecordBatch]:
    first = 0
    for count in counts:
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + count), pa.int64())})
        first += count


def test_files_of_tasks_get_their_names_and_the_record_ends_the_run(place: Place) -> None:
    folder = export_folder(place.out, "r")
    assert folder.record() is None
    folder.clear()
    write = pickle.loads(pickle.dumps(write_in(folder)))
    told = [row for n in (0, 1, 2) for one in write(n, batches(0, n, n)) for row in one.to_pylist()]
    assert [(row["number"], row["rows"]) for row in told] == [(1, 2), (2, 4)]
    assert {row["name"]: row["bytes"] for row in told} == {
        name: len(data) for name, data in place.files().items()
    }
    folder.move_in({row["name"]: f"r-{row['number']:05d}.parquet" for row in told})
    assert folder.finish(b"{}")
    assert folder.record() == b"{}"
    files = place.files()
    assert set(files) == {"r-00001.parquet", "r-00002.parquet", "_runs/r.json"}
    found = pq.read_table(pa.BufferReader(files["r-00002.parquet"]))
    assert found.column("n").to_pylist() == [0, 1, 2, 3]


def test_clear_removes_files_of_this_run_only(place: Place) -> None:
    kept = ["r-20260601.parquet", "r2-00000.parquet", "_staging/r2/x.parquet", "d/r-00000.parquet"]
    for name in ["r-00000.parquet", "r-123456.parquet", "_staging/r/x.parquet", *kept]:
        place.put(name, b"x")
    export_folder(place.out, "r").clear()
    assert sorted(place.files()) == sorted(kept)


def test_second_process_does_not_replace_the_record(place: Place) -> None:
    one, other = (export_folder(place.out, "r") for _ in range(2))
    one.clear()
    assert one.finish(b"1")
    assert not other.finish(b"2")
    assert other.record() == b"1"


def test_file_of_a_failed_task_is_not_in_the_output(place: Place) -> None:
    folder = export_folder(place.out, "r")
    folder.clear()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(3)
        raise RuntimeError("the task ends")

    with pytest.raises(RuntimeError, match="the task ends"):
        list(write_in(folder)(0, broken()))
    assert folder.finish(b"{}")
    assert set(place.files()) == {"_runs/r.json"}


def test_requests_that_fail_for_a_while_lose_nothing(
    prefix: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    proxy.fail(
        Fault("error 503", "PUT", "_staging/", 1),
        Fault("cut upload", "PUT", "_staging/", 1),
        Fault("lost answer", "PUT", "r-00000", 1),
        Fault("lost answer", "PUT", "_runs/", 1),
    )
    out = location_of("out", prefix)
    folder = export_folder(out, "r")
    folder.clear()
    (told,) = write_in(folder)(0, batches(9))
    folder.move_in({told.to_pylist()[0]["name"]: "r-00000.parquet"})
    assert folder.finish(b"{}")
    assert len(proxy.happened) == 4
    assert set(Place(out).files()) == {"r-00000.parquet", "_runs/r.json"}
    data = Place(out).files()["r-00000.parquet"]
    assert pq.read_table(pa.BufferReader(data)).column("n").to_pylist() == list(range(9))


def test_bucket_that_does_not_exist_is_named(prefix: str) -> None:
    assert prefix
    out = location_of("out", "s3://no-such-bucket/x")
    with pytest.raises(BucketError, match=r"s3://no-such-bucket/x"):
        list(write_in(export_folder(out, "r"))(0, batches(9)))
