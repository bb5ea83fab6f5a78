"""How much each campaign runs: one table.

`make test` runs the column `few`. `make test-all` sets TIMERSTORE_TEST_AMOUNTS=all: it runs the
column `all`, and the tests that are marked `more`. Amounts are counts, never seconds: a slow
machine takes longer and proves the same.
"""

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest


class Amount(NamedTuple):
    """Of one campaign."""

    few: int
    all: int


AMOUNTS = {
    # tests/sim
    "simulator schedules": Amount(120, 600),
    "workloads of two operations": Amount(6, 528),
    # tests/crash
    "kill -9 lives": Amount(24, 290),
    "power cuts": Amount(3, 25),
    "failing disks": Amount(2, 16),
    "sizes of a full disk": Amount(1, 3),
    "failing calls of a scene": Amount(3, 12),
    "nth calls": Amount(2, 9),
    "scenes without memory or descriptors": Amount(2, 5),
    # tests/corruption
    "flipped bits": Amount(60, 240),
    "damaged blocks": Amount(30, 90),
    "truncations": Amount(25, 75),
    "damaged whole files": Amount(20, 60),
    "pairs of damages": Amount(30, 90),
    # tests/unit
    "benchmarks": Amount(3, 14),
    "bits of a unit": Amount(12, 64),
    "changes of a clock": Amount(3, 10),
    "ends": Amount(1, 4),
    "odd values of a flag": Amount(2, 7),
    "options of commands": Amount(20, 58),
    "programs that fork": Amount(1, 7),
    "seeds": Amount(2, 6),
    "time zones": Amount(1, 6),
    # tests/interop
    "broker stores": Amount(3, 11),
    "records of a torn tail": Amount(1, 3),
    # tests/property
    "examples of two copies": Amount(8, 25),
    "store machine examples": Amount(12, 50),
}
"""By what is counted."""

RUNS_ALL = os.environ.get("TIMERSTORE_TEST_AMOUNTS", "few") == "all"


def amount(of: str) -> int:
    """Return how many of something this run does."""
    return AMOUNTS[of].all if RUNS_ALL else AMOUNTS[of].few


def sample(cases: Iterable[Any], of: str) -> list[Any]:
    """Mark all cases of a parametrized test with `more`, except as many as `make test` runs.

    Those are spread evenly over the cases; the first is among them.
    """
    given = list(cases)
    few = min(AMOUNTS[of].few, len(given))
    chosen = {at * len(given) // few for at in range(few)}
    return [
        pytest.param(*_values(case), marks=[] if at in chosen else pytest.mark.more)
        for at, case in enumerate(given)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
