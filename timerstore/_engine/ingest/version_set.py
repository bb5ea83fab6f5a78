"""A set of versions, as ranges: however many there are, those without a gap take one."""

from bisect import bisect_right
from collections.abc import Iterable


class VersionSet:
    """Whole numbers from 0 on."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._begins: list[int] = []  # ascending; range k is [begin, end), none touches another
        self._ends: list[int] = []
        for begin, end in ranges:
            self.add_range(begin, end)

    def __contains__(self, version: int) -> bool:
        at = bisect_right(self._begins, version)
        return at > 0 and version < self._ends[at - 1]

    def add(self, version: int) -> None:
        """Add one."""
        self.add_range(version, version + 1)

    def add_range(self, begin: int, end: int) -> None:
        """Add [begin, end)."""
        if begin >= end:
            return
        low = bisect_right(self._ends, begin - 1)  # the first range that ends at begin or behind
        high = bisect_right(self._begins, end)  # the first that begins behind end
        if low < high:
            begin = min(begin, self._begins[low])
            end = max(end, self._ends[high - 1])
        self._begins[low:high] = [begin]
        self._ends[low:high] = [end]

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Give the ranges, from and below, ascending."""
        return tuple(zip(self._begins, self._ends, strict=True))

    def __bool__(self) -> bool:
        return bool(self._begins)
