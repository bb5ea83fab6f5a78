"""`Copier`: copy a live store into a backup, while its services go on.

A backup is as of one completed checkpoint: it is a prefix of the log that ends at a record's edge.

    recurring definitions   copied in the critical section in which the checkpoint notes the log end
    committed offsets       read before the checkpoint begins, so they never lie past the log; the
                            log has the leases that they do not cover
    topics                  read after the checkpoint; a topic without a message does no harm
    ends of queues, ids     those of the checkpoint

Thread safety: one caller at a time for each backup, by the lock on its folder.
Invariants:
    1. All that backup.json names was durable before it was written. A backup that is interrupted
       leaves the previous one.
    2. A segment that the backup has whole is not read again, except the last one. The copied part
       of that one is read and compared, even if it is complete, so that two logs are never mixed.
    3. A segment that is missing from the folder, or shorter than before, is compared and copied
       again.
    4. The backup has the message ids of the dedupe window whose messages retention has removed.
Raises: ConfigError if the folder is not a backup of this store. CorruptError if the log is not the
one that was backed up. FullError and FailedError from the disk.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.format import backup_json, counts_json, recurring_json
from timerstore._engine.format.backup_json import BackupManifest, SavedSegment
from timerstore._engine.format.counts_json import NO_IDS, IdsMark
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.format.store_paths import BACKUP_JSON, Tree, segment_name, segment_offset
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.queues.message_ids import Entries, read_ids, remove_ids, write_ids
from timerstore._engine.storage.anchor import resolved_path
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore.errors import ConfigError, CorruptError, FailedError, typed
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig
from timerstore.types.reports import BackupReport

_CHUNK_BYTES = 8 << 20
CONFIG_NAMES = ("topics.json", "consumerOffset.json", "timerstoreRecurring.json")
"""Files of config/ whose contents are not in the log."""
MANIFEST = BACKUP_JSON
_TRIES = 100  # a checkpoint may end between reading the counts and reading the message ids

Progress = Callable[[int, int], None]
"""Called with the number of bytes that were copied, and of all bytes."""


class _Held(NamedTuple):
    """A segment of the store that is kept open. Retention may remove its name, not its bytes."""

    offset: int
    file: File
    size_bytes: int  # the bytes from its begin that belong to the backup


class Copier:
    """Copies one open store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        disk: Disk,
        tree: Tree,
        segments: Segments,
        checkpoint: Checkpoint,
    ) -> None:
        self._config = config
        self._clock = clock
        self._disk = disk
        self._tree = tree
        self._segments = segments
        self._checkpoint = checkpoint

    def run(self, target: Path, progress: Progress | None = None) -> BackupReport:
        """Complete a checkpoint and copy the store up to it. The backup is durable on return."""
        check_progress(progress)
        root, store = resolved_path("backup", target), resolved_path("backup", self._tree.root)
        if root == store or store in root.parents or root in store.parents:
            raise ConfigError(f"backup: wanted a folder outside the store {store}, got {root}")
        check_folder(self._disk, root)
        directory = Directory(self._disk, root)
        try:
            return self._copy(directory.tree, _silent if progress is None else progress)
        finally:
            directory.release()

    def _copy(self, target: Tree, progress: Progress) -> BackupReport:
        config = self._config_texts()
        self._checkpoint.run()
        mark, counts, ids, recurring = self._mark()
        config |= _texts(self._disk, [self._tree.topics_json])
        if recurring:
            config[self._tree.recurring_json.name] = recurring_json.write(recurring).decode()
        held = self._hold(mark.log_end)
        begin = held[0].offset if held else mark.log_end
        new = self._manifest(mark, begin, counts.ends, config)
        before = self._before(target, new)
        self._disk.make_directory(target.commit_log)
        transfer = _Transfer(self._disk, target, before, progress)
        transfer.left = sum(transfer.missing_bytes(one) for one in held)
        rows = tuple(transfer.bring(one) for one in held)
        self._disk.sync_directory(target.commit_log)
        self._disk.sync_directory(target.root)  # an interrupted backup may have made the folder
        new = new._replace(segments=rows, ids=self._bring_ids(target, before.ids, ids, begin))
        reach("backup_copied")
        _write_manifest(self._disk, target.root, new)
        reach("backup_written")
        remove_ids(self._disk, target, but=new.ids.number)
        self._remove_below(target, begin)
        kept = sum(row.size_bytes for row in rows) - transfer.copied
        return BackupReport(begin, mark.log_end, len(rows), transfer.copied, kept)

    def _remove_below(self, target: Tree, begin: int) -> None:
        """Remove segments that retention has removed from the store."""
        for name in self._disk.list(target.commit_log):
            with suppress(CorruptError):  # not a segment
                if segment_offset(name) < begin:
                    self._disk.unlink(target.commit_log / name)
        self._disk.sync_directory(target.commit_log)

    def _config_texts(self) -> dict[str, str]:
        """Return the files of config/ that must not be ahead of the log."""
        return _texts(self._disk, [self._tree.consumer_offset_json])

    def _mark(self) -> tuple[Watermark, counts_json.Counts, Entries | None, list[Definition]]:
        """Return the last completed checkpoint: its watermark, counts and recurring definitions,
        and its message ids if they are whole.
        """
        for _ in range(_TRIES):
            with self._checkpoint.still():
                mark, recurring = self._checkpoint.completed, self._checkpoint.recurring
                assert mark is not None, "opening completes one"
                counts = counts_json.read_counts(
                    self._disk.read_small(self._tree.counts), mark.log_end, mark.sequence
                )
            if counts is None:
                break
            ids = read_ids(self._disk, self._tree, counts.ids)
            if ids is not None or self._checkpoint.completed == mark:
                return mark, counts, ids, recurring
        raise FailedError("no checkpoint can be read", where=self._tree.watermark)

    def _bring_ids(self, target: Tree, saved: IdsMark, ids: Entries | None, begin: int) -> IdsMark:
        """Copy the message ids whose records lie below `begin`. The backup's ids stay if they are
        the same, or if the store's own are damaged.
        """
        if ids is None:
            return saved
        is_young = self._clock.now_ms - ids["store_ms"] < self._config.dedupe_window_ms
        wanted = ids[is_young & (ids["log_offset"] < begin)]
        if (wanted.nbytes, zlib.crc32(wanted.tobytes())) == saved[1:]:
            return saved
        return write_ids(self._disk, target, saved.number + 1, wanted)

    def _hold(self, log_end: int) -> list[_Held]:
        """Open every segment below the log end."""
        size = self._segments.segment_bytes
        held = []
        for number in list(self._segments.numbers):
            offset = number * size
            if offset < log_end:
                file = self._disk.open(self._segments.path(number), read_only=True)
                held.append(_Held(offset, file, min(log_end - offset, size)))
        return held

    def _manifest(
        self, mark: Watermark, begin: int, ends: counts_json.Pending, config: dict[str, str]
    ) -> BackupManifest:
        return BackupManifest(
            mark.store_id,
            self._clock.now_ms,
            begin,
            mark.log_end,
            self._segments.segment_bytes,
            self._config.queue_segment_bytes,
            self._config.timer_log_segment_bytes,
            mark.wheel_slot_count,
            mark.precision_ms,
            (),
            ends,
            config,
            NO_IDS,
        )

    def _before(self, target: Tree, new: BackupManifest) -> BackupManifest:
        """Return what the backup has. A new one gets a manifest before anything is copied."""
        found = read_manifest(self._disk, target.root)
        if found is None:
            found = new._replace(log_end=new.log_begin, queue_ends={}, config={})
            _write_manifest(self._disk, target.root, found)
            return found
        wanted = (new.store_id, new.commit_log_segment_bytes)
        got = (found.store_id, found.commit_log_segment_bytes)
        if wanted != got:
            raise ConfigError(
                f"backup {target.root}: wanted one of store {wanted[0]} with segments of "
                f"{wanted[1]} bytes, got one of store {got[0]} with {got[1]}"
            )
        if found.log_end > new.log_end:
            raise ConfigError(
                f"backup {target.root}: wanted one no longer than the log, which ends at "
                f"{new.log_end}, got one up to {found.log_end}"
            )
        return found


class _Transfer:
    """Copies segments into one backup."""

    def __init__(
        self, disk: Disk, target: Tree, before: BackupManifest, progress: Progress
    ) -> None:
        """`before`: the manifest of the backup as it is."""
        self._disk = disk
        self._target = target
        self._saved = {row.offset: row for row in before.segments}
        self._last = max(self._saved, default=None)
        self._lost = {row.offset for row in before.segments if not self._is_there(row)}
        self._progress = progress
        self.copied = 0
        self.left = 0

    def _path(self, offset: int) -> Path:
        return self._target.commit_log / segment_name(offset)

    def _is_there(self, row: SavedSegment) -> bool:
        return (self._disk.file_bytes(self._path(row.offset)) or 0) >= row.size_bytes

    def missing_bytes(self, one: _Held) -> int:
        """Return how many bytes of a segment must be copied."""
        is_there = one.offset in self._saved and one.offset not in self._lost
        return one.size_bytes - (self._saved[one.offset].size_bytes if is_there else 0)

    def bring(self, one: _Held) -> SavedSegment:
        """Copy the part of a segment that the backup does not have."""
        saved = self._saved.get(one.offset, SavedSegment(one.offset, 0, 0))
        is_lost = one.offset in self._lost
        is_compared = is_lost or one.offset == self._last
        if is_compared and crc_of(one.file, saved.size_bytes) != saved.crc:
            raise CorruptError(
                "the store's log is not the one that was backed up here",
                where=f"{one.file.path} bytes 0 to {saved.size_bytes}",
                wanted=f"CRC {saved.crc}",
            )
        done, crc = (0, 0) if is_lost else (saved.size_bytes, saved.crc)
        if done == one.size_bytes:
            return saved
        path = self._path(one.offset)
        # backup.json has the length of a lost segment. So it gets its name only when it is whole.
        path = path.with_name(f"{path.name}.part") if is_lost else path
        file = self._disk.open(path, create=True)
        for at, data in chunks_of(one.file, done, one.size_bytes):
            file.write(data, at)
            crc = zlib.crc32(data, crc)
            self.copied += len(data)
            self.left -= len(data)
            self._progress(self.copied, self.copied + self.left)
        file.sync()
        if is_lost:
            self._disk.rename(path, self._path(one.offset))
        reach("backup_segment_copied")
        return SavedSegment(one.offset, one.size_bytes, crc)


def _texts(disk: Disk, paths: list[Path]) -> dict[str, str]:
    """Return the small files that exist, by name."""
    found = {path.name: disk.read_small(path) for path in paths}
    return {name: text.decode() for name, text in found.items() if text is not None}


def check_progress(progress: object) -> None:
    """Raise ConfigError if `progress` cannot be called."""
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress: wanted a callable, got {typed(progress)}")


def crc_of(file: File, size: int) -> int:
    """Return the CRC-32 of a file's first bytes."""
    crc = 0
    for _, data in chunks_of(file, 0, size):
        crc = zlib.crc32(data, crc)
    return crc


def chunks_of(file: File, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Read [begin, end) of a file in parts, each with its offset."""
    for at in range(begin, end, _CHUNK_BYTES):
        yield at, file.read(at, min(_CHUNK_BYTES, end - at))


def read_manifest(disk: Disk, root: Path) -> BackupManifest | None:
    """Return the manifest of a backup; None without one. A CorruptError names the file."""
    path = root / MANIFEST
    text = disk.read_small(path)
    if text is None:
        return None
    try:
        return backup_json.read(text)
    except CorruptError as error:
        raise type(error)(str(error), where=path) from error


def check_folder(disk: Disk, root: Path) -> None:
    """Raise ConfigError for a folder that is neither empty nor a backup."""
    if disk.exists(root) and not disk.is_directory(root):
        raise ConfigError(f"backup: wanted a folder, got {root}")
    # A first backup that was interrupted in its first step leaves only this temporary file.
    names = [name for name in disk.list(root) if name not in ("lock", f"{MANIFEST}.tmp")]
    if MANIFEST in names and Tree(root).timer_wheel.name in names:
        raise ConfigError(
            f"backup {root}: wanted a backup, got one that was opened as a store: it has a "
            f"timerwheel, and maybe messages of its own"
        )
    if names and MANIFEST not in names:
        raise ConfigError(
            f"backup {root}: wanted an empty folder or one with {MANIFEST}, got one with "
            f"{', '.join(names[:5])}"
        )


def _write_manifest(disk: Disk, root: Path, manifest: BackupManifest) -> None:
    disk.write_small(root / MANIFEST, backup_json.write(manifest))


def _silent(_done: int, _all: int) -> None:
    pass
