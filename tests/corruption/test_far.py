"""Damage the files of the far wheel, and of a wheel next to it.

Damaged files are rebuilt from the log, or the opening raises an error.
"""

import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.corruption import damages, golden, small
from tests.corruption.damages import Case
from tests.corruption.golden import Golden
from tests.corruption.ordeal import Ordeal, Outcome
from tests.support import ledger


def _cases(made: Golden, *, all_bits: bool) -> list[Case]:
    names = [name for name in made.files if name.startswith(("timerstore/far", "timerwheel"))]
    mine = {name: made.files[name] for name in names}
    random = Random(7)
    found = damages.flips(mine, random, None if all_bits else 20)
    found += damages.blocks(mine, {k: v for k, v in made.older.items() if k in mine}, random)
    found += damages.truncations(mine, random, 6)
    found += [way(name) for name in names
              for way in (damages.delete, damages.zero, damages.garble, damages.empty)]  # fmt: skip
    found += damages.extra("timerstore/far")
    found += damages.pairs(mine)
    return damages.spread(found, random)


def _run(
    made: Golden, tmp_path: Path, *, all_bits: bool, until_s: float, processes: int = 1
) -> list[Outcome]:
    assert any(name.startswith("timerstore/far/") for name in made.files)
    cases = _cases(made, all_bits=all_bits)
    found = Ordeal(made, tmp_path).run(cases, until_s=until_s, processes=processes)
    assert len(found) == len(cases) or not all_bits
    return found


def _judge(found: list[Outcome]) -> None:
    bad = [one for one in found if one.kind not in {"same", "refused", "known", "cut"}]
    assert not bad, "\n".join(f"{one.kind}: {one.name}: {one.detail[-400:]}" for one in bad[:20])


@pytest.mark.more
def test_damage_of_far_wheel_changes_nothing(tmp_path: Path) -> None:
    asked = golden.LARGE._replace(config=replace(golden.CONFIG, far_wheel="own"))
    made = golden.make(tmp_path / "made", is_closed=True, asked=asked)
    found = _run(made, tmp_path, all_bits=False, until_s=4.0)
    _judge(found)
    assert sum(one.kind == "same" for one in found) > 20


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_all_damage_of_far_wheel_changes_nothing(is_closed: bool, tmp_path: Path) -> None:
    """Flip every bit of the far wheel's files and of the wheel of a small store."""
    begun = time.monotonic()
    made = small.make(tmp_path / "made", is_closed=is_closed, far_wheel="own")
    processes = len(os.sched_getaffinity(0))
    found = _run(made, tmp_path, all_bits=True, until_s=1e12, processes=processes)
    kinds = Counter(one.kind for one in found)
    seconds = (time.monotonic() - begun) * processes
    ledger.add("corruption: far wheel, every bit", len(found), seconds, kinds)
    _judge(found)  # recorded even if the check fails
    assert kinds["same"] > 1000
