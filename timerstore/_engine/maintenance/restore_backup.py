"""Restore: copy a backup into a new store directory, and check every byte.

Locking: `<name>.restoring` is locked while it is built, so a second restore of the same directory
is rejected. The backup is locked shared while it is read, so that no backup goes on there.
Invariants:
    1. The directory has its name only when it is whole. An interrupted one is `<name>.restoring`,
       and the next restore starts from scratch.
    2. Derived files are not restored. The first opening builds them from the log, in one scan.
Raises: ConfigError if the path is taken or the folder is no backup. CorruptError with file and
offset if the backup's bytes are not those that were written; then there is no store. LockedError if
another restore or a backup is running.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore._engine.base.failpoints import reach
from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.backup_json import BackupManifest, SavedSegment
from timerstore._engine.format.counts_json import Counts, IdsMark, Pending
from timerstore._engine.format.store_paths import (
    QUEUE_COUNT_MAX,
    WHEEL_TIMER_TOPIC,
    Tree,
    can_have_queue,
    segment_name,
)
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.format.wheel_slot import SLOT_BYTES
from timerstore._engine.log.survey import Files, SurveyedRecords, survey
from timerstore._engine.maintenance.backup import (
    CONFIG_NAMES,
    MANIFEST,
    Progress,
    check_progress,
    chunks_of,
    crc_of,
    read_manifest,
)
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.queues.message_ids import read_ids, write_ids
from timerstore._engine.storage.anchor import absolute_path, resolved_path
from timerstore._engine.storage.directory import locked_for_reading, staged_directory
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError, CorruptError, FailedError
from timerstore.types.config import RANGES
from timerstore.types.reports import BackupReport, Problem, Report

# --- bootstrap files ---
# The files that a restored or repaired store has in addition to its log, until it is opened.
#
#     queues      empty, each with the end to go on from if the log has no record of it
#     the wheel   zeros; its length gives the number of slots
#     counts      the ends of queues, and the valid length of the file of message ids
#     watermark   the log is whole and durable; its states do not exist (watermark.py)
#
# The first opening builds all other files from the log.


QUEUE_END_MAX = 1 << 58
"""The units of such a queue take 5 EiB. Their offset in bytes is still a valid file offset."""


def check_ends(ends: Pending) -> None:
    """Raise CorruptError if a queue with such an end cannot exist."""
    for topic, queues in ends.items():
        for queue_id, end in queues.items():
            if not can_have_queue(topic, queue_id) or not 0 <= end < QUEUE_END_MAX:
                raise CorruptError(
                    "the end of a queue",
                    wanted=f"a topic, a queue below {QUEUE_COUNT_MAX}, an end below 2^58",
                    got=f"{topic!r}, {queue_id}, {end}",
                )


def write_bootstrap(
    disk: Disk, tree: Tree, mark: Watermark, ends: Pending, ids: IdsMark, queue_segment_bytes: int
) -> None:
    """Write the files, the watermark last. They are durable on return.

    `ids`: the file of message ids, which exists already.

    Raises:
        CorruptError: a queue with such an end cannot exist.
    """
    check_ends(ends)
    for topic, queues in ends.items():
        for queue_id, end in queues.items():
            _make_queue(disk, tree, topic, queue_id, end, queue_segment_bytes)
    wheel = disk.open(tree.timer_wheel, create=True)
    wheel.resize(mark.wheel_slot_count * SLOT_BYTES)
    wheel.sync()
    disk.make_directory(tree.side)
    counts = Counts(mark.log_end, {}, ends, {}, {}, ids)
    disk.write_small(tree.counts, counts_json.write([counts]))
    disk.write_small(tree.watermark, watermark.write(mark))


def _make_queue(
    disk: Disk, tree: Tree, topic: str, queue_id: int, end: int, segment_bytes: int
) -> None:
    directory = tree.queue(topic, queue_id)
    disk.make_directory(directory)
    queue = ConsumeQueue(disk, directory, segment_bytes)
    queue.load()
    queue.restart(end)
    queue.sync()
    queue.close()


# --- restore backup ---


def restore(
    backup: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> BackupReport:
    """Restore a backup into a folder that is new or empty. The store is durable on return.

    `progress` is called with the number of bytes that were copied, and of all bytes.

    Raises:
        ConfigError: the path is taken, or there is no backup.
        CorruptError: the backup is damaged; there is no store then.
        LockedError: another restore makes the same folder, or a backup is being made.
        FailedError: the disk failed. If only the last sync did, the error says that the folder is
            complete; opening it makes its name durable.
    """
    backup, path = absolute_path("backup", backup), absolute_path("restore", path)
    check_progress(progress)
    disk = Disk()
    with _kept(disk, backup) as manifest:
        root, into = resolved_path("restore", backup), resolved_path("restore", path)
        if root in into.parents:  # the `timerwheel` in it would make it no valid backup
            raise ConfigError(f"restore: wanted a folder outside the backup {root}, got {into}")
        total = sum(one.size_bytes for one in manifest.segments)
        done = 0
        with staged_directory(disk, path, "restore", ".restoring") as tree:
            disk.make_directory(tree.commit_log)
            for one in manifest.segments:
                _copy_segment(disk, backup, tree, manifest, one)
                done += one.size_bytes
                if progress is not None:
                    progress(done, total)
            disk.sync_directory(tree.commit_log)
            ids = _copy_ids(disk, backup, tree, manifest)
            _write_rest(disk, tree, manifest, ids)
            disk.sync_directory(tree.root)
            reach("restore_built")
    return BackupReport(manifest.log_begin, manifest.log_end, len(manifest.segments), total, 0)


def check_backup(backup: str | os.PathLike[str]) -> Report:
    """Read a whole backup; report every segment whose bytes are not those that were written.

    In the other segments report every range that is not a record: the store was damaged when it was
    backed up.

    Raises:
        LockedError: a backup is being made there.
    """
    backup = absolute_path("backup", backup)
    disk = Disk()
    with _kept(disk, backup) as manifest:
        return _check(disk, backup, manifest)


def _check(disk: Disk, backup: Path, manifest: BackupManifest) -> Report:
    problems = []
    records = 0
    for one in manifest.segments:
        path = _segment_path(backup, one)
        try:
            got = str(crc_of(disk.open(path, read_only=True), one.size_bytes))
        except FailedError as error:
            got = str(error)
        if got != str(one.crc):
            problems.append(
                Problem("a damaged segment of a backup", str(path), f"CRC {one.crc}", got)
            )
            continue
        for piece in _pieces(disk, backup, manifest, one):
            if isinstance(piece, Problem):
                problems.append(piece)
            else:
                records += len(piece.rows)
    if read_ids(disk, Tree(backup), manifest.ids) is None:
        path, wanted = Tree(backup).ids(manifest.ids.number), _told(manifest.ids)
        size = disk.file_bytes(path)
        got = "no file" if size is None else f"{size} bytes"
        problems.append(Problem("damaged message ids of a backup", str(path), wanted, got))
    counts = {
        "segments": len(manifest.segments),
        "bytes": sum(one.size_bytes for one in manifest.segments),
        "records": records,
    }
    return Report(tuple(problems), counts)


def _pieces(
    disk: Disk, backup: Path, manifest: BackupManifest, one: SavedSegment
) -> Iterator[SurveyedRecords | Problem]:
    """Return the records of a segment, and the ranges that are no records."""
    size, end = manifest.commit_log_segment_bytes, one.offset + one.size_bytes
    if not one.size_bytes <= size <= RANGES["commit_log_segment_bytes"][1]:
        raise CorruptError("backup.json", wanted="segments of a log", got=f"{one} of {size} bytes")
    files = Files(Tree(backup).commit_log, size, {one.offset // size: one.size_bytes}, ())
    for piece in survey(disk, files, manifest.precision_ms):
        if isinstance(piece, SurveyedRecords):
            yield piece
        elif piece.begin < end:  # zeros follow, as the file is shorter than a segment
            where = files.place(piece.begin, min(piece.end, end))
            yield Problem("damaged when it was backed up", where, "records", piece.why)


@contextmanager
def _kept(disk: Disk, backup: Path) -> Iterator[BackupManifest]:
    """Lock a backup while it is read, so that no backup changes it, and yield its manifest."""
    _manifest_of(disk, backup)  # ConfigError before a lock file is made
    with locked_for_reading(Disk(), resolved_path("backup", backup)):
        yield _manifest_of(disk, backup)


def _manifest_of(disk: Disk, backup: Path) -> BackupManifest:
    manifest = read_manifest(disk, backup)
    if manifest is None:
        raise ConfigError(
            f"backup: wanted a folder that `backup` made, with {MANIFEST} in it, got "
            f"{_what_is_there(disk, backup)}"
        )
    return manifest


def _what_is_there(disk: Disk, path: Path) -> str:
    if disk.is_directory(path):
        what = "a folder without one" if disk.list(path) else "an empty folder"
        return f"{what}: {path}"
    return f"a file: {path}" if disk.exists(path) else f"nothing: there is no {path}"


def _segment_path(backup: Path, one: SavedSegment) -> Path:
    return Tree(backup).commit_log / segment_name(one.offset)


def _copy_segment(
    disk: Disk, backup: Path, tree: Tree, manifest: BackupManifest, one: SavedSegment
) -> None:
    path = _segment_path(backup, one)
    source = disk.open(path, read_only=True)
    target = disk.open(tree.commit_log / segment_name(one.offset), create=True)
    crc = 0
    for at, data in chunks_of(source, 0, one.size_bytes):
        target.write(data, at)
        crc = zlib.crc32(data, crc)
    if crc != one.crc:
        raise CorruptError(
            "the backup is damaged",
            where=f"{path} bytes 0 to {one.size_bytes}",
            wanted=f"CRC {one.crc}",
            got=crc,
        )
    target.resize(manifest.commit_log_segment_bytes)
    target.sync()


def _told(ids: IdsMark) -> str:
    return f"{ids.bytes} bytes of CRC {ids.crc}"


def _copy_ids(disk: Disk, backup: Path, tree: Tree, manifest: BackupManifest) -> IdsMark:
    entries = read_ids(disk, Tree(backup), manifest.ids)
    if entries is None:
        raise CorruptError(
            "the backup is damaged",
            where=Tree(backup).ids(manifest.ids.number),
            wanted=_told(manifest.ids),
            got="others, or fewer",
        )
    return write_ids(disk, tree, 0, entries)


def _write_rest(disk: Disk, tree: Tree, manifest: BackupManifest, ids: IdsMark) -> None:
    """Write config, sizes, ends of queues and message ids, which the log does not have."""
    disk.make_directory(tree.config)
    for name in CONFIG_NAMES:
        if name in manifest.config:
            disk.write_small(tree.config / name, manifest.config[name].encode())
    mark = watermark.bootstrap(
        log_begin=manifest.log_begin,
        log_end=manifest.log_end,
        store_id=manifest.store_id,
        precision_ms=manifest.precision_ms,
        wheel_slot_count=manifest.wheel_slot_count,
        timer_id_end=manifest.queue_ends.get(WHEEL_TIMER_TOPIC, {}).get(0, 0),
    )
    write_bootstrap(disk, tree, mark, manifest.queue_ends, ids, manifest.queue_segment_bytes)
