"""Examine the file system of a path: kind, options, whether a sync reaches the disk, space."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from timerstore.cli.doctor.finding import Finding, change, fine, remark, text_of
from timerstore.cli.text import size_text
from timerstore.types.config import StoreConfig

SYNC_REMOVER = "libeatmydata"
_IN_MEMORY = {"tmpfs", "ramfs"}
_OF_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "ceph",
    "afs",
    "glusterfs",
    "lustre",
    "virtiofs",
}
_WITHOUT_BARRIERS = {"nobarrier", "barrier=0"}
_ESCAPE = re.compile(r"\\([0-7]{3})")
_CACHES = {
    "write back": "a sync empties the cache of the device; no program can see whether it obeys",
    "write through": "the device has no cache that a power cut would lose",
}
_SPARE_BYTES = 64 << 20
_NAMES_FEW = 1000


class Mount(NamedTuple):
    """One mounted file system."""

    point: str
    device: str
    """Its numbers, as 8:1."""
    kind: str
    source: str
    options: frozenset[str]


def mount_of(path: Path, table: str) -> Mount | None:
    """Return the mount of a path, from the text of /proc/self/mountinfo."""
    best = None
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, last = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(last) < 3:
            continue
        point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
        # A later mount covers an earlier one at the same place.
        if path.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            options = frozenset((*fields[5].split(","), *last[2].split(",")))
            best = Mount(point, fields[2], last[0], last[1], options)
    return best


def examine_file_system(path: Path, config: StoreConfig) -> Iterator[Finding]:
    """Yield the findings about the file system of a path that exists."""
    mount = mount_of(path.resolve(), text_of("/proc/self/mountinfo"))
    if mount is not None:
        yield from kind_findings(mount)
        yield from sync_findings(mount, os.environ.get("LD_PRELOAD", ""))
    yield from space_findings(os.statvfs(path), config)


def kind_findings(mount: Mount) -> Iterator[Finding]:
    """Judge the kind of a file system, and how it is mounted."""
    name = f"{mount.kind} at {mount.point} ({','.join(sorted(mount.options))})"
    if mount.kind in _IN_MEMORY:
        yield change(
            "file system",
            name,
            "it is in memory: the store is gone after a restart",
            "give a path on a disk",
        )
    elif mount.kind in _OF_NETWORK or mount.kind.startswith("fuse"):
        yield remark(
            "file system",
            name,
            "a store needs record locks and a sync that reaches the "
            "disk, and this file system may have neither",
            "prefer a local disk",
        )
    elif mount.kind == "overlay":
        yield remark(
            "file system",
            name,
            "it is a layer of a container, removed with it",
            "mount a volume for the store",
        )
    else:
        yield fine("file system", name)
    if "ro" in mount.options:
        yield change(
            "file system",
            f"{mount.point} is mounted read-only",
            "a store can only be read there: no message is delivered",
            f"mount -o remount,rw {mount.point}",
        )


def sync_findings(mount: Mount, preloaded: str) -> Iterator[Finding]:
    """Judge whether a sync reaches the disk, as far as this can be known."""
    why = "a power cut loses messages for which `put` returned"
    lazy = sorted(_WITHOUT_BARRIERS & mount.options)
    if mount.kind == "overlay" and "volatile" in mount.options:
        lazy.append("volatile")
    if SYNC_REMOVER in preloaded:
        yield change(
            "sync",
            f"{SYNC_REMOVER} is loaded (LD_PRELOAD): a sync does nothing",
            why,
            "unset LD_PRELOAD",
        )
    elif lazy:
        yield change(
            "sync",
            f"mounted with {', '.join(lazy)}: a sync does not wait for the disk",
            why,
            f"remove the option from the mount of {mount.point}",
        )
    elif mount.kind not in _IN_MEMORY:
        cache = _write_cache(mount.device)
        yield fine("sync", _CACHES.get(cache, "the device does not say whether it has a cache"))


def _write_cache(device: str) -> str:
    """Return what the kernel knows of a device's cache; of a partition, that of its disk."""
    folder = f"/sys/dev/block/{device}"
    found = text_of(f"{folder}/queue/write_cache") or text_of(f"{folder}/../queue/write_cache")
    return found.strip()


def space_findings(status: os.statvfs_result, config: StoreConfig) -> Iterator[Finding]:
    """Judge the free space and the free inodes."""
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    what = f"{size_text(free)} of {size_text(total)} free"
    is_full = free < config.reserve_bytes + _SPARE_BYTES
    if is_full or free < max(config.checkpoint_log_bytes_max + config.reserve_bytes, total // 20):
        why = "puts raise FullError, and delivery waits, when it is full"
        judge = change if is_full else remark
        yield judge("space", what, why, "free space, or set retention_log_bytes")
    else:
        yield fine("space", what)
    if status.f_files and status.f_favail < _NAMES_FEW:
        yield change(
            "inodes",
            f"{status.f_favail:,} of {status.f_files:,} free",
            "no file can be created without one",
            "remove small files",
        )
    elif status.f_files:
        yield fine("inodes", f"{status.f_favail:,} of {status.f_files:,} free")
    used = 100 - 100 * status.f_bavail // max(1, status.f_blocks)
    if 0 < config.retention_disk_percent <= used:
        yield change(
            "settings",
            f"retention_disk_percent is {config.retention_disk_percent}, and "
            f"{used} % of the file system are used",
            "the oldest log files are removed now, also those with unread messages",
            "free space, or set a higher number",
        )
