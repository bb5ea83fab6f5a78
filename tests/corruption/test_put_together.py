"""Compare the answers of a store with those after a repair without damage, and after a restore."""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.corruption import golden, small
from tests.corruption.answers import ask
from tests.corruption.golden import NOW_MS, Asked, Golden
from timerstore.testing import ManualClock


def large(root: Path, *, is_closed: bool) -> Golden:
    return golden.make(root, is_closed=is_closed)


def far(root: Path, *, is_closed: bool) -> Golden:
    return small.make(root, is_closed=is_closed, far_wheel="own")


def answers(root: Path, asked: Asked) -> list[tuple[str, Any]]:
    return list(ask(root, asked))


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("make", [large, small.make, far])
def test_repaired_store_gives_the_same_answers(tmp_path: Path, make: Any, is_closed: bool) -> None:
    made = make(tmp_path / "made", is_closed=is_closed)
    made.write(tmp_path / "store")
    assert timerstore.repair(tmp_path / "store", tmp_path / "target").clean
    assert timerstore.verify_directory(tmp_path / "target").clean
    assert answers(tmp_path / "target", made.asked) == answers(tmp_path / "store", made.asked)


@pytest.mark.parametrize("make", [large, small.make, far])
def test_restored_store_gives_the_same_answers(tmp_path: Path, make: Any) -> None:
    made = make(tmp_path / "made", is_closed=True)
    made.write(tmp_path / "store")
    clock = ManualClock(NOW_MS)
    config = made.asked.config
    with timerstore.open(tmp_path / "store", config, clock=clock, threads=False) as store:
        store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "target")
    assert timerstore.verify_directory(tmp_path / "target").clean
    assert answers(tmp_path / "target", made.asked) == answers(tmp_path / "store", made.asked)
