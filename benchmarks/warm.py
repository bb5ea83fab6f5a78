"""Touch memory before a run and keep it until the run needs it, so that the host provides it.

A virtual machine may return free memory to the host within seconds (free page reporting), and then
gets it back page by page. Here a write to a new file cost 0.15 ns per byte, or 0.7 to 1.0 ns after
memory was returned. With ten million pending messages this was half of the delivery time.

A child process holds anonymous memory. It checks free memory a hundred times a second, and releases
memory as the run uses it. If memory is short, the kernel ends this child first. The child ends with
the run and with its parent. If less memory is available, a warning is printed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import filled_bytes

WARM_BYTES = 3 << 29
"""Files and memory of a run of a million messages."""

AHEAD_BYTES = 1 << 28
"""Memory released by the child in advance of the run's use."""

CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
_SHARE = 1.5  # relative to the bytes a run fills: the kernel also uses cold free memory
_PAGE_BYTES = 4096
_PIECE_BYTES = 1 << 26
_LOOK_S = 0.01  # a run uses about 10 MB in this time


def warm_bytes_for(n: int, body: int) -> int:
    """Return the bytes to keep warm for a run of `n` messages with bodies of `body` bytes."""
    return max(WARM_BYTES, int(_SHARE * filled_bytes(n, body)))


@contextlib.contextmanager
def warm_memory(size: int = WARM_BYTES, *, ahead: int = AHEAD_BYTES) -> Iterator[float | None]:
    """Touch `size` bytes, at most three quarters of free memory, and keep `ahead` of them free.

    Yield the time to touch a page in microseconds (about 0.2 if it was warm), or None if no memory
    was touched.
    """
    count = min(size, room_bytes() * 3 // 4) // _PIECE_BYTES
    began = time.perf_counter()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            _keep(count, ahead, tell)
        except Exception:  # noqa: BLE001 - told here: the parent sees that there is no answer
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(tell)
    try:
        with os.fdopen(told, "rb") as answer:
            touched = int(answer.read() or 0)
        took_us = (time.perf_counter() - began) * 1e6
        if touched < count:
            got, wanted = touched * _PIECE_BYTES, count * _PIECE_BYTES
            print(f"!!! warm memory: wanted {wanted} bytes, got {got}", file=sys.stderr)
        yield took_us / (touched * _PIECE_BYTES // _PAGE_BYTES) if touched else None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def room_bytes() -> int:
    """Return free memory, at most the rest of the container's limit.

    The limit is that of the root control group, which counts cached files as used.
    """
    room = os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES
    for limit, used in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            left = int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text())
            room = min(room, max(left, 0))
    return room


def _keep(count: int, ahead: int, tell: int) -> None:
    """Hold and release memory; runs in the child."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    pieces: list[mmap.mmap] = []
    with contextlib.suppress(OSError):  # the amount obtained is reported
        while len(pieces) < count and os.getppid() == parent:
            pieces.append(touched())
    os.write(tell, b"%d" % len(pieces))
    wanted = room_bytes() + ahead
    _let_go(pieces, wanted)
    os.close(tell)
    while pieces and os.getppid() == parent:
        time.sleep(_LOOK_S)
        _let_go(pieces, wanted)


def _let_go(pieces: list[mmap.mmap], wanted: int) -> None:
    """Of as many as it takes until so many bytes are free."""
    while pieces and room_bytes() < wanted:
        pieces.pop().close()


def touched() -> mmap.mmap:
    memory = mmap.mmap(-1, _PIECE_BYTES)
    huge = getattr(mmap, "MADV_HUGEPAGE", None)
    if huge is not None:
        with contextlib.suppress(OSError):  # a kernel without: this takes longer
            memory.madvise(huge)  # let go of in no time
    np.frombuffer(memory, dtype=np.uint8)[::_PAGE_BYTES] = 1
    return memory
