"""Test all workloads of one and two operations, with all deaths in the last one: a part of them.

Every test run has each workload of two operations in one setting, with a few mixes for each power
cut. The nightly run has the rest, and three operations.
"""

from itertools import islice, product

import pytest

from tests.sim.disk import SimDisk
from tests.sim.exhaustive import explore
from tests.sim.files import Node
from tests.sim.lottery import PAGE, SECTOR, Chosen, every, some
from tests.sim.mutants import planted
from tests.sim.paths import SimPath
from tests.sim.run import run_schedule
from tests.sim.workloads import OPS, VARIANTS, Workload, workloads
from tests.support.amounts import both, sample

MIXES = 4  # mixes for a power cut: everything survives, nothing survives, and two between


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", both("workloads of two operations"))
def test_workloads_agree_with_model_after_every_death(count: int) -> None:
    """Run each single operation, and some or all workloads of two operations."""
    single = list(workloads(1))
    pairs = [one for one in workloads(2, turns=1) if len(one.names) == 2]
    count = min(len(pairs), count)
    chosen = [pairs[at * len(pairs) // count] for at in range(count)]
    totals = explore([*single, *chosen], MIXES)
    print(totals)
    assert not totals.failures, str(totals.failures[0])
    assert totals.by_depth[1] == len(single)
    assert totals.by_depth[2] == count


@pytest.mark.parametrize(
    ("bug", "names"),
    sample(
        [
            ("L-1", ("now", "flush")),
            ("W-D1", ("later", "tick")),
            ("W-R7", ("later", "cancel")),
        ],
        "planted bugs of two operations",
    ),
)
def test_planted_bug_is_detected_by_two_operations(bug: str, names: tuple[str, ...]) -> None:
    workload = Workload(VARIANTS[0], names)
    with planted(bug):
        failures = explore([workload], MIXES).failures
        assert failures
        assert run_schedule(failures[0].schedule).error is not None, "its schedule shows nothing"
    assert run_schedule(failures[0].schedule).error is None
    assert not explore([workload], MIXES).failures


def test_workloads_are_complete_and_sorted_by_length() -> None:
    deep = list(workloads(3))
    assert list(islice(deep, len(list(workloads(2))))) == list(workloads(2))
    assert len(set(deep)) == len(deep)
    for depth in (1, 2, 3):
        named = {one.names for one in deep if len(one.names) == depth}
        left_out = set(product(OPS, repeat=depth)) - named
        assert all("cancel" in names for names in left_out)
        assert len([one for one in deep if len(one.names) == depth]) == len(VARIANTS) * len(named)
    assert ("cancel", "now") not in {one.names for one in deep}
    assert ("later", "cancel", "cancel") not in {one.names for one in deep}
    assert ("roll", "later", "cancel") in {one.names for one in deep}


# --- results of a power cut ---


def _changed(data: bytes, size: int) -> Node:
    """Return a node of zeros with some bytes written since its last sync."""
    node = Node(1)
    node.write(0, bytes(2 * PAGE))
    node.sync()
    node.write(0, data * size)
    return node


def test_every_returns_each_mix_of_sectors_once() -> None:
    found = every(_changed(b"a", 3 * SECTOR).cut, by_sector=True, count_max=8)
    assert found is not None
    left = [bytes(node.cache[: 4 * SECTOR : SECTOR]) for _, node in found]
    assert sorted(left) == [bytes(mix) + b"\0" for mix in product(b"\0a", repeat=3)]


def test_every_returns_each_mix_of_pages_once() -> None:
    found = every(_changed(b"a", 2 * PAGE).cut, by_sector=False, count_max=4)
    assert found is not None
    left = [bytes(node.cache[::PAGE]) for _, node in found]
    assert left == [b"\0\0", b"\0a", b"a\0", b"aa"]


def test_every_returns_none_when_there_are_too_many_mixes() -> None:
    cut = _changed(b"a", 2 * PAGE).cut
    assert every(cut, by_sector=True, count_max=1024) is None
    drawn = list(some(cut, 5))
    assert [bytes(node.cache) for _, node in drawn[:2]] == [b"a" * 2 * PAGE, bytes(2 * PAGE)]
    again = [cut(Chosen(chosen.numbers, by_sector=True)) for chosen, _ in drawn]
    assert [node.cache for node in again] == [node.cache for _, node in drawn]


def test_cut_can_leave_an_intermediate_state() -> None:
    node = _changed(b"a", SECTOR)
    node.write(0, b"b" * SECTOR)
    found = every(node.cut, by_sector=True, count_max=3)
    assert found is not None
    assert [bytes(node.cache[:1]) for _, node in found] == [b"\0", b"a", b"b"]


def test_cut_leaves_every_name_and_length_or_not() -> None:
    disk, folder = SimDisk(), SimPath("/store")
    disk.make_directory(folder)
    disk.open(folder / "old", create=True).write(b"old", 0)
    disk.open(folder / "old").sync()
    disk.sync_directory(folder)
    disk.open(folder / "old").resize(5)
    disk.open(folder / "new", create=True).sync()
    disk.note_shared()
    found = every(disk.cut, by_sector=True, count_max=99)
    assert found is not None
    left = {(tuple(one.list(folder)), one.file_bytes(folder / "old")) for _, one in found}
    assert left == set(product((("new", "old"), ("old",)), (3, 5)))
    assert len(found) == len(left)
