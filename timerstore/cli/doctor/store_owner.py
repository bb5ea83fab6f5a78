"""Examine the process that has a store open: since when, its limits, its sockets.

Another user's process shows little of itself, and one of another container nothing.
"""

import os
import pwd
import re
import time
from collections.abc import Iterator
from pathlib import Path

from timerstore._engine.format.store_paths import Tree
from timerstore.cli.doctor.file_system import SYNC_REMOVER
from timerstore.cli.doctor.finding import Finding, change, fine, remark, text_of
from timerstore.cli.text import safe, span_text, time_text

_SHOWN_CHARACTERS = 60
_LISTENS, _TCP_LISTENS = "00010000", "0A"  # of /proc/net/unix and /proc/net/tcp
_FULL_SHARE = 0.8


def lock_findings(tree: Tree, holder: int | None, about: str) -> Iterator[Finding]:
    """Say which process holds the lock of a store, and since when."""
    if holder is None:
        if tree.abort.exists():
            yield fine(
                about,
                "no process holds it; the last one did not close the store, so the "
                "next opening recovers it",
            )
        else:
            yield fine(about, "no process holds it; nothing is delivered while the store is closed")
        return
    since = _since(tree.abort)
    if not holder:
        yield remark(
            about,
            f"held by a process of another container or machine{since}",
            "only its owner can change the store",
            "look there",
        )
        return
    what = f"held by process {holder}{_described(holder)}{since}"
    state = re.search(r"^State:\s+T", text_of(f"/proc/{holder}/status"), re.MULTILINE)
    if state:
        yield change(
            about,
            f"{what}, which is stopped",
            "nothing is delivered, and no other process can open the store",
            f"kill -CONT {holder}",
        )
    else:
        yield fine(about, what)
    if SYNC_REMOVER in text_of(f"/proc/{holder}/environ"):
        yield change(
            "sync",
            f"process {holder} runs with {SYNC_REMOVER}: a sync does nothing",
            "a power cut loses messages for which `put` returned",
            "start it without",
        )
    yield from _limit_findings(holder)


def _since(path: Path) -> str:
    """Return since when: an owner writes `abort` when it opens the store."""
    try:
        at_ms = round(path.stat().st_mtime * 1000)
    except OSError:
        return ""
    now_ms = round(time.time() * 1000)
    return f" since {time_text(at_ms)[:19]} ({span_text(max(0, now_ms - at_ms))})"


def _described(pid: int) -> str:
    """Return the user and the command of a process, as far as they can be seen."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    words = safe(text_of(f"/proc/{pid}/cmdline").replace("\0", " ").strip())
    if len(words) > _SHOWN_CHARACTERS:
        words = f"{words[:_SHOWN_CHARACTERS]}..."
    return f" of {user_text(uid)}{f' ({words})' if words else ''}"


def user_text(uid: int) -> str:
    """Return the name of a user, or its number."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _limit_findings(pid: int) -> Iterator[Finding]:
    """Compare what the owner uses with its limits. Of another user's process nothing is shown."""
    limit = re.search(r"^Max open files +([0-9]+)", text_of(f"/proc/{pid}/limits"), re.MULTILINE)
    try:
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return
    maps = text_of(f"/proc/{pid}/maps").count("\n")
    for name, used, most, do in (
        (
            "open files",
            files,
            limit and limit[1],
            "ulimit -n 65536 before its start; LimitNOFILE=65536 in a unit of systemd",
        ),
        (
            "mapped regions",
            maps,
            text_of("/proc/sys/vm/max_map_count").strip(),
            "sysctl vm.max_map_count=262144",
        ),
    ):
        if not most:
            continue
        what = f"process {pid} has {used:,} of {int(most):,} {name}"
        if used > _FULL_SHARE * int(most):
            yield change("limits", what, "with none left, calls raise FullError", do)
        else:
            yield fine("limits", what)


# --- sockets --------------------------------------------------------------------------------------


def socket_findings(tree: Tree, holder: int | None) -> Iterator[Finding]:
    """Name the sockets on which the owner listens, and one that a killed owner left."""
    inodes = _inodes_of(holder) if holder else set()
    for inode, path in _unix_listeners():
        if inode in inodes:
            yield _served(path, holder)
    for inode, port in _tcp_listeners():
        if inode in inodes:
            yield fine("sockets", f"process {holder} listens on TCP port {port}")
    if holder is None and tree.side.is_dir():
        for one in tree.side.iterdir():
            if one.is_socket():
                yield fine(
                    "sockets",
                    f"{one} is left by a process that was killed; the next "
                    "shared opening replaces it",
                )


def _served(path: str, holder: int | None) -> Finding:
    if path.startswith("/proc/"):  # too long for an address, so it was reached by a descriptor
        return fine("sockets", f"process {holder} listens on {Path(path).name}")
    try:
        status = Path(path).stat()
        mode = f", mode {status.st_mode & 0o777:03o}, {user_text(status.st_uid)}"
        may = os.access(path, os.W_OK)
    except OSError:
        mode, may = "", False
    what = f"process {holder} listens on {path}{mode}"
    if may:
        return fine("sockets", f"{what}; commands take unix://{path} in place of PATH")
    return remark(
        "sockets",
        what,
        f"{user_text(os.geteuid())} cannot connect",
        "serve with --group, or run it as that user",
    )


def _unix_listeners() -> Iterator[tuple[str, str]]:
    """Yield inode and path of each unix socket with a listener."""
    for line in text_of("/proc/net/unix").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[3] == _LISTENS and fields[7].startswith("/"):
            yield fields[6], fields[7]


def _tcp_listeners() -> Iterator[tuple[str, int]]:
    """Yield inode and port of each TCP socket with a listener."""
    for name in ("tcp", "tcp6"):
        for line in text_of(f"/proc/net/{name}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _TCP_LISTENS:
                yield fields[9], int(fields[1].rpartition(":")[2], 16)


def _inodes_of(pid: int) -> set[str]:
    found = set()
    try:
        for one in Path(f"/proc/{pid}/fd").iterdir():
            name = re.fullmatch(r"socket:\[([0-9]+)\]", str(one.readlink()))
            if name:
                found.add(name[1])
    except OSError:  # another user's process, or one that has just ended
        pass
    return found
