"""The audit of the benchmarks: it finds lost, duplicate, early, unexpected and changed messages."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import (
    audit,
)
from tests.support.benchmark_results import ids


def pulled(rows: list[int], delivered: list[int], seen_ms: int = 1000) -> audit.Pulled:
    found = audit.Pulled()
    found.add(ids(*rows), ids(*delivered), seen_ms)
    return found


def counts(found: audit.Pulled) -> audit.Counts:
    """Count four ids: 0 and 1 are required, 2 was cancelled, 3 was never acknowledged."""
    due = ids(10, 20, 30, 40)
    must = np.array([True, True, False, False])
    may = np.array([False, False, False, True])
    return audit.count(found, due, must, may, np.array([False, False, True, False]))


def test_count_has_no_faults_for_expected_deliveries() -> None:
    assert counts(pulled([0, 1], [10, 20])).faults == 0
    assert counts(pulled([0, 1, 3], [10, 25, 40])).faults == 0
    assert counts(pulled([0, 1], [10, 20])).delivered == 2


@pytest.mark.parametrize(
    ("rows", "delivered", "fault"),
    [
        ([0], [10], "lost"),
        ([0, 1, 1], [10, 20, 20], "duplicated"),
        ([0, 1, 3, 3], [10, 20, 40, 40], "duplicated"),
        ([0, 1], [10, 19], "early"),
        ([0, 1, 2], [10, 20, 30], "unwanted"),
        ([0, 1, -1], [10, 20, 30], "unknown"),
        ([0, 1, 4], [10, 20, 30], "unknown"),
    ],
)
def test_count_reports_each_fault(rows: list[int], delivered: list[int], fault: str) -> None:
    found = counts(pulled(rows, delivered))
    assert getattr(found, fault) == 1
    assert found.faults == 1


def test_count_uses_earlier_of_clock_and_delivery_time() -> None:
    assert counts(pulled([0, 1], [10, 20], seen_ms=15)).early == 1


def test_altered_counts_changed_bodies() -> None:
    expected = audit.Expected.of([b"one", b"three", b"", b"four"])

    def altered(rows: list[int], bodies: list[bytes]) -> int:
        got = audit.Expected.of(bodies)
        return expected.altered(ids(*rows), got.buffer, got.offsets)

    assert altered([3, 0, 1], [b"four", b"one", b"three"]) == 0
    assert altered([0, 1, 3], [b"onE", b"three", b"fours"]) == 2
    assert altered([2], [b""]) == 0
    assert altered([-1, 9], [b"one", b"three"]) == 2


def test_digits_accepts_padded_numbers_only() -> None:
    bodies = [b"<  7>", b"<123>", b"<1 3>", b"<   >", b"<12x>", b"<1"]
    packed = audit.Expected.of(bodies)
    found = audit.digits(packed.buffer, packed.offsets[:-1], (1, 4)).tolist()
    assert found[:2] == [7, 123]
    assert found[3:] == [-1, -1, -1]
