"""Planted bugs: those that die early, in every test run; all by `python -m tests.sim.kill`."""

import pytest

from tests.sim.kill import KILLS, NOT_HERE, TABLE, hunt, read_kills, table
from tests.sim.mutants import MUTANTS

EARLY = 15  # schedules after which a bug was dead when the table was made
PATIENCE = 120


def _early() -> list[str]:
    found = read_kills()
    return [name for name in MUTANTS if 0 < found.get(name, {}).get("schedules", 0) <= EARLY]


def test_most_planted_bugs_are_killed_and_the_rest_explained() -> None:
    found = read_kills()
    alive = [n for n, m in MUTANTS.items() if not found[n].get("by") and not m.equivalent]
    assert len(alive) <= len(MUTANTS) // 10, alive
    assert len(_early()) >= len(MUTANTS) // 3
    assert not MUTANTS.keys() & NOT_HERE.keys()


def test_lists_are_complete() -> None:
    """All 44 weaknesses of store-format.md 8.5, 9 and 11, and the lab's twelve."""
    counts = {"W-L": 14, "W-D": 8, "W-S": 9, "W-R": 7, "W-F": 6, "L-": 12}
    wanted = {f"{kind}{n}" for kind, count in counts.items() for n in range(1, count + 1)}
    assert wanted <= MUTANTS.keys() | NOT_HERE.keys()


def test_table_is_what_was_found() -> None:
    assert KILLS.exists()
    assert TABLE.read_text() == table(read_kills())


@pytest.mark.slow
@pytest.mark.parametrize("name", _early())
def test_planted_bug_dies(name: str) -> None:
    kill = hunt(name, PATIENCE)
    assert kill is not None, f"{name} lives through {PATIENCE} schedules"
