"""Rounds: several variants in turns, each run a process and a directory of its own, and watched.

Data:     variants are callables that take a directory and give a Result.
Threads:  none here; beside each run sleeps the control process.
Holds:    (1) every round runs each variant once, and begins with another; (2) a result carries its
          round, and how far the control's sleeps overshot meanwhile; (3) no round begins that would
          end after `seconds_max`, but for the first.
Fails:    what a run raises, at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import harness
from benchmarks.control import Control
from benchmarks.harness import Result
from benchmarks.warm import WARM_BYTES, warm_memory

Variant = Callable[[Path], Result]


def interleaved(
    variants: Sequence[Variant],
    *,
    rounds: int,
    seconds_max: float,
    smoke: bool,
    directory: Path | None,
    warm_bytes: int = WARM_BYTES,
) -> Iterator[Result]:
    """The results as they come. Smoke runs are made here, unwatched. `warm_bytes`: to be kept
    warm for a run (warm.py).
    """
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
    """One run on warm memory, and what the control saw."""
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
