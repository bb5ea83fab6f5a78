"""Commands `init`, `backup` and `restore`: create a store or its backup."""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click

from timerstore import store as single
from timerstore._engine.format.store_paths import Tree, segment_name, shard_number
from timerstore._engine.log.staging import read_staged
from timerstore._engine.log.survey import list_files
from timerstore._engine.maintenance import restore
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk, is_temporary_of
from timerstore.cli.exits import CommandError
from timerstore.cli.opening import connected, opened_single, require
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import (
    FOLDER,
    StorePlace,
    StoreUrl,
    config_of,
    config_option,
    files_argument,
    json_option,
    store_argument,
)
from timerstore.cli.progress import progress
from timerstore.cli.stopping import stopping
from timerstore.cli.text import plural, size_text
from timerstore.errors import FailedError
from timerstore.shards import open_shards
from timerstore.shards.kinds import Kind, kind_of
from timerstore.shards.shard_paths import ShardsTree
from timerstore.types.config import StoreConfig
from timerstore.types.reports import BackupReport

_GEOMETRY = (
    "precision_ms",
    "wheel_slot_count",
    "roll_window_slots",
    "commit_log_segment_bytes",
    "queue_segment_bytes",
    "timer_log_segment_bytes",
)

_UNFINISHED = "unfinished-init"
"""The file that marks a store, or shards, that `init` has not finished."""


@click.command("init")
@files_argument("a server serves a store that exists")
@click.option("--shards", "shard_count", type=int, help="Create a directory of so many shards.")
@config_option
@json_option
def init_command(
    path: Path, shard_count: int | None, settings: tuple[tuple[str, Any], ...], as_json: bool
) -> None:
    """Create a store in a new or empty directory.

    The sizes (precision_ms, wheel_slot_count, commit_log_segment_bytes, timer_log_segment_bytes,
    index_*) are fixed at creation. All other settings apply each time the store is opened.
    """
    if not Disk().exists(path / _UNFINISHED) and kind_of(path) is not Kind.NOTHING:
        raise _has_store(path)
    if path.exists() and (not path.is_dir() or _others_in(path, shard_count)):
        raise CommandError(
            "cannot create a store at this path", where=path, wanted="a new or empty directory"
        )
    config = config_of(settings)
    with stopping():
        made = _make(path, shard_count, config)
    _write_created(path, shard_count, made, as_json=as_json)


def _make(path: Path, shard_count: int | None, config: StoreConfig | None) -> StoreConfig:
    """Make a store or shards. A file marks them until they are whole, so `init` can be repeated."""
    disk, mark = Disk(), path / _UNFINISHED
    disk.make_directory(path)
    if disk.exists(mark):
        _clear(disk, path)
    disk.write_small(mark, b"timerstore init has not finished; run it again\n")
    if shard_count is None:
        with single.open(path, config) as store:
            made = store.config
        _keep_sizes(path, made)
    else:
        with open_shards(path, shard_count, config, ingest_every=None) as shards:
            made = shards.config
    disk.unlink(mark)
    with suppress(FailedError):  # if a power cut brings it back, the next `init` removes it
        disk.sync_directory(path)
    return made


def _clear(disk: Disk, path: Path) -> None:
    """Remove what an unfinished `init` made. Raise CommandError if a program has used it since."""
    tree, of_shards = Tree(path), ShardsTree(path)
    shards = [path / name for name in disk.list(path) if shard_number(name) is not None]
    stores = shards or [path]
    with ExitStack() as locks:
        for one in stores:
            locks.callback(Directory(disk, one).release)
        if disk.exists(of_shards.ingest) or any(_has_records(disk, Tree(one)) for one in stores):
            disk.remove(path / _UNFINISHED)
            raise _has_store(path)
        files = tree.timer_wheel, tree.checkpoint, tree.abort, tree.lock, of_shards.cluster_json
        for one in (*files, *tree.folders, *shards):
            if disk.is_directory(one):
                disk.remove_tree(one)
            elif disk.exists(one):
                disk.unlink(one)


def _has_records(disk: Disk, tree: Tree) -> bool:
    """Return whether the log of a store that no process has open has a record."""
    log = list_files(disk, tree.commit_log)
    heads = (log.read(disk, number * log.segment_bytes, 8) for number in log.sizes)
    return any(map(any, heads)) or bool(read_staged(disk, tree.staging).pieces)


def _has_store(path: Path) -> CommandError:
    return CommandError(
        "the directory already has a store",
        where=path,
        wanted="a new or empty directory",
        got=kind_of(path),
    )


def _others_in(path: Path, shard_count: int | None) -> list[str]:
    """Return the names in a directory, without the files of an unfinished `init`.

    An `init` that was killed, or that found the disk full or the store locked, can be repeated.
    """
    disk = Disk()
    names = disk.list(path)
    if _UNFINISHED in names:
        return []
    if shard_count is None:
        return [name for name in names if name not in ("lock", f"{_UNFINISHED}.tmp")]
    # A program that was killed while it created shards leaves empty folders.
    return [
        name
        for name in names
        if (shard_number(name) is None or disk.list(path / name))
        and not is_temporary_of(name, ShardsTree(path).cluster_json)
        and name != f"{_UNFINISHED}.tmp"
    ]


def _keep_sizes(path: Path, config: StoreConfig) -> None:
    """Create the first segment of each log. A later open reads the segment size from its length."""
    disk, tree = Disk(), Tree(path)
    for folder, size in (
        (tree.commit_log, config.commit_log_segment_bytes),
        (tree.timer_log, config.timer_log_segment_bytes),
    ):
        disk.make_directory(folder)
        file = disk.open(folder / segment_name(0), create=True)
        if not file.size():
            file.resize(size)
            file.sync()
        disk.sync_directory(folder)
    if config.queue_segment_bytes != StoreConfig().queue_segment_bytes:
        note("queue_segment_bytes is fixed by the first message: use it with the first put, too")


def _write_created(path: Path, shards: int | None, config: StoreConfig, *, as_json: bool) -> None:
    sizes = {name: getattr(config, name) for name in _GEOMETRY}
    if as_json:
        emit({"path": str(path), "shards": shards, **sizes})
        return
    what = "a store" if shards is None else plural(shards, "shard")
    ahead = config.wheel_slot_count * config.precision_ms / 86_400_000
    say(f"created {what} in {path}")
    say(
        f"  the wheel has {config.wheel_slot_count:,} slots of {config.precision_ms} ms "
        f"({ahead:.3g} days); delivery is to the millisecond"
    )
    say(f"next: timerstore put {path} orders hello --in 5s; timerstore follow {path} orders")


@click.command("backup")
@store_argument
@click.argument("target", type=FOLDER)
@config_option
@json_option
def backup_command(
    path: StorePlace, target: Path, settings: tuple[tuple[str, Any], ...], as_json: bool
) -> None:
    """Copy a store to TARGET, or update the backup there. Only new data is copied.

    If another process has the store open, give the address of its server: that process makes the
    backup, into TARGET on its own machine. TARGET is then an absolute path.
    """
    config = config_of(settings)
    with stopping() as stop:
        if isinstance(path, StoreUrl):
            with connected(path, config) as served:
                report = served.backup(target)
        else:
            with (
                opened_single(path, config) as store,
                progress("copying", stop=stop) as on_progress,
            ):
                report = store.backup(target, progress=on_progress)
    _write_report(f"backed up {path} to {target}", report, as_json=as_json)


@click.command("restore")
@click.argument("backup", type=FOLDER)
@files_argument("PATH is a new store")
@json_option
def restore_command(backup: Path, path: Path, as_json: bool) -> None:
    """Restore a store from BACKUP to PATH, a new or empty directory. Every byte is checked."""
    require(backup, Kind.BACKUP)
    with progress("copying") as on_progress:
        report = restore(backup, path, progress=on_progress)
    _write_report(f"restored {backup} to {path}", report, as_json=as_json)


def _write_report(what: str, report: BackupReport, *, as_json: bool) -> None:
    if as_json:
        names = ("log_begin", "log_end", "segment_count", "copied_bytes", "kept_bytes")
        emit({name: getattr(report, name) for name in names})
        return
    say(
        f"{what}: {plural(report.segment_count, 'segment')}, {size_text(report.copied_bytes)} "
        f"copied, {size_text(report.kept_bytes)} unchanged"
    )
