"""Ingest: append committed rows to the logs of their shards. The owner of a shard does this.

Thread safety: one pass at a time for each Ingester.
Invariants:
    1. The log of a shard records which versions it has (TimerStore.ingest). So a pass may die at
       any point and be repeated.
    2. A staged file is removed only when its shard has its rows durably.
    3. A shard ingests the versions of a source in order.
Raises: as TimerStore.ingest; CorruptError for damaged staged files and manifests, and for rows that
are neither in a shard nor in their file: then no later version of the source is ingested. The error
of one source does not stop the others; the first error is raised after all sources.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from timerstore import store as single
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.service import Service
from timerstore._engine.base.signal import Signals
from timerstore._engine.buckets.bucket_url import reject_without_bucket
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.storage.disk import Disk
from timerstore._engine.write.row_batch import IngestedVersions, IngestReceipt, RowBatch
from timerstore.errors import (
    ClosedError,
    CorruptError,
    LockedError,
    MessageError,
    TimerStoreError,
)
from timerstore.shards.bucket_binding import BucketSource
from timerstore.shards.cluster import config_for, require, require_shards
from timerstore.shards.folder_staging import FolderStaging
from timerstore.shards.manifest import Manifest
from timerstore.shards.shard_paths import ShardsTree
from timerstore.shards.staged_files import StagedFile, read_staged
from timerstore.shards.staging_area import CommittedVersions, StagingArea
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig

_log = logging.getLogger("timerstore.shards")

_BACKOFF_S_MAX = 60.0
Item = TypeVar("Item")
Result = TypeVar("Result")
_LOOK_AT_ALL = 64  # every n-th pass skips nothing, in case the clock of a file server is slow


class Taker(Protocol):
    """A store that ingests rows: a TimerStore."""

    def ingest(self, source: str, version: int, batches: Iterable[RowBatch]) -> IngestReceipt:
        """Ingest the rows of a version, once."""

    def ingested(self, source: str) -> IngestedVersions:
        """Return the complete versions."""


class Ingested(NamedTuple):
    """One version that was ingested into one shard."""

    shard: int
    source: str
    version: int
    row_count: int


class IngestReport(NamedTuple):
    """The result of `ingest`: ingested versions, and shards that other processes have open."""

    ingested: tuple[Ingested, ...]
    locked: tuple[int, ...]

    @property
    def row_count(self) -> int:
        """The number of ingested rows."""
        return sum(one.row_count for one in self.ingested)


class ShardIngester(NotCopyable):
    """Ingests committed rows into shards that are open in this process."""

    def __init__(
        self, root: Path, stores: Mapping[int, Taker], area: StagingArea | None = None
    ) -> None:
        """`area`: where rows are committed; by default the directory `root`."""
        self._area = area if area is not None else FolderStaging(root)
        self._stores = stores
        self._settled: dict[str, Hashable] = {}  # source: its stamp at a pass that left nothing
        self._disk = Disk()
        self._strays: list[Path] = []  # already logged
        self._passes = 0
        self._stop = threading.Event()

    def stop(self) -> None:
        """Make a running pass end soon, also within a version. The next pass continues there."""
        self._stop.set()

    def run(self, now_ms: int, committed: CommittedVersions | None = None) -> list[Ingested]:
        """Run one pass over every source. `now_ms` is the machine's time, as the times of folders
        are. `committed`: what to ingest; by default all that is committed now.

        A source is skipped if it has not changed since a pass that left nothing.
        """
        self._passes += 1
        if self._passes % _LOOK_AT_ALL == 0:
            self._settled.clear()
        if committed is None:
            committed = self._area.committed()
        self._log_strays(committed.strays)
        done: list[Ingested] = []

        def look(source: str) -> None:
            stamp = committed.stamp(source)
            if self._settled.get(source) == stamp:
                return
            self._run_source(source, committed, done)
            if committed.is_final(stamp, now_ms):
                self._settled[source] = stamp

        every(look, committed.sources)
        return done

    def _log_strays(self, strays: list[Path]) -> None:
        for path in strays:
            if path not in self._strays:  # log once: there may be a pass every second
                _log.warning("event=stray_among_sources path=%s", path)
        self._strays = strays

    def _run_source(self, source: str, committed: CommittedVersions, done: list[Ingested]) -> None:
        known = {shard: store.ingested(source) for shard, store in self._stores.items()}
        staged = committed.staged(source)
        failed: dict[int, TimerStoreError] = {}
        for version in committed.versions(source):
            missing = [shard for shard in known if version not in known[shard]]
            if not missing and version not in staged:
                continue
            manifest = self._area.load(source, version)
            if manifest is None:
                continue  # every shard has it, and the janitor has removed it
            for shard in known:
                if shard in failed:
                    continue  # its later versions wait; other shards continue
                if shard not in missing:
                    # a pass died before it removed the files
                    self._area.remove(manifest.of_shard(shard))
                    continue
                try:
                    done.append(self._take(shard, manifest))
                except TimerStoreError as error:
                    failed[shard] = error
        if failed:
            raise next(iter(failed.values()))

    def _take(self, shard: int, manifest: Manifest) -> Ingested:
        files = manifest.of_shard(shard)
        source, version = manifest.source, manifest.version
        reach("shard_ingest_begun")
        with self._area.fetched(shard, files, self._stop.is_set) as found:
            if found.missing:
                raise self._lost(shard, manifest, found.missing[0])
            batches = self._until_stopped(read_staged(self._disk, found.root, files))
            try:
                receipt = self._stores[shard].ingest(source, version, batches)
            except TimerStoreError as error:
                where = f"shard {shard}: source {source!r} version {version}"
                if not str(error).startswith("shard "):
                    error.args = (f"{where}: {error}",)
                raise
        wanted = sum(one.rows for one in files)
        if receipt.row_count != wanted:
            raise MessageError(
                f"shard {shard}: source {source!r} version {version} has another number of rows; "
                f"wanted {wanted}; got {receipt.row_count}"
            )
        reach("shard_ingest_durable")
        self._area.remove(files)
        reach("shard_files_dropped")
        _log.info(
            "event=ingested shard=%d source=%s version=%d rows=%d", shard, source, version, wanted
        )
        return Ingested(shard, source, version, wanted)

    def _lost(self, shard: int, manifest: Manifest, one: StagedFile) -> CorruptError:
        """Return the error for rows that are neither in the shard nor in their file. This is
        permanent, and only an operator can decide whether the shard continues without them.
        """
        source, version = manifest.source, manifest.version
        return CorruptError(
            f"shard {shard}: source {source!r} version {version} is lost: its rows are not "
            "in the shard, as in one that was restored from a backup, and their file is "
            f"gone; store.stores[{shard}].ingest({source!r}, {version}, []) lets later "
            "versions in (docs/operations.md, Recover a lost shard)",
            where=self._area.where(one.path),
            wanted=f"{one.rows} rows",
            got="none",
        )

    def _until_stopped(self, batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
        for batch in batches:
            if self._stop.is_set():
                raise ClosedError("ingest was stopped within a version; the next one continues it")
            yield batch


class IngestService(Service):
    """Looks for committed rows every `every_s` seconds: other processes cannot wake it.

    An error is logged once, kept in `error`, and the next look tries again; the shards themselves
    are not affected. After an unexpected error, each further look is later than the one before.
    """

    name = "ingest"

    def __init__(self, look: Callable[[], object], every_s: float) -> None:
        super().__init__(Metrics(), Signals())
        self._look = look
        self._every_s = every_s
        self.error = ""
        self._unforeseen = 0  # consecutive looks with an unexpected error

    def step(self) -> bool:
        """Look once."""
        try:
            self._look()
            self.error, self._unforeseen = "", 0
        except Exception as error:  # noqa: BLE001 - the thread continues after any error
            is_known = isinstance(error, TimerStoreError)
            text = str(error) if is_known else repr(error)
            if text != self.error and not isinstance(error, ClosedError):
                _log.error("event=ingest_failed error=%r", error)
            self.error = text
            self._unforeseen = 0 if is_known else self._unforeseen + 1
        return False

    def idle_s(self) -> float:
        """Return the seconds until the next look."""
        longer_s = min(self._every_s * (1 << min(self._unforeseen, 16)), _BACKOFF_S_MAX)
        return max(self._every_s, longer_s)


def ingest(
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    shards: Iterable[int] | None = None,
    ingest_from: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> IngestReport:
    """Ingest committed rows into each shard that no process has open, several at a time.

    This only stores messages: due messages are delivered when the owner opens the shards. Shards
    that another process has open are left to it and named in the report.

    shards: only these shards.

    ingest_from: also ingest the rows that are committed in a bucket, as `open_shards` does.

    storage_options: settings of obstore for the bucket; by default those of the environment. Only
        with `ingest_from`.

    Raises:
        MessageError: `shards` is invalid.
        ConfigError: the path is not a directory of shards, or the bucket belongs to another one.
        CorruptError: the folder of a shard is missing; no shard was opened. Or a staged file is
            damaged.
        BucketError: the bucket does not answer. The call can be repeated.
    """
    root = absolute_path("path", path)
    if ingest_from is None:
        reject_without_bucket(storage_options, "path", root)
    disk, tree = Disk(), ShardsTree(root)
    cluster = require(disk, root)
    config = replace(config_for(cluster, config, tree.cluster_json), stop_dequeue=True)
    chosen = _checked_shards(shards, cluster.shard_count)
    require_shards(disk, tree, cluster, chosen)
    areas: list[StagingArea] = [FolderStaging(root)]
    if ingest_from is not None:
        bucket = BucketSource(tree, cluster, ingest_from, storage_options)
        bucket.bind()
        areas.append(bucket.area)

    def take(shard: int) -> list[Ingested] | None:
        """Ingest into one shard. Return None if another process has it open."""
        try:
            store = single.open(tree.shard(shard), config, clock=clock)
        except LockedError:
            return None
        with store:
            ingesters = [ShardIngester(root, {shard: store}, area) for area in areas]
            return [done for part in every(lambda one: one.run(0), ingesters) for done in part]

    with ThreadPoolExecutor(min(max(len(chosen), 1), os.cpu_count() or 1)) as pool:
        found = dict(zip(chosen, pool.map(take, chosen), strict=True))
    return IngestReport(
        tuple(one for part in found.values() for one in part or ()),
        tuple(shard for shard, part in found.items() if part is None),
    )


def every(call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call for each item, also after one that fails. Raise the first error at the end."""
    results: list[Result] = []
    errors: list[Exception] = []
    for one in items:
        try:
            results.append(call(one))
        except Exception as error:  # noqa: BLE001 - of one item: the others go on
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def _checked_shards(shards: Iterable[int] | None, count: int) -> list[int]:
    chosen = sorted(set(range(count) if shards is None else shards))
    wrong = [one for one in chosen if type(one) is not int or not 0 <= one < count]
    if wrong:
        raise MessageError(f"shards: wanted some of 0 to {count - 1}, got {wrong}")
    return chosen
