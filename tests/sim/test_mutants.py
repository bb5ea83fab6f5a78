"""Planted bugs: each is killed in every test run by the schedule that killed it once; the hunt with
new seeds is `python -m tests.sim.kill`, of every night.
"""

import pytest

from tests.sim.kill import KILLERS, KILLS, NOT_HERE, TABLE, killer_path, read_kills, table
from tests.sim.mutants import MUTANTS, planted
from tests.sim.run import run_schedule
from tests.sim.shrink import read_regression

NAMES = [name for name in MUTANTS if killer_path(name).exists()]


def test_most_planted_bugs_are_killed_and_the_rest_explained() -> None:
    found = read_kills()
    real = [name for name, mutant in MUTANTS.items() if not mutant.equivalent]
    alive = [name for name in real if not found.get(name, {}).get("by")]
    assert len(alive) <= len(real) // 10, alive
    here = [name for name in real if name in NAMES]
    assert len(here) >= 0.9 * len(real), set(real) - set(here)
    assert not MUTANTS.keys() & NOT_HERE.keys()
    assert {path.stem for path in KILLERS.glob("*.json")} <= MUTANTS.keys()


def test_lists_are_complete() -> None:
    """All 44 weaknesses of RocketMQ's timer, and the twelve of mutants/lab.py."""
    counts = {"W-L": 14, "W-D": 8, "W-S": 9, "W-R": 7, "W-F": 6, "L-": 12}
    wanted = {f"{kind}{n}" for kind, count in counts.items() for n in range(1, count + 1)}
    assert wanted <= MUTANTS.keys() | NOT_HERE.keys()


def test_table_is_what_was_found() -> None:
    assert KILLS.exists()
    assert TABLE.read_text() == table(read_kills())


@pytest.mark.parametrize("name", NAMES)
def test_planted_bug_dies(name: str) -> None:
    schedule = read_regression(killer_path(name))
    with planted(name):
        killed = run_schedule(schedule).error
    assert killed is not None, f"{name} lives: find another: python -m tests.sim.kill --only {name}"
    assert not isinstance(killed, AttributeError | NameError | TypeError), "the planting is broken"
    healthy = run_schedule(schedule).error
    if healthy is not None:
        raise healthy
