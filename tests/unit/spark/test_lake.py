"""The records of a cold lake: runs, claims, and durability after a power loss."""

import multiprocessing
from datetime import date
from pathlib import Path

import pytest

from tests.support.bucket.fixtures import prefix, s3_endpoint
from tests.support.durable.names import DurableNames, killed_before_sync
from timerstore._engine.buckets import Bucket, location_of
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError, CorruptError, FormatVersionError
from timerstore.spark.jobs.lake import Claim, Lake, LakeFile, check_run_id, day_folder, open_lake

__all__ = ["prefix", "s3_endpoint"]

DAY, NEXT = date(2026, 11, 21), date(2026, 11, 22)


def file(name: str, day: date = DAY, rows: int = 10) -> LakeFile:
    return LakeFile(day, name, rows, 100 * rows)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path / "lake", create=True)


@pytest.fixture(params=["folder", "bucket"])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "folder":
        return open_lake(tmp_path / "lake", create=True)
    found = location_of("lake", request.getfixturevalue("prefix"))
    return open_lake(found, create=True)


def claim_all(lake: Lake, day: date = DAY) -> Claim | None:
    return lake.claim(day, lake.files())


# ---------------------------------------------------------------- the folder


def test_lake_keeps_id_when_reopened(any_lake: Lake) -> None:
    assert open_lake(any_lake.root).id == any_lake.id
    assert open_lake(any_lake.root, create=True).id == any_lake.id


def test_open_lake_rejects_other_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a cold lake"):
        open_lake(tmp_path)
    (tmp_path / "thing").write_text("here")
    with pytest.raises(ConfigError, match="not empty"):
        open_lake(tmp_path, create=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["thing"]


def test_open_lake_completes_killed_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_given: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Disk, "link", dies)
        killed.setattr(Disk, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            open_lake(tmp_path / "lake", create=True)
    [left] = (tmp_path / "lake").iterdir()
    assert left.name.endswith(".tmp")
    assert open_lake(tmp_path / "lake", create=True).id == open_lake(tmp_path / "lake").id


def test_open_lake_rejects_unknown_format(lake: Lake) -> None:
    (lake.root / "_lake.json").write_text('{"format": 2, "id": "x"}')
    with pytest.raises(FormatVersionError, match="wanted 1; got 2"):
        open_lake(lake.root)
    (lake.root / "_lake.json").write_text("no")
    with pytest.raises(CorruptError, match=r"_lake\.json"):
        open_lake(lake.root)


@pytest.mark.parametrize("run_id", ["", ".a", "a/b", "../a", "a b", "x" * 101, "_a"])
def test_run_id_rejects_unsafe_file_name(run_id: str) -> None:
    with pytest.raises(ConfigError, match="--run-id"):
        check_run_id(run_id)


def test_run_id_accepts_limits() -> None:
    assert check_run_id("x" * 100)
    assert check_run_id("2026-11-21_a.b")


# ---------------------------------------------------------------- appends


def test_run_counts_after_its_record(any_lake: Lake) -> None:
    assert any_lake.run("one") is None
    assert list(any_lake.files()) == []
    any_lake.commit_run("one", [file("b"), file("a", NEXT)])
    assert set(any_lake.files()) == {file("b"), file("a", NEXT)}


def test_second_commit_of_run_changes_nothing(any_lake: Lake) -> None:
    first = any_lake.commit_run("one", [file("a")])
    assert any_lake.commit_run("one", [file("b", rows=99)]) == first
    assert list(any_lake.files()) == [file("a")]


def test_empty_run_counts(any_lake: Lake) -> None:
    assert any_lake.commit_run("none", []) == ()
    assert any_lake.run("none") == ()


@pytest.mark.parametrize(
    "text",
    ['{"format": 1}', '{"format": 1, "files": [{"day": "x", "name": "a", "rows": 1, "bytes": 1}]}',
     '{"format": 1, "files": [{"day": "2026-11-21", "name": 5, "rows": 1, "bytes": 1}]}', "[]", ""],
)  # fmt: skip
def test_unreadable_run_record_is_corrupt(lake: Lake, text: str) -> None:
    lake.commit_run("one", [file("a")])
    path = lake.root / "_runs" / "one.json"
    path.write_text(text)
    with pytest.raises(CorruptError, match=r"one\.json"):
        list(lake.files())


# ---------------------------------------------------------------- claims


def test_claim_takes_each_file_once(any_lake: Lake) -> None:
    any_lake.commit_run("one", [file("a"), file("b"), file("c", NEXT)])
    claim = claim_all(any_lake)
    assert claim == Claim(DAY, 0, ("a", "b"), 20)
    assert claim_all(any_lake) is None
    assert claim_all(any_lake, NEXT) == Claim(NEXT, 0, ("c",), 10)


def test_late_file_gets_own_claim(any_lake: Lake) -> None:
    any_lake.commit_run("one", [file("a")])
    first = claim_all(any_lake)
    any_lake.commit_run("two", [file("b")])
    second = claim_all(any_lake)
    assert second == Claim(DAY, 1, ("b",), 10)
    assert any_lake.claims(DAY) == (first, second)


def test_unfinished_lists_killed_promotion(lake: Lake) -> None:
    lake.commit_run("one", [file("a"), file("b", NEXT)])
    first, second = claim_all(lake), claim_all(lake, NEXT)
    assert first is not None
    assert lake.unfinished() == [first, second]
    lake.finish(first, {"rows": 10})
    lake.finish(first, {"rows": 11})  # repeated: the first record stays
    assert lake.is_done(first)
    assert lake.unfinished() == [second]
    assert '"rows": 10' in (lake.root / "_promotions/2026-11-21/0000000000.done").read_text()


def test_claims_with_gap_are_corrupt(lake: Lake) -> None:
    lake.commit_run("one", [file("a")])
    claim_all(lake)
    lake.commit_run("two", [file("b")])
    claim_all(lake)
    (lake.root / "_promotions/2026-11-21/0000000000.json").unlink()
    with pytest.raises(CorruptError, match="gap"):
        lake.claims(DAY)


def test_purge_removes_files_of_finished_claim(lake: Lake) -> None:
    folder = lake.root / day_folder(DAY)
    folder.mkdir()
    (folder / "a").write_bytes(b"x")
    (folder / "late").write_bytes(b"x")
    lake.commit_run("one", [file("a")])
    claim = claim_all(lake)
    assert claim is not None
    with pytest.raises(AssertionError):
        lake.purge(claim)
    lake.finish(claim, {})
    assert lake.purge(claim) == 1
    assert lake.purge(claim) == 0
    assert (folder / "late").exists()
    assert claim_all(lake) is None  # removed, but still claimed


def test_lake_in_bucket_finishes_and_purges(prefix: str) -> None:
    url = location_of("lake", prefix)
    with pytest.raises(ConfigError, match=f"{prefix}: not a cold lake"):
        open_lake(url)
    lake, bucket = open_lake(url, create=True), Bucket(url)
    for name in ("a", "late"):
        bucket.put(f"{day_folder(DAY)}/{name}", b"x")
    bucket.put("_tombstones/t.parquet", b"t")
    bucket.put("_tombstones/readme", b"t")
    assert [str(one) for one in lake.tombstones()] == [f"{prefix}/_tombstones/t.parquet"]
    lake.commit_run("one", [file("a"), file("gone", NEXT)])
    claim, gone = claim_all(lake), claim_all(lake, NEXT)
    assert claim is not None
    assert gone is not None
    assert [str(one) for one in lake.data(claim)] == [f"{prefix}/{day_folder(DAY)}/a"]
    with pytest.raises(ConfigError, match=r"deliver_day=2026-11-22/gone: no such object"):
        lake.data(gone)
    lake.finish(claim, {"rows": 10})
    lake.finish(claim, {"rows": 11})
    assert lake.unfinished() == [gone]
    assert b'"rows": 10' in (bucket.get("_promotions/2026-11-21/0000000000.done") or b"")
    assert (lake.purge(claim), lake.purge(claim)) == (1, 0)
    assert bucket.get(f"{day_folder(DAY)}/late") == b"x"


def test_other_objects_are_not_a_lake(prefix: str) -> None:
    url = location_of("lake", prefix)
    Bucket(url).put("thing", b"x")
    with pytest.raises(ConfigError, match="not empty"):
        open_lake(url, create=True)


def _race(root: Path, name: str, barrier: object, told: object) -> None:
    lake = open_lake(root)
    barrier.wait()  # type: ignore[attr-defined]
    claim = lake.claim(DAY, lake.files())
    told.put(claim.files if claim else ())  # type: ignore[attr-defined]


def test_concurrent_claims_have_one_winner(any_lake: Lake) -> None:
    context = multiprocessing.get_context("spawn")
    any_lake.commit_run("one", [file(f"f{k}") for k in range(50)])
    barrier, told = context.Barrier(2), context.Queue()
    children = [
        context.Process(target=_race, args=(any_lake.root, name, barrier, told)) for name in "xy"
    ]
    for child in children:
        child.start()
    got = [told.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert sorted(map(len, got)) == [0, 50]
    assert len(any_lake.claims(DAY)) == 1


@pytest.mark.parametrize("reading", [1, 2])
def test_claim_created_during_another_claim_wins(
    any_lake: Lake, monkeypatch: pytest.MonkeyPatch, reading: int
) -> None:
    """Another process claims all files right after each reading of the claims by this one."""
    any_lake.commit_run("one", [file("a"), file("b")])
    rival, read, readings = open_lake(any_lake.root), any_lake.claims, []

    def claims(day: date) -> tuple[Claim, ...]:
        found = read(day)
        readings.append(found)
        if len(readings) == reading:
            claim_all(rival)
        return found

    monkeypatch.setattr(any_lake, "claims", claims)
    won = [claim for claim in (claim_all(any_lake), *read(DAY)) if claim is not None]
    assert len({claim.number for claim in won}) == 1
    assert read(DAY)[0].files == ("a", "b")


# ---------------------------------------------------------------- power cuts


def test_lake_records_are_durable_before_use_when_writer_was_killed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim lost in a power failure would be created again under its number with other files."""
    (lake.root / "_runs").mkdir()
    (lake.root / "_promotions" / DAY.isoformat()).mkdir(parents=True)
    names = DurableNames(tmp_path, monkeypatch)

    assert killed_before_sync(
        monkeypatch, lambda: lake.commit_run("one", [file("one-00000")]), of="_runs"
    )
    assert lake.run("one") == (file("one-00000"),)
    names.cut()
    assert lake.run("one") is not None

    assert killed_before_sync(
        monkeypatch, lambda: lake.commit_run("two", [file("two-00000")]), of="_runs"
    )
    assert len(list(lake.files())) == 2
    names.cut()
    assert len(list(lake.files())) == 2

    assert killed_before_sync(monkeypatch, lambda: claim_all(lake), of=DAY.isoformat())
    [claim] = lake.unfinished()
    names.cut()
    assert lake.claims(DAY) == (claim,)

    assert killed_before_sync(monkeypatch, lambda: lake.finish(claim, {}), of=DAY.isoformat())
    assert lake.is_done(claim)
    names.cut()
    assert lake.is_done(claim)
