"""Findings: what a check has found so far, and how much it looked at.

Threads:  one check, one thread.
Holds:    memory is bounded: what goes beyond so many problems is counted, not kept.
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
        """One thing that is not as it must be."""
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(Problem(what, str(where), str(wanted), str(got)))
        else:
            self._left_off += 1

    def raised(self, what: str, where: object, error: Exception) -> None:
        """Something that could not be looked at, and why."""
        self.add(what, where, "readable", error)

    def count(self, what: str, number: int) -> None:
        """So much more was looked at."""
        self._counts[what] += number

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found so far."""
        return not self._problems

    def report(self) -> Report:
        """Give everything."""
        problems = list(self._problems)
        if self._left_off:
            problems.append(
                Problem("more problems", "the whole store", "none", f"{self._left_off} more")
            )
        return Report(tuple(problems), dict(self._counts))


def place(segments: Segments, offset: int) -> str:
    """Say where an offset of a segmented space lies: file, and offset in it."""
    number, at = divmod(offset, segments.segment_bytes)
    return at_offset(segments.path(number), at)


def at_offset(path: Path, offset: int) -> str:
    """Say where: file, and offset in it."""
    return f"{path} offset {offset}"


_ZEROS = bytes(1 << 20)


def first_byte(data: bytes) -> int | None:
    """Where the first byte stands that is not zero; None where all are."""
    if data == _ZEROS[: len(data)]:
        return None
    return len(data) - len(data.lstrip(b"\0"))
