"""Ages of staged files and manifests: `old_ms` itself is not old yet, one millisecond more is."""

import os
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from tests.support.bench import NOW  # noqa: E402
from tests.support.staging import batch_of, stage  # noqa: E402
from timerstore._engine.buckets import StoredObject  # noqa: E402
from timerstore.shards import clean, commit, janitor, prune  # noqa: E402
from timerstore.shards.bucket_janitor import clean_bucket, prune_bucket  # noqa: E402
from timerstore.shards.folder_staging import FolderStaging  # noqa: E402
from timerstore.shards.manifest import Manifest  # noqa: E402
from timerstore.shards.shard_paths import NAMES, ShardsTree  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402

OLD_MS = 60_000
CLOCK = ManualClock(NOW)
AGES = {OLD_MS: False, OLD_MS + 1: True}
"""By age, ms: whether it is old."""

# --- a directory ---


def _set_age(path: Path, age_ms: int) -> None:
    then_ns = (NOW - age_ms) * 1_000_000
    os.utime(path, ns=(then_ns, then_ns))


def _set_ages(root: Path, age_ms: int) -> None:
    for path in sorted((root / "_ingest").rglob("*"), reverse=True):
        _set_age(path, age_ms)


@pytest.mark.parametrize(("age_ms", "is_old"), AGES.items())
@pytest.mark.parametrize("what", ["folder", "file"])
def test_attempt_is_removed_when_its_folder_and_each_file_are_old(
    root: Path, what: str, age_ms: int, is_old: bool
) -> None:
    staged = stage(root, [batch_of(5)])
    file = root / staged.files[0].path
    _set_ages(root, 2 * OLD_MS)
    _set_age(file.parent if what == "folder" else file, age_ms)
    assert bool(clean(root, old_ms=OLD_MS, clock=CLOCK)) is is_old
    assert file.exists() is not is_old


@pytest.mark.parametrize(("age_ms", "is_old"), AGES.items())
def test_temporary_file_of_a_commit_is_removed_when_it_is_old(
    root: Path, age_ms: int, is_old: bool
) -> None:
    commit(root, "s", 0, [])
    left = ShardsTree(root).source_manifests("s") / ".00000000000000000001.json.7.ab.tmp"
    left.write_bytes(b"{")
    _set_age(left, age_ms)
    clean(root, old_ms=OLD_MS, clock=CLOCK)
    assert left.exists() is not is_old


@pytest.mark.parametrize(("age_ms", "is_old"), AGES.items())
def test_empty_folder_is_removed_when_it_is_old(root: Path, age_ms: int, is_old: bool) -> None:
    folder = ShardsTree(root).staging / "source" / "7"
    folder.mkdir(parents=True)
    for one in (folder, folder.parent):
        _set_age(one, age_ms)
    clean(root, old_ms=OLD_MS, clock=CLOCK)
    assert folder.exists() is not is_old


@pytest.mark.parametrize(("age_ms", "is_old"), AGES.items())
def test_manifest_is_removed_when_it_is_old(
    root: Path, monkeypatch: pytest.MonkeyPatch, age_ms: int, is_old: bool
) -> None:
    monkeypatch.setattr(janitor, "KEPT_COUNT", 1)
    for version in (0, 1):
        commit(root, "s", version, [])
        _set_age(ShardsTree(root).manifest("s", version), age_ms)
    assert prune(root, lambda *_: True, old_ms=OLD_MS, clock=CLOCK) == int(is_old)


@pytest.mark.parametrize(("age_ms", "is_final"), {2000: False, 2001: True}.items())
def test_list_of_versions_is_final_when_its_folder_is_older_than_the_clock_of_the_disk(
    root: Path, age_ms: int, is_final: bool
) -> None:
    commit(root, "s", 0, [])
    _set_age(ShardsTree(root).source_manifests("s"), age_ms)
    versions = FolderStaging(root).committed()
    assert versions.is_final(versions.stamp("s"), NOW) is is_final


# --- a bucket ---


class _Bucket:
    """Objects with ages, and the paths that were deleted."""

    def __init__(self, ages_ms: dict[str, int]) -> None:
        self._objects = [
            StoredObject(path, 1, NOW - age_ms, "") for path, age_ms in ages_ms.items()
        ]
        self.deleted: list[str] = []

    def now_ms(self, _probe: str) -> int:
        return NOW

    def delete(self, paths: list[str]) -> None:
        self.deleted += paths

    def list(self, prefix: str) -> Any:
        return [one for one in self._objects if one.path.startswith(prefix)]


class _Area:
    """The parts of a BucketStaging that the janitor uses; no version is committed."""

    def __init__(self, ages_ms: dict[str, int]) -> None:
        self.bucket = _Bucket(ages_ms)

    def load(self, source: str, version: int) -> Manifest | None:
        path = NAMES.manifest(source, version).as_posix()
        return Manifest(source, version, 0, ()) if self.bucket.list(path) else None


def _staged(name: str) -> str:
    return (NAMES.version_staging("s", 0) / "attempt" / name).as_posix()


@pytest.mark.parametrize(
    ("ages_ms", "is_removed"),
    [
        ((OLD_MS + 1,), True),
        ((OLD_MS,), False),
        ((OLD_MS + 1, OLD_MS + 1), True),
        ((OLD_MS + 1, OLD_MS), False),
        ((OLD_MS, OLD_MS + 1), False),
        ((9 * OLD_MS, 9 * OLD_MS, 0), False),
    ],
)
def test_attempt_in_a_bucket_is_removed_when_each_of_its_objects_is_old(
    ages_ms: tuple[int, ...], is_removed: bool
) -> None:
    paths = [_staged(f"{number}.arrow") for number in range(len(ages_ms))]
    area: Any = _Area(dict(zip(paths, ages_ms, strict=True)))
    assert bool(clean_bucket(area, OLD_MS)) is is_removed
    assert area.bucket.deleted == (paths if is_removed else [])


@pytest.mark.parametrize(("age_ms", "is_old"), AGES.items())
def test_manifest_in_a_bucket_is_removed_when_it_is_old(age_ms: int, is_old: bool) -> None:
    paths = [NAMES.manifest("s", version).as_posix() for version in range(3)]
    area: Any = _Area(dict.fromkeys(paths, age_ms))
    assert prune_bucket(area, lambda *_: True, OLD_MS, kept_count=1) == 2 * int(is_old)
    assert area.bucket.deleted == (paths[:2] if is_old else [])
