"""The same of the far wheel's files, and of a wheel beside it: all that is damaged is made anew
from the log, or refused.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.corruption import answers, damages, golden, known
from tests.corruption.damages import Case
from tests.corruption.golden import CONFIG, make
from tests.corruption.ordeal import Ordeal

_FAR = replace(CONFIG, far_wheel="own")


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In memory; the golden store has a far wheel."""
    for module in (answers, golden, known):
        monkeypatch.setattr(module, "CONFIG", _FAR)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def _cases(files: damages.Files, older: damages.Files, *, flips: int | None) -> list[Case]:
    names = [name for name in files if name.startswith(("timerstore/far", "timerwheel"))]
    mine = {name: files[name] for name in names}
    random = Random(7)
    found = damages.flips(mine, random, flips)
    found += damages.blocks(mine, {k: v for k, v in older.items() if k in mine}, random)
    found += damages.truncations(mine, random, 6)
    found += [way(name) for name in names
              for way in (damages.delete, damages.zero, damages.garble, damages.empty)]  # fmt: skip
    found += damages.extra("timerstore/far")
    found += damages.pairs(mine)
    return damages.spread(found, random)


def _run(scratch: Path, *, is_closed: bool, flips: int | None, until_s: float) -> Counter[str]:
    made = make(scratch / "made", is_closed=is_closed)
    assert any(name.startswith("timerstore/far/") for name in made.files)
    cases = _cases(made.files, made.older, flips=flips)
    found = Ordeal(made, scratch).run(cases, until_s=until_s)
    bad = [one for one in found if one.kind not in {"same", "refused", "known", "cut"}]
    assert not bad, "\n".join(f"{one.kind}: {one.name}: {one.detail[-400:]}" for one in bad[:20])
    return Counter(one.kind for one in found)


@pytest.mark.slow
def test_damage_of_the_far_wheel_changes_nothing(scratch: Path) -> None:
    kinds = _run(scratch, is_closed=True, flips=20, until_s=4.0)
    assert kinds["same"] > 20


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_all_damage_of_the_far_wheel_changes_nothing(is_closed: bool, scratch: Path) -> None:
    assert _run(scratch, is_closed=is_closed, flips=None, until_s=1e12)["same"] > 1000
