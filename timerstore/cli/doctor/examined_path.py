"""Examine what a path holds: a store, shards, a backup, or something else."""

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timerstore._engine.format.store_paths import Tree
from timerstore._engine.maintenance import verify_directory
from timerstore._engine.snapshot.live_stats import StoreSummary, look
from timerstore._engine.storage.disk import Disk
from timerstore.cli.doctor.file_system import examine_file_system
from timerstore.cli.doctor.finding import Finding, change, fine, remark
from timerstore.cli.doctor.machine import memory_bytes, processor_count
from timerstore.cli.doctor.store_owner import lock_findings, socket_findings, user_text
from timerstore.cli.exits import report_of
from timerstore.cli.opening import stores_in
from timerstore.cli.text import plural, size_text
from timerstore.errors import TimerStoreError
from timerstore.shards.kinds import Kind, kind_of
from timerstore.types.clock import SystemClock
from timerstore.types.config import StoreConfig

_SHOWN = 5
_AHEAD_MS = 1000
_SIZES = {
    "precision_ms": "precision_ms",
    "wheel_slot_count": "wheel_slot_count",
    "commit_log_segment_bytes": "log_segment_bytes",
    "timer_log_segment_bytes": "timer_log_segment_bytes",
    "queue_segment_bytes": "queue_segment_bytes",
}
"""Settings that are fixed when a store is created, and their names in a Snapshot."""
_SLOT_BYTES = 32
_VERIFIED_BYTES = 64 << 20
_REMADE = "(derived: opening makes it again)"  # as `verify` says it of a file


def examine_path(path: Path, given: dict[str, Any], config: StoreConfig) -> Iterator[Finding]:
    """Yield the findings about a path. `given`: the settings of the command line."""
    try:
        yield from examine_file_system(_existing(path), config)
        yield from _settings(config)
        if path.is_dir() and not _may(path, os.R_OK | os.X_OK):
            yield from _access(path)
            return
        kind = kind_of(path)
        if kind is Kind.NOTHING:
            yield _no_store(path)
            return
        yield from _access(path)
        if kind is Kind.BACKUP:
            yield fine(
                "store",
                f"{path} is a backup: `timerstore verify {path}` checks it, "
                f"`timerstore restore {path} NEW` makes a store of it",
            )
            return
        stores = stores_in(path)
        if kind is Kind.SHARDS:
            yield from _shards(path, len(stores))
        for shard, one in stores.items():
            yield from _examine_store(one, shard, given)
    except (TimerStoreError, OSError) as error:
        yield unreadable(path, error)


def unreadable(path: Path, error: Exception) -> Finding:
    """Turn an error of reading into a finding."""
    found = report_of(error)
    named = ("at", found.where), ("wanted", found.wanted), ("got", found.got)
    parts = [found.what, *(f"{name} {text}" for name, text in named if text)]
    word = shlex.quote(str(path))
    do = found.do.replace("PATH", word) or f"timerstore verify {word}"
    return change("store", "; ".join(parts), "the store cannot be opened as it is", do)


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(one for one in (path, *path.parents) if one.exists())


def _no_store(path: Path) -> Finding:
    """Describe a path that has no store."""
    why, make = "there is no store to open", f"timerstore init {shlex.quote(str(path))}"
    home, own = _existing(path), user_text(os.geteuid())
    if home.is_dir() and not _may(home, os.W_OK | os.X_OK):
        why = f"{why}, and {own} cannot create one in {home}"
        make = f"give a path in a folder that {own} can write"
    if not path.exists():
        return change("store", f"nothing is at {path}", why, f"check the path, or: {make}")
    if not path.is_dir():
        return change(
            "store",
            f"{path} is a file of {size_text(path.stat().st_size)}",
            "a store is a directory",
            "give the directory of the store",
        )
    names = sorted(one.name for one in path.iterdir())
    if not names:
        return change("store", f"{path} is an empty directory", why, make)
    inner = [name for name in names if (path / name).is_dir() and _is_store(path / name)]
    if inner:
        return change(
            "store",
            f"{path} has {plural(len(inner), 'store')} below it: {', '.join(inner[:_SHOWN])}",
            "it is no store itself",
            f"timerstore doctor {shlex.quote(str(path / inner[0]))}",
        )
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return change(
        "store",
        f"{path} has no store, but {', '.join(names[:_SHOWN])}{more}",
        "there is no store to open",
        f"check the path, or: timerstore init {shlex.quote(str(path / 'orders.store'))}",
    )


def _is_store(path: Path) -> bool:
    try:
        return kind_of(path) is not Kind.NOTHING
    except TimerStoreError:
        return False


def _shards(path: Path, count: int) -> Iterator[Finding]:
    yield fine("store", f"{path} is a directory of {plural(count, 'shard')}")
    processors = processor_count()
    if count > 4 * processors:
        yield remark(
            "settings",
            f"{count} shards, {plural(processors, 'processor')}",
            "each open shard has its own threads, files and memory",
            "use fewer shards, or let several processes open some each",
        )


# --- one store ------------------------------------------------------------------------------------


def _examine_store(path: Path, shard: int | None, given: dict[str, Any]) -> Iterator[Finding]:
    """Yield the findings about one store, or one shard."""
    name = "store" if shard is None else f"shard {shard}"
    about = "lock" if shard is None else f"lock of shard {shard}"
    try:
        found = look(path, shard)
    except (TimerStoreError, OSError) as error:
        yield unreadable(path, error)
        return
    pending = found.pending()
    counted = "" if pending is None else f", {pending:,} pending"
    wheel = f"{found.store.wheel_slot_count:,} slots of {found.store.precision_ms} ms"
    yield fine(name, f"{path}: {plural(len(found.topics), 'topic')}{counted}, {wheel}")
    yield _damage(found, name)
    yield from lock_findings(Tree(path), found.holder, about)
    yield from socket_findings(Tree(path), found.holder)
    yield from _marks(path)
    yield from _given_sizes(found, given)
    yield from _queues(found)


def _damage(found: StoreSummary, name: str) -> Finding:
    """Verify a small store that no process changes. Of others only the newest files were read."""
    word = shlex.quote(str(found.path))
    size = found.store.log_end - found.store.log_begin
    if found.holder is not None or size > _VERIFIED_BYTES:
        return fine(name, f"its log of {size_text(size)} was not read: timerstore verify {word}")
    try:
        report = verify_directory(found.path)
    except (TimerStoreError, OSError) as error:
        return unreadable(found.path, error)
    if report.clean:
        return fine(name, "it was read, and nothing is damaged")
    first = report.problems[0]
    what = (
        f"{plural(len(report.problems), 'problem')}; the first: {first.what}, at {first.where}, "
        f"wanted {first.wanted}, got {first.got}"
    )
    check = f"timerstore verify {word}"
    if all(_REMADE in one.what for one in report.problems):
        return remark(name, what, "a derived file is made again from the log", f"open it; {check}")
    return change(
        name,
        what,
        "the store may not open, or messages may be lost",
        f"{check} lists all; timerstore repair {word} NEW copies the readable part",
    )


def _marks(path: Path) -> Iterator[Finding]:
    """Judge files that say that something is unfinished, or from a later time."""
    if (path / "unfinished-init").exists():
        yield change(
            "store",
            "`timerstore init` has not finished here",
            "it may lack files",
            f"timerstore init {path}",
        )
    written_ms = Disk().modified_ms(Tree(path).watermark)
    ahead_ms = (written_ms or 0) - SystemClock().now_ms
    if ahead_ms > _AHEAD_MS:
        yield change(
            "clock",
            f"the store was written {ahead_ms / 1000:,.0f} s in the future",
            "the clock was set back, so messages are late by as much",
            "timedatectl status; set the clock",
        )


def _given_sizes(found: StoreSummary, given: dict[str, Any]) -> Iterator[Finding]:
    """Compare settings of the command line with the sizes that the store has."""
    for name, field in _SIZES.items():
        has = getattr(found.store, field)
        if given.get(name, has) != has:
            yield change(
                "settings",
                f"{name} is {given[name]:,}, but the store has {has:,}",
                "it is fixed when a store is created",
                f"leave out -c {name}",
            )


def _queues(found: StoreSummary) -> Iterator[Finding]:
    queues = sum(found.queue_counts.values())
    limit = os.sysconf("SC_OPEN_MAX")
    if 0 < limit < 2 * queues:
        yield remark(
            "limits",
            f"{queues:,} queues, and {limit:,} open files for a process",
            "a store keeps one or two files open for each queue in use, and is slower without them",
            f"ulimit -n {4 * queues}",
        )


# --- access and settings --------------------------------------------------------------------------


def _access(path: Path) -> Iterator[Finding]:
    """Judge the owner of the files, and the access that this user has to them."""
    status = path.stat()
    owner, own = user_text(status.st_uid), user_text(os.geteuid())
    what = f"{stat.filemode(status.st_mode)}, of {owner}"
    word = shlex.quote(str(path))
    run = f"sudo -u {owner.removeprefix('user ')} timerstore doctor {word}"
    strangers, unreadable_count, unwritable = 0, 0, None
    for folder, _, files in os.walk(path, onerror=None):
        for one in (Path(folder), *(Path(folder) / name for name in files)):
            try:
                strangers += one.lstat().st_uid != status.st_uid
            except OSError:  # removed since, as by retention
                continue
            unreadable_count += not _may(one, os.R_OK)
            if unwritable is None and not _may(one, os.W_OK) and one.exists():
                unwritable = one
    if not _may(path, os.R_OK | os.X_OK) or unreadable_count:
        why = "a store is opened by the user of its files, and read by users that may"
        yield change("permissions", f"{what}; {own} cannot read it", why, run)
    elif unwritable is not None:
        yield change(
            "permissions",
            f"{what}; {own} cannot write {unwritable}",
            "this user can read the store, but not open it to deliver",
            run,
        )
    else:
        yield fine("permissions", what)
    if strangers:
        yield remark(
            "permissions",
            f"{plural(strangers, 'file')} of other users than {owner}",
            "a command was run as another user, as with sudo; the owner may not be able "
            "to open the store",
            f"chown -R --reference={word} {word}",
        )
    if status.st_mode & stat.S_IWOTH:
        yield change(
            "permissions",
            f"{path} can be written by every user",
            "they can change or remove messages",
            f"chmod o-w {word}",
        )


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _settings(config: StoreConfig) -> Iterator[Finding]:
    """Compare settings with the memory of the machine."""
    memory = memory_bytes()
    needed = config.histogram_bytes_max + config.wheel_slot_count * _SLOT_BYTES
    if memory is not None and needed > memory // 2:
        yield change(
            "settings",
            f"histogram_bytes_max and the wheel may take {size_text(needed)} "
            f"of {size_text(memory)} of memory",
            "the process may be killed for memory",
            "-c histogram_bytes_max=0, or a number that fits",
        )
    elif memory is not None:
        yield fine("settings", f"they fit {size_text(memory)} of memory")
