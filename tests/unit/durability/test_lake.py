"""The files of Spark jobs: each that is reported as written survives a power cut, with its folders.

The work of the jobs runs here without Spark. Each step is also made after another process was
killed in it, before each of its syncs: that process may have made folders, and not synced them.
"""

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

from tests.support.durable.files import OLD_NAME  # noqa: E402
from tests.support.durable.recorder import Allowed, Recorder  # noqa: E402
from timerstore.spark.jobs.export_folder import ExportFolder  # noqa: E402
from timerstore.spark.jobs.lake import Lake, open_lake, staging_of  # noqa: E402
from timerstore.spark.jobs.lake_worker import DAY, WriteDays  # noqa: E402
from timerstore.spark.jobs.parquet_worker import write_parquet  # noqa: E402
from timerstore.spark.jobs.shared_folder import shared_folder  # noqa: E402


@pytest.fixture(autouse=True)
def _hold_folders(recorder: Recorder) -> None:
    recorder.holds_folders = True


STAGED = Allowed("*", "*/_staging*", "files of an unfinished run, which the run writes again")
LEFT = Allowed("*", "*.tmp", "a kill left it: it is no record")
ALLOWED = (STAGED, OLD_NAME, LEFT)
DAYS = [date(2026, 11, 21), date(2026, 11, 22)]


LATER = [date(2026, 12, 1), date(2026, 12, 2)]


def _batches(first: date, second: date) -> list[pa.RecordBatch]:
    days = pa.array([first, first, second], pa.date32())
    return [pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), days], ["n", DAY])]


def _append(root: Path, run_id: str = "one", days: Sequence[date] = DAYS) -> None:
    lake = open_lake(root, create=True)
    if lake.run(run_id) is None:
        written = WriteDays(lake.folder, staging_of(run_id))(iter(_batches(*days)))
        staged = [row for batch in written for row in batch.to_pylist()]
        lake.commit_run(run_id, lake.move_in(run_id, staged))


def _claim(root: Path) -> None:
    lake = open_lake(root)
    for day in DAYS:
        lake.claim(day, lake.files())


def _finish(root: Path) -> None:
    lake = open_lake(root)
    for day in DAYS:
        for claim in lake.claims(day):
            if not lake.is_done(claim):
                lake.finish(claim, {"rows": claim.rows})


def _export(root: Path, run_id: str = "one") -> None:
    folder = ExportFolder(shared_folder(root), run_id)
    if folder.record() is not None:
        return
    folder.clear()
    names = {}
    for number in range(2):
        name = f"{folder.staging}/{number}.parquet"
        write_parquet(folder.folder, name, iter(_batches(*DAYS)), "zstd")
        names[name] = f"{run_id}-{number:05d}.parquet"
    folder.move_in(names)
    folder.finish(b'{"format": 1, "files": []}')


def _no_step(_root: Path) -> None:
    """Prepare nothing."""


def _after(*steps: Callable[[Path], None]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        for one in steps:
            one(root)

    return run


STEPS = {
    "append": (_no_step, _append),
    "append of a second run": (_append, lambda root: _append(root, "two")),
    "append of later days": (_append, lambda root: _append(root, "two", LATER)),
    "claim": (_append, _claim),
    "finish": (_after(_append, _claim), _finish),
    "export": (_no_step, _export),
    "export of a second run": (_export, lambda root: _export(root, "two")),
}


def _shown(root: Path) -> object:
    """Return the records that readers of the folder see."""
    lake = Lake(root, "any")
    claims = [claim for day in DAYS for claim in lake.claims(day)]
    return sorted(lake.files()), [(claim, lake.is_done(claim)) for claim in claims]


@pytest.mark.parametrize("name", STEPS)
def test_files_of_a_job_are_durable_when_it_reports_them(
    disk: Path, recorder: Recorder, tmp_path: Path, name: str
) -> None:
    prepare, step = STEPS[name]
    root = disk / "deep" / "lake"
    prepare(root)
    step(root)
    recorder.check(ALLOWED, "deep/lake")
    assert _shown(recorder.cut(root, tmp_path / "cut")) == _shown(root)


@pytest.mark.parametrize("name", STEPS)
def test_files_of_a_job_are_durable_when_another_process_was_killed_in_it(
    disk: Path, recorder: Recorder, tmp_path: Path, name: str
) -> None:
    prepare, step = STEPS[name]
    root = disk / "lake"
    prepare(root)
    found = recorder.killed_before_each_sync(root, disk / "killed", lambda: step(root))
    assert found
    for copy in found:
        step(copy)
        recorder.check(ALLOWED, f"killed/{copy.name}")
        assert _shown(recorder.cut(copy, tmp_path / copy.name)) == _shown(copy)


def test_record_is_durable_in_a_folder_that_another_process_made(
    disk: Path, recorder: Recorder
) -> None:
    root = disk / "lake"
    for folder, name in ((root, "record"), (root / "made", "made/record")):
        folder.mkdir()
        assert shared_folder(root).create(name, b"x")
        recorder.check(ALLOWED, "lake")


def test_moved_file_is_durable_in_a_folder_that_another_process_made(
    disk: Path, recorder: Recorder
) -> None:
    root = disk / "lake"
    (root / "_staging").mkdir(parents=True)
    (root / "_staging" / "file").touch()
    recorder.settle()
    (root / "made").mkdir()
    shared_folder(root).move({"_staging/file": "made/file"})
    recorder.check(ALLOWED, "lake")
