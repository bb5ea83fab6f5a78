"""How much each campaign runs: one table.

`make test` runs the column `few`. `make test-all` also runs the tests that are marked `more`, and
with them the column `all`. Amounts are counts, never seconds: a slow machine takes longer and
proves the same.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest


class Amount(NamedTuple):
    """The number of cases or rounds in `make test` and in `make test-all`."""

    few: int
    all: int


AMOUNTS = {
    # tests/sim
    "simulator schedules": Amount(120, 600),
    "schedules run twice": Amount(2, 12),
    "workloads of two operations": Amount(1, 60),
    "planted bugs of two operations": Amount(1, 3),
    # tests/crash
    "kill -9 lives": Amount(24, 290),
    "power cuts": Amount(3, 25),
    "file systems whose power is cut": Amount(1, 2),
    "failing disks": Amount(2, 16),
    "sizes of a full disk": Amount(1, 3),
    "failing calls of a scene": Amount(3, 12),
    "nth calls": Amount(2, 9),
    # tests/cli
    "failing calls of a command": Amount(4, 40),
    "scenes without memory or descriptors": Amount(2, 5),
    # tests/net
    "kills of an owner": Amount(2, 20),
    "rounds of a soak": Amount(2, 12),
    # tests/corruption
    "damages of a kind": Amount(30, 300),
    # tests/unit
    "benchmarks": Amount(3, 15),
    "bits of a unit": Amount(12, 64),
    "batch kinds on a full disk": Amount(2, 4),
    "changes of a clock": Amount(3, 10),
    "clocks of an ingest": Amount(1, 3),
    "cron rules": Amount(2, 4),
    "ends": Amount(1, 4),
    "faults of a copy": Amount(6, 17),
    "hostile requests of a method": Amount(40, 4000),
    "odd values of a flag": Amount(2, 7),
    "options of commands": Amount(20, 58),
    "points of a kill": Amount(12, 34),
    "programs that fork": Amount(1, 7),
    "schedules of append hints": Amount(6, 20),
    "seeds": Amount(2, 6),
    "time zones": Amount(1, 6),
    "puts that are read at once": Amount(300, 10_000),
    # tests/interop
    "broker stores": Amount(3, 11),
    "records of a torn tail": Amount(1, 3),
    # tests/spark
    "ways to a session": Amount(1, 3),
    # tests/property
    "seeds of unique puts": Amount(12, 200),
    "seeds of wake-ups": Amount(12, 200),
    "store machine examples": Amount(12, 50),
}


def both(of: str) -> list[Any]:
    """Give both amounts as parameters of a test; the second is marked with `more`."""
    few, every = AMOUNTS[of]
    return [pytest.param(few, id="few"), pytest.param(every, id="all", marks=pytest.mark.more)]


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
