"""Run new schedules, replay old failures, and test the simulator itself."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.sim import audit
from tests.sim.__main__ import run_many
from tests.sim.disk import SimDisk
from tests.sim.files import Node
from tests.sim.lottery import PAGE, SECTOR
from tests.sim.paths import SimPath
from tests.sim.run import run_schedule, run_seed
from tests.sim.schedule import make_schedule
from tests.sim.shrink import REGRESSIONS, Shrinker, read_regression, regression_text
from tests.support.amounts import AMOUNTS, both
from tests.support.inside.engine import CommitLog

_ROOT = Path(__file__).parents[2]


SCHEDULES = "simulator schedules"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", both(SCHEDULES))
def test_store_agrees_with_its_model_under_random_schedules(count: int) -> None:
    totals = run_many(0, count)
    print(totals)
    assert not totals.failures, totals.failures[0]
    assert totals.runs == count
    if count == AMOUNTS[SCHEDULES].all:  # fewer schedules do not reach every bucket
        empty = audit.missing(dict(totals.counts), dict(totals.reached), 5)
        assert not empty, f"the generator does not get there: {empty}"


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*.json")), ids=lambda path: path.stem)
def test_regression_does_not_fail_again(path: Path) -> None:
    outcome = run_schedule(read_regression(path))
    if outcome.error is not None:
        raise outcome.error


def _traces(first: int, count: int) -> list[str]:
    return [run_seed(seed, is_hashed=True).trace for seed in range(first, first + count)]


@pytest.mark.parametrize("count", both("schedules run twice"))
def test_seed_gives_same_run_in_another_process(count: int) -> None:
    here = _traces(100, count)
    assert here == _traces(100, count)
    assert len(set(here)) == count
    program = (
        f"import json; from {__name__} import _traces; print(json.dumps(_traces(100, {count})))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(_ROOT)},
    )  # fmt: skip
    assert json.loads(found.stdout) == here


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_thousand_seeds_run_twice_with_equal_traces() -> None:
    assert _traces(0, 1000) == _traces(0, 1000)


# --- the shrinker ---


@contextmanager
def _pulls_see_what_is_not_durable() -> Iterator[None]:
    """Plant a bug: pulls return messages that are not durable."""
    original = CommitLog.sync_through

    def claim(self: CommitLog, offset: int) -> None:
        self.durable = max(self.durable, min(offset, self.write_out()))

    CommitLog.sync_through = claim  # type: ignore[method-assign]
    try:
        yield
    finally:
        CommitLog.sync_through = original  # type: ignore[method-assign]


@pytest.mark.more
def test_shrinker_leaves_few_operations_that_still_fail(tmp_path: Path) -> None:
    with _pulls_see_what_is_not_durable():
        seed = next(seed for seed in range(400) if run_seed(seed).error is not None)
        before = make_schedule(seed)
        shrinker = Shrinker(before)
        best = shrinker.shrink()
        assert len(best.ops) < len(before.ops)
        assert len(best.ops) <= 8
        path = tmp_path / "one.json"
        path.write_text(regression_text(best, "says", "why"))
        assert read_regression(path) == best
        assert run_schedule(best).error is not None
    assert run_schedule(best).error is None


# --- the disk ---


def _node(data: bytes) -> Node:
    node = Node(1)
    node.write(0, data)
    node.sync()
    return node


def test_cut_keeps_synced_bytes_and_any_part_of_the_rest() -> None:
    node = _node(b"a" * (2 * PAGE))
    node.write(PAGE - 4, b"b" * 8)
    node.write(PAGE - 4, b"c" * 8)
    found = {bytes(node.cut(Random(seed)).cache[PAGE - 4 : PAGE + 4]) for seed in range(300)}
    halves = {b"aaaa", b"bbbb", b"cccc"}
    assert found == {one + other for one in halves for other in halves}
    for seed in range(50):
        cut = bytes(node.cut(Random(seed)).cache)
        assert cut[: PAGE - 4] == b"a" * (PAGE - 4)
        assert cut[PAGE + 4 :] == b"a" * (PAGE - 4)


def test_cut_mixes_sectors_of_one_page() -> None:
    node = _node(b"a" * PAGE)
    node.write(0, b"b" * PAGE)
    mixes = {bytes(node.cut(Random(seed)).cache[::SECTOR]) for seed in range(300)}
    assert b"a" * 8 in mixes
    assert b"b" * 8 in mixes
    assert len(mixes) > 10


def test_cut_may_revert_unsynced_lengths() -> None:
    node = _node(b"a" * 100)
    node.write(100, b"b" * 100)
    assert {len(node.cut(Random(seed)).cache) for seed in range(50)} == {100, 200}


def test_cut_may_revert_names_of_an_unsynced_directory() -> None:
    disk = SimDisk()
    folder = SimPath("/store")
    disk.make_directory(folder)
    disk.open(folder / "old", create=True).write(b"old", 0)
    disk.open(folder / "old").sync()
    disk.sync_directory(folder)
    disk.open(folder / "new", create=True).sync()
    disk.unlink(folder / "old")
    found = {tuple(disk.cut(Random(seed)).list(folder)) for seed in range(60)}
    assert found == {(), ("new",), ("old",), ("new", "old")}
    assert disk.killed().list(folder) == ["new"]


def test_failed_sync_marks_lost_pages_as_clean() -> None:
    node = _node(b"a" * (8 * PAGE))
    node.write(0, b"b" * (8 * PAGE))
    draw = Random(1)
    node.sync(lost=lambda: draw.random() < 0.5)
    assert bytes(node.cache) == b"b" * (8 * PAGE)
    assert not node.versions
    assert {node.platter[page * PAGE] for page in range(8)} == {ord("a"), ord("b")}
    node.sync()
    assert ord("a") in bytes(node.platter), "a second sync writes nothing: the pages are clean"
