"""Run several variants of a benchmark in turns, each in its own process and directory.

A variant is a function from a directory to a Result. The control process sleeps during each run.

Invariants:
    1. Each round runs every variant once, and begins with another variant.
    2. A result has its round, and how late the control process woke during the run.
    3. After the first round, no round begins that would end after `seconds_max`.
Raises: the error of a run, at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.control import Control
from benchmarks.harness import Result
from benchmarks.warm import WARM_BYTES, warm_memory

Variant = Callable[[Path], Result]


def interleaved(
    variants: Sequence[Variant],
    parameters: Mapping[str, Any],
    *,
    smoke: bool,
    directory: Path | None,
    warm_bytes: int = WARM_BYTES,
) -> Iterator[Result]:
    """Yield each result when its run ends: `rounds` rounds of all variants, within `seconds_max`.

    Smoke runs use this process, without control process. `warm_bytes` is the amount of memory to
    keep warm for a run (warm.py).
    """
    rounds, seconds_max = parameters["rounds"], parameters["seconds_max"]
    began = time.monotonic()
    longest = 0.0
    for number in range(rounds):
        round_began = time.monotonic()
        if number and round_began - began + longest > seconds_max:
            print(
                f"!!! {number} rounds of {rounds}: another would end after {seconds_max:.0f} s",
                file=sys.stderr,
            )
            return
        shift = number % len(variants)
        for variant in (*variants[shift:], *variants[:shift]):
            yield watched(variant, number, smoke=smoke, directory=directory, warm_bytes=warm_bytes)
        longest = max(longest, time.monotonic() - round_began)


def watched(
    variant: Variant,
    number: int,
    *,
    smoke: bool,
    directory: Path | None,
    warm_bytes: int = WARM_BYTES,
) -> Result:
    """Run a variant once on warm memory, with the control process."""
    with (
        nullcontext() if smoke else warm_memory(warm_bytes) as page_us,
        harness.workspace(directory) as root,
        nullcontext() if smoke else Control() as control,
    ):
        found = harness.isolated(partial(variant, root), fork=not smoke, folder=root)
    warmed = {} if page_us is None else {"warmed_page_us": page_us}
    told = {} if control is None else {
        "control_p99_ms": control.stall.p99_ms,
        "control_max_ms": control.stall.max_ms,
    }  # fmt: skip
    return replace(found, figures={**found.figures, "round": number, **warmed, **told})
