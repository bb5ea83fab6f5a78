"""Describe the machine of a run: processor, memory, kernel, versions, and measured limits.

Measuring the limits takes about four seconds. On a virtual machine they change from hour to hour,
so a ratio to a limit needs a limit measured in the same run.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

BLOCK_BYTES = 1 << 20
FILE_BYTES = 256 << 20
FRESH_BYTES = 64 << 20
SYNCS = 100


IN_MEMORY = {"tmpfs", "ramfs"}
"""File systems in memory, on which a sync costs nothing."""


def describe(place: Path) -> dict[str, Any]:
    """All of it, of a folder where stores are made; nothing that names the machine or its user."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "revision": _output("git", "rev-parse", "--short", "HEAD"),
        "changed": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": _versions(),
        "load": [round(one, 2) for one in os.getloadavg()],
        "file_system": _output("stat", "-f", "-c", "%T", str(place)),
        "limits": limits(place),
    }


def limits(place: Path) -> dict[str, float]:
    """Medians of three: what copying, touching and writing cost, and a loop of Python."""
    return {
        "copy_gb_s": _median(_copy),
        "fresh_page_us": _median(_fresh_page),
        "write_gb_s": _median(lambda: _write(place, FILE_BYTES, sync=False)),
        "write_synced_gb_s": _median(lambda: _write(place, FILE_BYTES, sync=True)),
        "sync_4k_us": _median(lambda: _sync(place)),
        "python_loop_ns": _median(_loop),
    }


def _median(measure: Callable[[], float]) -> float:
    return float(f"{statistics.median(measure() for _ in range(3)):.4g}")


def _copy() -> float:
    source = np.ones(FILE_BYTES, dtype=np.uint8)
    target = np.zeros_like(source)
    target[:] = 2
    began = time.perf_counter()
    np.copyto(target, source)
    return FILE_BYTES / (time.perf_counter() - began) / 1e9


def _fresh_page() -> float:
    memory = np.empty(FRESH_BYTES, dtype=np.uint8)
    began = time.perf_counter()
    memory[::4096] = 1
    return (time.perf_counter() - began) * 1e6 / (len(memory) // 4096)


def _write(place: Path, size: int, *, sync: bool) -> float:
    block = os.urandom(BLOCK_BYTES)
    with tempfile.TemporaryFile(prefix="timerstore-bench-", dir=place) as file:
        number = file.fileno()
        os.posix_fallocate(number, 0, size)
        began = time.perf_counter()
        for at in range(0, size, BLOCK_BYTES):
            os.pwrite(number, block, at)
        if sync:
            os.fdatasync(number)
        return size / (time.perf_counter() - began) / 1e9


def _sync(place: Path) -> float:
    block = os.urandom(4096)
    laps = []
    with tempfile.TemporaryFile(prefix="timerstore-bench-", dir=place) as file:
        number = file.fileno()
        os.posix_fallocate(number, 0, SYNCS * 4096)
        for at in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(number, block, at * 4096)
            os.fdatasync(number)
            laps.append(time.perf_counter() - began)
    return statistics.median(laps) * 1e6


def _loop() -> float:
    began = time.perf_counter()
    total = 0
    for one in range(300_000):
        total += one
    return (time.perf_counter() - began) * 1e9 / 300_000


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in ("timerstore", "numpy", "lmdb", "rocksdict", "redis", "hiredis"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for program, words in (("redis-server", ("--version",)), ("beanstalkd", ("-v",)),
                           ("java", ("--version",))):  # fmt: skip
        if shutil.which(program):
            found[program] = _output(program, *words).partition("\n")[0]
    import sqlite3  # noqa: PLC0415

    found["sqlite"] = sqlite3.sqlite_version
    return found


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip()


if __name__ == "__main__":
    import json

    json.dump(describe(Path(tempfile.gettempdir())), sys.stdout, indent=1)
