"""Remove objects of a staging area in a bucket that nothing needs any more.

Ages are those of the service: an object is written to learn its time. There is no lock in a bucket.
So a write whose rows were staged more than `old_ms` before its commit may lose its files between
the check of the commit and the manifest. Its owner then reports the missing files. A commit that
finds its files missing fails, as in a directory.

Invariants:
    1. Objects that a manifest names stay until every shard has their rows, whatever their age.
    2. A manifest is removed only when the ledger of every shard has its version.
See also: janitor.py, for directories.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import PurePosixPath

from timerstore._engine.buckets import StoredObject
from timerstore.errors import CorruptError
from timerstore.shards.bucket_staging import CLOCK, BucketStaging, manifest_objects
from timerstore.shards.manifest import Manifest
from timerstore.shards.shard_paths import NAMES, manifest_version, source_of
from timerstore.shards.staged_files import QUARANTINE
from timerstore.shards.write_options import is_drawn

Version = tuple[str, int]


def clean_bucket(area: BucketStaging, old_ms: int) -> list[str]:
    """Remove attempts that no manifest names and that are older than `old_ms`. Return their names.

    old_ms: milliseconds.
    """
    before_ms = area.bucket.now_ms(CLOCK) - old_ms
    removed: list[str] = []
    for (source, version), attempts in _staged(area).items():
        old = {
            name: objects
            for name, objects in attempts.items()
            if all(one.modified_ms < before_ms for one in objects)
        }
        if not old:
            continue
        named = _named(area, source, version)
        for name, objects in old.items():
            if named is None or not named.isdisjoint(one.path for one in objects):
                continue
            area.bucket.delete([one.path for one in objects])
            removed.append(name)
    return removed


def prune_bucket(
    area: BucketStaging, is_done: Callable[[str, int], bool], old_ms: int, kept_count: int
) -> int:
    """Remove ingested objects that an interrupted pass left, and manifests as `prune` does.

    Return how many manifests were removed.
    """
    before_ms = area.bucket.now_ms(CLOCK) - old_ms
    for source, version in _staged(area):
        manifest = _readable(area, source, version) if is_done(source, version) else None
        if manifest is not None:
            area.remove(one for one in manifest.files if one.shard != QUARANTINE)
    removed = 0
    manifests, _strays = manifest_objects(area.bucket)
    for source, versions in manifests.items():
        kept = 0 if is_drawn(source) else kept_count
        for version, one in sorted(versions.items())[: len(versions) - kept]:
            if one.modified_ms < before_ms and is_done(source, version):
                removed += _remove_manifest(area, source, version)
    return removed


def _remove_manifest(area: BucketStaging, source: str, version: int) -> int:
    manifest = _readable(area, source, version)
    if manifest is None or manifest.of_shard(QUARANTINE):
        return 0  # unreadable: it may name files that are needed
    area.bucket.delete([NAMES.manifest(source, version).as_posix()])
    return 1


def _readable(area: BucketStaging, source: str, version: int) -> Manifest | None:
    try:
        return area.load(source, version)
    except CorruptError:
        return None


def _named(area: BucketStaging, source: str, version: int) -> set[str] | None:
    """Return the paths that the manifest of a version names; None if it is unreadable."""
    try:
        manifest = area.load(source, version)
    except CorruptError:
        return None
    return set() if manifest is None else {one.path for one in manifest.files}


def _staged(area: BucketStaging) -> dict[Version, dict[str, list[StoredObject]]]:
    """Return the staged objects by version and attempt. Other names are left alone."""
    found: dict[Version, dict[str, list[StoredObject]]] = defaultdict(lambda: defaultdict(list))
    for one in area.bucket.list(NAMES.staging.as_posix()):
        attempt = PurePosixPath(one.path).parent
        version = manifest_version(f"{attempt.parent.name}.json")
        try:
            source = source_of(attempt.parent.parent.name)
        except CorruptError:
            continue
        if version is not None:
            found[source, version][attempt.as_posix()].append(one)
    return found
