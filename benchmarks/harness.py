"""The tools of every benchmark under one name, and the shared command line.

The tools are in workload.py, measure.py, isolation.py and results.py. Results are JSON lines on
standard output; --json appends them to a file too.

Invariants:
    1. A line has a digest of the work: two runs with equal digests did the same work.
    2. Preparing the work and checking the result are outside the measured time.
Raises: WorkError if the work done is not the requested work, because such a time means nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.isolation import heeding_sigterm, isolated, place, workspace
from benchmarks.measure import (
    Disk,
    Memory,
    Spread,
    Stopwatch,
    disk,
    histogram,
    memory,
    peak_rss_bytes,
    spread,
)
from benchmarks.results import Result, emit, medians, or_none, table
from benchmarks.workload import (
    SEED,
    START_MS,
    Float64,
    Int64,
    Work,
    WorkError,
    digest,
    filled_bytes,
    make_work,
    need,
    rows_of,
)
from timerstore import StoreConfig

__all__ = [
    "SEED",
    "START_MS",
    "Disk",
    "Float64",
    "Int64",
    "Memory",
    "Result",
    "Spread",
    "Stopwatch",
    "Work",
    "WorkError",
    "arguments",
    "chosen",
    "digest",
    "disk",
    "emit",
    "filled_bytes",
    "given_as",
    "heeding_sigterm",
    "histogram",
    "isolated",
    "main_of",
    "make_work",
    "medians",
    "memory",
    "need",
    "or_none",
    "peak_rss_bytes",
    "place",
    "rows_of",
    "small_config",
    "spread",
    "table",
    "workspace",
]


def small_config(**changes: Any) -> StoreConfig:
    """Return a configuration with small files for smoke runs, which makes opening cheap."""
    fields: dict[str, Any] = {
        "commit_log_segment_bytes": 1 << 20,
        "queue_segment_bytes": 20 * 4096,
        "timer_log_segment_bytes": 52 * 4096,
        "wheel_slot_count": 1024,
        "index_slot_count": 4096,
        "index_entry_count": 65_536,
        "roll_window_slots": 512,
    }
    fields.update(changes)
    return StoreConfig(**fields)


def arguments(description: str | None, full: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Return a parser with --smoke, --directory, --json, and an option for each value of `full`."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="run everything with tiny values")
    parser.add_argument(
        "--directory", type=Path, help="directory of the stores (default: temporary)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="also append the lines to this file"
    )
    for name, value in full.items():
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=given_as(type(value)), help=f"default {value}")
    return parser


def given_as(kind: type) -> Callable[[str], Any]:
    """Return a parser for option values of this type. Numbers must be above 0."""
    if kind not in (int, float):
        return kind

    def read(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"wanted more than 0, got {text}")
        return value

    read.__name__ = kind.__name__  # argparse prints it
    return read


def chosen(
    options: argparse.Namespace, full: Mapping[str, Any], smoke: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the full or smoke values, replaced by those of the command line."""
    values = dict(smoke if options.smoke else full)
    given = {name: getattr(options, name) for name in values}
    return values | {name: value for name, value in given.items() if value is not None}


def main_of(
    description: str | None,
    full: Mapping[str, Any],
    smoke: Mapping[str, Any],
    run: Callable[[dict[str, Any], bool, Path | None], Iterable[Result]],
    argv: Sequence[str] | None,
) -> int:
    """Run a benchmark: print result lines to standard output, and a table to standard error."""
    options = arguments(description, full).parse_args(argv)
    found = run(chosen(options, full, smoke), options.smoke, options.directory)
    print(table(medians(emit(found, options.json))), file=sys.stderr)
    return 0
