"""Commit staged rows: create the manifest that makes them visible.

Invariants:
    1. A version is committed when its manifest has its name. The name is created if absent, so
       exactly one commit of a version succeeds.
    2. The files of a manifest exist when it is created, and until every shard has their rows.
Raises: MessageError if a version was committed with other rows, or for parts of another version;
CorruptError.
See also: manifest.py, docs/decisions/0008-deduplication-and-ingest.md.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore.errors import CorruptError, MessageError
from timerstore.shards.manifest import Manifest
from timerstore.shards.shard_paths import NAMES
from timerstore.shards.staged_files import QUARANTINE, Staged, StagedFile
from timerstore.shards.staging_area import StagingArea
from timerstore.shards.staging_location import area_at
from timerstore.types.clock import Clock, SystemClock


class Committed(NamedTuple):
    """The result of `commit`. `is_replay`: the version was committed before; nothing was added."""

    manifest: Manifest
    is_replay: bool


def commit(
    root: str | os.PathLike[str] | StagingArea,
    source: str,
    version: int,
    parts: Iterable[Staged],
    *,
    same_rows: bool = False,
    clock: Clock | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Committed:
    """Make all staged rows of some parts visible at once; durable on return.

    If the version is already committed, the staged files are removed, in a bucket by the owner of
    the shards. A part that is given twice counts once.

    root: as for `stage`.

    same_rows: for a version that is already committed, check that the rows are the same. Without
        any row, nothing is committed, and the version stays free.

    storage_options: as for `stage`.

    Raises:
        MessageError: a part belongs to another version, or `same_rows` and the rows differ.
        ConfigError: `root` is not a directory of shards or a staging area.
        CorruptError: a staged file is missing or has another size.
        BucketError: the bucket does not answer. The version may be committed; call again.
    """
    area = area_at("root", root, storage_options)
    area.cluster()
    files = _files_of(source, version, parts)
    now_ms = (clock if clock is not None else SystemClock()).now_ms
    manifest = Manifest(source, version, now_ms, files)
    if same_rows and not files and area.load(source, version) is None:
        return Committed(manifest, is_replay=False)
    with area.committing(source):
        while (existing := area.load(source, version)) is None:
            _check_files(area, manifest)
            reach("manifest_checked")
            if area.create_manifest(manifest):
                reach("manifest_committed")
                return Committed(manifest, is_replay=False)
    if area.removes_aborted:
        _drop(area, source, version, files)
    reach("manifest_replayed")
    if same_rows and (existing.row_count, existing.digest) != (
        manifest.row_count,
        manifest.digest,
    ):
        raise MessageError(
            f"write {source!r} version {version} is committed with other rows, and stays as it is: "
            f"it has {existing.row_count} with digest {existing.digest:016x}, got "
            f"{manifest.row_count} with {manifest.digest:016x}; other rows need another write_id"
        )
    return Committed(existing, is_replay=True)


def _files_of(source: str, version: int, parts: Iterable[Staged]) -> tuple[StagedFile, ...]:
    """Return the files of all parts, each once, ordered by name.

    A replay removes the files that the manifest does not name, so files of another version must be
    rejected.
    """
    place = NAMES.version_staging(source, version)
    known: dict[str, StagedFile] = {}
    for part in parts:
        if (part.source, part.version) != (source, version):
            raise MessageError(
                "parts: of another version",
                wanted=f"{source!r} {version}",
                got=f"{part.source!r} {part.version}",
            )
        for one in part.files:
            path = PurePosixPath(one.path)
            is_below = path.parent.parent == PurePosixPath(place) and ".." not in path.parts
            if not is_below or str(path) != one.path:
                raise MessageError(
                    "parts: a file of another place",
                    wanted=f"one below {place.as_posix()}/<attempt>",
                    got=repr(one.path),
                )
            if known.setdefault(one.path, one) != one:
                raise MessageError(f"parts: two of them have one file, {one.path}, and differ")
    return tuple(sorted(known.values()))


def _check_files(area: StagingArea, manifest: Manifest) -> None:
    sizes = area.staged_bytes(manifest.source, manifest.version, manifest.files)
    for one in manifest.files:
        size = sizes[one.path]
        if size != one.bytes:
            raise CorruptError(
                "staged file that is to be committed",
                where=area.where(one.path),
                wanted=f"{one.bytes} bytes",
                got="none" if size is None else size,
            )


def _drop(area: StagingArea, source: str, version: int, files: Iterable[StagedFile]) -> None:
    """Remove the files of an attempt, except committed ones."""
    manifest = area.load(source, version)
    kept = set() if manifest is None else {one.path for one in manifest.files}
    area.remove([one for one in files if one.path not in kept])


def abort(
    root: str | os.PathLike[str] | StagingArea,
    parts: Iterable[Staged | None],
    *,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Remove the staged files of attempts. Committed files stay.

    In a bucket nothing is removed, as a commit that seems to have failed may still succeed. The
    owner of the shards removes the files after a day.
    """
    area = area_at("root", root, storage_options)
    if not area.removes_aborted:
        return
    for part in parts:
        if part is not None:
            _drop(area, part.source, part.version, part.files)


def quarantined(
    root: str | os.PathLike[str] | StagingArea,
    source: str,
    version: int,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[StagedFile]:
    """Return the files with the quarantined rows of a version."""
    manifest = area_at("root", root, storage_options).load(source, version)
    return iter(() if manifest is None else manifest.of_shard(QUARANTINE))
