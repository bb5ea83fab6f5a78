"""Test that each planted bug is detected by the schedule that detected it once.

`python -m tests.sim.kill` searches for such schedules with new seeds.
"""

import pytest

from tests.sim.kill import KILLERS, KILLS, NOT_HERE, TABLE, killer_path, read_kills, table
from tests.sim.mutants import MUTANTS, planted
from tests.sim.run import run_schedule, run_seed
from tests.sim.shrink import read_regression

NAMES = [name for name in MUTANTS if killer_path(name).exists()]


def test_most_planted_bugs_are_detected_and_the_rest_explained() -> None:
    found = read_kills()
    real = [name for name, mutant in MUTANTS.items() if not mutant.equivalent]
    alive = [name for name in real if not found.get(name, {}).get("by")]
    assert len(alive) <= len(real) // 10, alive
    here = [name for name in real if name in NAMES]
    assert len(here) >= 0.9 * len(real), set(real) - set(here)
    assert not MUTANTS.keys() & NOT_HERE.keys()
    assert {path.stem for path in KILLERS.glob("*.json")} <= MUTANTS.keys()


def test_planted_bugs_include_all_known_weaknesses() -> None:
    """Expect all 44 weaknesses of RocketMQ's timer, and the twelve bugs of mutants/lab.py."""
    counts = {"W-L": 14, "W-D": 8, "W-S": 9, "W-R": 7, "W-F": 6, "L-": 12}
    wanted = {f"{kind}{n}" for kind, count in counts.items() for n in range(1, count + 1)}
    assert wanted <= MUTANTS.keys() | NOT_HERE.keys()


def test_table_of_planted_bugs_matches_results() -> None:
    assert KILLS.exists()
    assert TABLE.read_text() == table(read_kills())


@pytest.mark.parametrize("name", NAMES)
def test_planted_bug_is_detected_by_its_schedule(name: str) -> None:
    schedule = read_regression(killer_path(name))
    with planted(name):
        killed = run_schedule(schedule).error
    assert killed is not None, f"{name} lives: find another: python -m tests.sim.kill --only {name}"
    assert not isinstance(killed, AttributeError | NameError | TypeError), "the planting is broken"
    healthy = run_schedule(schedule).error
    if healthy is not None:
        raise healthy


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.equivalent])
def test_planted_bug_without_effect_is_planted_and_changes_nothing(name: str) -> None:
    with planted(name):
        errors = [run_seed(seed).error for seed in range(3)]
    assert errors == [None] * 3
