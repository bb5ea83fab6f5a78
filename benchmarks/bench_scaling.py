"""Measure how time, memory and disk usage grow with 10^4 to 10^7 pending messages.

The sizes from `smallest` to `largest` differ by a factor of ten. Each run works as in
bench_end_to_end, with the services in threads, and has a process and a directory of its own. If
a size does not fit on the disk, half of it is measured, or nothing, and a warning is printed.

Raises: WorkError as in bench_end_to_end.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.bench_end_to_end import once
from benchmarks.harness import Result, Work
from benchmarks.rounds import interleaved
from benchmarks.warm import warm_bytes_for
from timerstore import StoreConfig

FULL: dict[str, Any] = {
    "smallest": 10_000,
    "largest": 10_000_000,
    "body": 128,
    "batch": 10_000,
    "horizon_s": 600,
    "rounds": 5,
    "seconds_max": 300.0,
}
SMOKE: dict[str, Any] = {
    "smallest": 100,
    "largest": 1_000,
    "body": 32,
    "batch": 100,
    "horizon_s": 60,
    "rounds": 1,
    "seconds_max": 60.0,
}


def sizes(smallest: int, largest: int, body: int, directory: Path | None) -> list[int]:
    """Return powers of ten; if one does not fit on the disk, half of it or nothing."""
    room = int(shutil.disk_usage(harness.place(directory)).free * 0.9) // harness.filled_bytes(
        1, body
    )
    found = []
    size = smallest
    while size <= largest:
        fits = next((one for one in (size, size // 2) if one <= room), 0)
        if fits != size:
            print(
                f"!!! NOT MEASURED: {size:,} pending: the disk has room for {room:,}",
                file=sys.stderr,
            )
        if fits:
            found.append(fits)
        size *= 10
    return found


def measured(work: Work, config: StoreConfig, told: dict[str, Any], root: Path) -> Result:
    """One size."""
    return replace(once(work, config, told, root), name="scaling")


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Size by size: the rounds of one share its work, and the largest is made once."""
    config = harness.small_config(flush="async") if smoke else StoreConfig(flush="async")
    wanted = sizes(parameters["smallest"], parameters["largest"], parameters["body"], directory)
    seconds_max = parameters["seconds_max"]
    for n in wanted:
        work = harness.make_work(n, parameters["body"], parameters["horizon_s"] * 1000)
        told = {name: parameters[name] for name in ("body", "batch", "horizon_s")}
        told |= {"n": n, "stops": 1, "form": "list", "threads": True}
        yield from interleaved(
            [partial(measured, work, config, told)],
            {**parameters, "seconds_max": seconds_max},
            smoke=smoke,
            directory=directory,
            warm_bytes=warm_bytes_for(n, parameters["body"]),
        )


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
