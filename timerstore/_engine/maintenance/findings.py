"""`Findings`: the problems and counts of one check.

Thread safety: one thread for each check.
Invariants: memory is bounded. Problems past a limit are counted and not kept.
"""

from collections import Counter
from pathlib import Path

from timerstore._engine.storage.segments import Segments
from timerstore.reports import Problem, Report

_PROBLEMS_MAX = 10_000


class Findings:
    """Collects problems and counts of one check."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._left_off = 0
        self._counts: Counter[str] = Counter()

    def add(self, what: str, where: object, wanted: object, got: object) -> None:
        """Add a problem."""
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(Problem(what, str(where), str(wanted), str(got)))
        else:
            self._left_off += 1

    def raised(self, what: str, where: object, error: Exception) -> None:
        """Add something that could not be read."""
        self.add(what, where, "readable", error)

    def count(self, what: str, number: int) -> None:
        """Add to the number of things that were read."""
        self._counts[what] += number

    @property
    def is_clean(self) -> bool:
        """Whether there is no problem so far."""
        return not self._problems

    def report(self) -> Report:
        """Return all problems and counts."""
        problems = list(self._problems)
        if self._left_off:
            problems.append(
                Problem("more problems", "the whole store", "none", f"{self._left_off} more")
            )
        return Report(tuple(problems), dict(self._counts))


def place(segments: Segments, offset: int) -> str:
    """Return the file of a segmented space that has an offset, and the offset in it."""
    number, at = divmod(offset, segments.segment_bytes)
    return at_offset(segments.path(number), at)


def at_offset(path: Path, offset: int) -> str:
    """Return a file and an offset in it as text."""
    return f"{path} offset {offset}"


_ZEROS = bytes(1 << 20)


def first_byte(data: bytes) -> int | None:
    """Return the place of the first byte that is not zero; None if all are."""
    if data == _ZEROS[: len(data)]:
        return None
    return len(data) - len(data.lstrip(b"\0"))
