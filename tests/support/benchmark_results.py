"""Constructed results and result lines for the tests of the benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import (
    harness,
    lines,
)

MACHINE: dict[str, Any] = {
    "date": "2026-01-01", "revision": "abc", "changed": False, "cores": 2, "memory_gib": 8,
    "processor": "P", "kernel": "6", "python": "3.11", "load": [0, 0, 0], "versions": {},
    "file_system": "ext4",
    "limits": dict.fromkeys(("copy_gb_s", "fresh_page_us", "write_gb_s", "write_synced_gb_s",
                             "sync_4k_us", "python_loop_ns"), 1.0),
}  # fmt: skip


def line(key: str, number: int, rate: float, **more: Any) -> lines.Line:
    return {
        "part": "peers_1m", "name": "peers", "n": 10, "rate": rate, "flush": "f", "key": key,
        "parameters": {"engine": key, "variant": "lists of bodies", "n": 10, "body": 8, "batch": 5},
        "round": number, "tuned": "t",
        "schedule_rate": rate * 2, "deliver_rate": rate * 2, "disk_bytes_per_pending": 1.0,
        "ram_bytes_per_pending": 1.0, "p50": 1.0, "p99": 2.0, "max": 3.0, "work": "w", **more,
    }  # fmt: skip


def ids(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return an array of ids."""
    return np.array(values, dtype=np.int64)


def result(rate: float, name: str = "x", **figures: Any) -> harness.Result:
    nothing = harness.Spread(1, 2, 3)
    return harness.Result(name, {}, 10, rate, "ns", nothing, "async", "0" * 16, figures)
