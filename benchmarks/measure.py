"""Measure time, percentiles, memory and disk usage."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class Stopwatch:
    """Measure the time of `with watch:` blocks, in total and for each lap."""

    def __init__(self) -> None:
        self.laps_ns: list[int] = []
        self._since_ns = 0

    def __enter__(self) -> Self:
        self._since_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.laps_ns.append(time.perf_counter_ns() - self._since_ns)

    @property
    def seconds(self) -> float:
        """The sum of the laps."""
        return sum(self.laps_ns) / 1e9


class Spread(NamedTuple):
    """Median, 99th percentile and maximum of a sample, in the sample's unit."""

    p50: float
    p99: float
    max: float


def spread(sample: Sequence[float] | NDArray[Any]) -> Spread:
    """Return the spread of a sample, without interpolation. An empty sample gives three NaN."""
    values = np.asarray(sample, dtype=np.float64)
    if values.size == 0:
        return Spread(float("nan"), float("nan"), float("nan"))
    p50, p99 = np.percentile(values, [50, 99], method="higher")
    return Spread(float(p50), float(p99), float(values.max()))


def histogram(sample: Sequence[float] | NDArray[Any]) -> list[tuple[float, int]]:
    """Return (upper edge, count) pairs. The edges are 0, then powers of two."""
    values = np.asarray(sample, dtype=np.float64)
    if values.size == 0:
        return []
    top = max(1, int(np.ceil(np.log2(max(1.0, float(values.max()))))))
    edges = [0.0, *(2.0**power for power in range(top + 1))]
    places = np.bincount(np.searchsorted(edges, values), minlength=len(edges))
    return [(edge, int(count)) for edge, count in zip(edges, places, strict=False) if count]


def peak_rss_bytes(*, children: bool = False) -> int:
    """Return the peak resident set, with mapped files, of this process or of ended children."""
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * 1024


class Memory(NamedTuple):
    """Resident bytes of this process now: all, anonymous, and pages of files under a root."""

    rss_bytes: int
    anonymous_bytes: int
    root_bytes: int

    @property
    def beyond_bytes(self) -> int:
        """Resident bytes that are not pages of files under the root."""
        return self.rss_bytes - self.root_bytes


def memory(root: Path) -> Memory:
    """Read /proc/self/smaps. Anonymous pages of a private mapping do not count as root's."""
    gc.collect()
    prefix = os.fsencode(os.path.realpath(root)) + b"/"
    rss = anonymous = inside = 0
    under = False
    mapped = 0
    with Path("/proc/self/smaps").open("rb") as smaps:
        for line in smaps:
            key, _, rest = line.partition(b":")
            if b" " in key:  # a header: address range, permissions, ..., path
                under = prefix in line
            elif key == b"Rss":
                mapped = int(rest.split()[0]) * 1024
                rss += mapped
                inside += mapped if under else 0
            elif key == b"Anonymous":
                private = int(rest.split()[0]) * 1024
                anonymous += private
                inside -= private if under else 0
    return Memory(rss, anonymous, inside)


class Disk(NamedTuple):
    """The number, lengths and allocated blocks of the files under a directory."""

    files: int
    apparent_bytes: int
    allocated_bytes: int


def disk(root: Path) -> Disk:
    """Walk the tree once, without following links.

    Files that disappear during the walk do not count. A running server may replace files.
    """
    files = apparent = allocated = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                status = Path(folder, name).lstat()
            except FileNotFoundError:
                continue
            files += 1
            apparent += status.st_size
            allocated += status.st_blocks * 512
    return Disk(files, apparent, allocated)
