"""Grouping of partitions into tasks."""

from types import SimpleNamespace as Space
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.support.inside import partitions_of_tasks

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes_mib", "groups"),
    [
        ([], []),
        ([500], [[0]]),
        ([26] * 8, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([0] * 4, [[0, 1, 2, 3]]),
        ([32, 32, 1], [[0, 1], [2]]),
        ([63, 2, 100, 100, 1, 1], [[0], [1], [2], [3], [4, 5]]),
    ],
)
def test_small_adjacent_partitions_share_task(
    sizes_mib: list[int], groups: list[list[int]]
) -> None:
    begin = 5 * MIB
    partitions: list[Any] = [
        Space(value=Space(part=Space(begin=begin, end=begin + size * MIB))) for size in sizes_mib
    ]
    assert partitions_of_tasks(partitions) == groups
