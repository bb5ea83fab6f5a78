"""A set of versions, stored as ranges: any number of adjacent versions takes one range."""

from bisect import bisect_right
from collections.abc import Iterable


class VersionSet:
    """A set of integers of 0 and above."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._begins: list[int] = []  # ascending; ranges are [begin, end) and not adjacent
        self._ends: list[int] = []
        for begin, end in ranges:
            self.add_range(begin, end)

    def __contains__(self, version: int) -> bool:
        at = bisect_right(self._begins, version)
        return at > 0 and version < self._ends[at - 1]

    def add(self, version: int) -> None:
        """Add a version."""
        self.add_range(version, version + 1)

    def add_range(self, begin: int, end: int) -> None:
        """Add [begin, end)."""
        if begin >= end:
            return
        low = bisect_right(self._ends, begin - 1)  # the first range that ends at begin or later
        high = bisect_right(self._begins, end)  # the first range that begins after end
        if low < high:
            begin = min(begin, self._begins[low])
            end = max(end, self._ends[high - 1])
        self._begins[low:high] = [begin]
        self._ends[low:high] = [end]

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges [begin, end), ascending."""
        return tuple(zip(self._begins, self._ends, strict=True))

    def __bool__(self) -> bool:
        return bool(self._begins)
