"""Ingest: what is committed, into its shards' logs, by the owner of each shard.

Threads:  one pass at a time for one object.
Holds:    (1) the shard's own log says which versions it has (TimerStore.ingest), so a pass may die
          anywhere and be done again; (2) a staged file goes only when its shard has its rows,
          durably; (3) a shard takes a source's versions in order.
Fails:    as TimerStore.ingest; CorruptError on staged files and manifests, and on rows that are
          neither in a shard nor in their file: it takes no later version then. One source's error
          does not hold up the others: the first is raised after all were tried.
Source:   docs/decisions/0008-deduplication-and-ingest.md.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from timerstore import store as single
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.service import Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.ingest.row_batch import IngestedVersions, IngestReceipt, RowBatch
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.paths import anchored
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import (
    ClosedError,
    CorruptError,
    LockedError,
    MessageError,
    TimerStoreError,
)
from timerstore.shards import manifest as manifests
from timerstore.shards.cluster import config_for, require, require_shards
from timerstore.shards.manifest import Manifest
from timerstore.shards.shard_paths import ShardsTree, source_component
from timerstore.shards.staged_files import read_staged

_log = logging.getLogger("timerstore.shards")

_TICK_MS = 2000  # coarser than any file system's times
_BACKOFF_S_MAX = 60.0
_LOOK_AT_ALL = 64  # passes: a look at what settled, against a file server whose clock is behind


class Taker(Protocol):
    """What takes rows: a TimerStore."""

    def ingest(self, source: str, version: int, batches: Iterable[RowBatch]) -> IngestReceipt:
        """Take a version's rows, once."""

    def ingested(self, source: str) -> IngestedVersions:
        """Give the versions that are complete."""


class Ingested(NamedTuple):
    """One version that came into one shard."""

    shard: int
    source: str
    version: int
    row_count: int


class IngestReport(NamedTuple):
    """What `ingest` did: the versions that came in, and the shards that others have open."""

    ingested: tuple[Ingested, ...]
    locked: tuple[int, ...]

    @property
    def row_count(self) -> int:
        """Rows that came in."""
        return sum(one.row_count for one in self.ingested)


class Ingester(Owner):
    """Takes what is committed into shards that are open here."""

    def __init__(self, root: Path, stores: Mapping[int, Taker]) -> None:
        self._disk = Disk()
        self._tree = ShardsTree(root)
        self._stores = stores
        self._settled: dict[str, int] = {}  # source: its folder's time at a pass that left nothing
        self._strays: list[Path] = []  # that were told of
        self._passes = 0
        self._stop = threading.Event()

    def stop(self) -> None:
        """Have a pass that runs end soon, amid a version, too: the next one goes on behind it."""
        self._stop.set()

    def run(self, now_ms: int) -> list[Ingested]:
        """One pass over every source; `now_ms` by the machine's clock, as folders' times are.

        A source whose folder did not change since a pass that left nothing is passed over.
        """
        self._passes += 1
        if self._passes % _LOOK_AT_ALL == 0:
            self._settled.clear()
        done: list[Ingested] = []
        errors: list[Exception] = []
        for source in self._sources():
            changed_ms = self._disk.changed_ms(self._tree.source_manifests(source)) or 0
            if self._settled.get(source) == changed_ms:
                continue
            try:
                self._run_source(source, done)
            except Exception as error:  # noqa: BLE001 - of one source: the others go on
                errors.append(error)
                continue
            # A folder that changed just now may change again within the same tick of its clock.
            if changed_ms < now_ms - _TICK_MS:
                self._settled[source] = changed_ms
        if errors:
            raise errors[0]
        return done

    def _sources(self) -> list[str]:
        found = manifests.find_sources(self._disk, self._tree)
        for path in found.strays:
            if path not in self._strays:  # once: there is a pass every second
                _log.warning("event=stray_among_sources path=%s", path)
        self._strays = found.strays
        return found.sources

    def _run_source(self, source: str, done: list[Ingested]) -> None:
        known = {shard: store.ingested(source) for shard, store in self._stores.items()}
        staged = set(self._disk.list(self._tree.staging / source_component(source)))
        failed: dict[int, TimerStoreError] = {}
        for version in manifests.versions(self._disk, self._tree, source):
            missing = [shard for shard in known if version not in known[shard]]
            if not missing and f"{version:020d}" not in staged:
                continue
            manifest = manifests.load(self._disk, self._tree, source, version)
            if manifest is None:
                continue  # every shard has it, and a janitor was here meanwhile
            for shard in known:
                if shard in failed:
                    continue  # its later versions wait; other shards go on
                if shard not in missing:
                    self._drop(manifest, shard)  # died between the two
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
        self._refuse_lost(shard, manifest)
        reach("shard_ingest_begun")
        batches = self._until_stopped(read_staged(self._disk, self._tree.root, files))
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
        self._drop(manifest, shard)
        reach("shard_files_dropped")
        _log.info(
            "event=ingested shard=%d source=%s version=%d rows=%d", shard, source, version, wanted
        )
        return Ingested(shard, source, version, wanted)

    def _refuse_lost(self, shard: int, manifest: Manifest) -> None:
        """CorruptError where rows are neither in the shard nor in their file. That is so for ever,
        and whether the shard goes on without them nobody here can decide.
        """
        source, version = manifest.source, manifest.version
        for one in manifest.of_shard(shard):
            path = self._tree.root / one.path
            if not self._disk.exists(path):
                raise CorruptError(
                    f"shard {shard}: source {source!r} version {version} is lost: its rows are not "
                    "in the shard, as in one that was put back from a backup, and their file is "
                    f"gone; store.stores[{shard}].ingest({source!r}, {version}, []) lets later "
                    "versions in (docs/operations.md, Recover a lost shard)",
                    where=path,
                    wanted=f"{one.rows} rows",
                    got="none",
                )

    def _until_stopped(self, batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
        for batch in batches:
            if self._stop.is_set():
                raise ClosedError("ingest was stopped amid a version; it goes on there")
            yield batch

    def _drop(self, manifest: Manifest, shard: int) -> None:
        root = self._tree.root
        files = manifest.of_shard(shard)
        for one in files:
            if self._disk.exists(root / one.path):
                self._disk.unlink(root / one.path)
        folders = {(root / one.path).parent for one in files}
        manifests.remove_empty(self._disk, self._tree, folders)


class IngestService(Service):
    """Looks for what is committed every `every_s` seconds: other processes cannot wake it.

    An error is logged once, kept in `error`, and tried again with the next look: whatever it is,
    the shards themselves are well. After one that nobody foresaw the next look is later each time.
    """

    name = "ingest"

    def __init__(self, look: Callable[[], object], every_s: float) -> None:
        super().__init__(Metrics(), Signals())
        self._look = look
        self._every_s = every_s
        self.error = ""
        self._unforeseen = 0  # looks, one behind the other

    def step(self) -> bool:
        """One look."""
        try:
            self._look()
            self.error, self._unforeseen = "", 0
        except Exception as error:  # noqa: BLE001 - the thread goes on, whatever it is
            is_known = isinstance(error, TimerStoreError)
            text = str(error) if is_known else repr(error)
            if text != self.error and not isinstance(error, ClosedError):
                _log.error("event=ingest_failed error=%r", error)
            self.error = text
            self._unforeseen = 0 if is_known else self._unforeseen + 1
        return False

    def idle_s(self) -> float:
        """Until the next look."""
        longer_s = min(self._every_s * (1 << min(self._unforeseen, 16)), _BACKOFF_S_MAX)
        return max(self._every_s, longer_s)


def ingest(
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    shards: Iterable[int] | None = None,
) -> IngestReport:
    """Take what is committed into each shard that nobody has open, some of them side by side.

    It only stores: what is due is delivered when the owner opens the shards. `shards`: these only.
    Shards that others have open are left to them and named in the answer. One whose folder is gone
    is a CorruptError before any is opened.
    """
    root = anchored("path", path)
    disk, tree = Disk(), ShardsTree(root)
    cluster = require(disk, root)
    config = replace(config_for(cluster, config, tree.cluster_json), stop_dequeue=True)
    chosen = _checked_shards(shards, cluster.shard_count)
    require_shards(disk, tree, cluster, chosen)

    def take(shard: int) -> list[Ingested] | None:
        """One shard's; None where somebody has it open."""
        try:
            store = single.open(tree.shard(shard), config, clock=clock)
        except LockedError:
            return None
        with store:
            return Ingester(root, {shard: store}).run(0)

    with ThreadPoolExecutor(min(max(len(chosen), 1), os.cpu_count() or 1)) as pool:
        found = dict(zip(chosen, pool.map(take, chosen), strict=True))
    return IngestReport(
        tuple(one for part in found.values() for one in part or ()),
        tuple(shard for shard, part in found.items() if part is None),
    )


def _checked_shards(shards: Iterable[int] | None, count: int) -> list[int]:
    chosen = sorted(set(range(count) if shards is None else shards))
    wrong = [one for one in chosen if type(one) is not int or not 0 <= one < count]
    if wrong:
        raise MessageError(f"shards: wanted some of 0 to {count - 1}, got {wrong}")
    return chosen
