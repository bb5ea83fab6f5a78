"""Read result lines from a file, and summarize the rounds of each variant by median and range.

A line of lines.jsonl has the fields of harness.Result.line, the part of the plan, and the sitting:
each run of the suite with --append is another sitting.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.control import STALL_MS_MAX

Line = dict[str, Any]
Figure = Callable[[Line], float]


class Told(NamedTuple):
    """Median, least and most of some rounds."""

    median: float
    low: float
    high: float
    rounds: int

    def __format__(self, unit: str) -> str:
        """As "1.2 M (1.1 to 1.3 M)"."""
        low, middle, high = (human(one, unit) for one in (self.low, self.median, self.high))
        return f"{middle} ({low} to {high})"


def told(values: Sequence[float]) -> Told:
    """Of one value or more."""
    return Told(statistics.median(values), min(values), max(values), len(values))


def human(value: float, unit: str = "") -> str:
    """Three digits; counts and rates with M or k where they are large."""
    space = " " if unit else ""
    if unit in {"", "/s", "B"}:
        for size, name in ((1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}{unit}"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits}{space}{unit}"


def _when(line: Line) -> tuple[int, int]:
    return line.get("sitting", 0), line.get("round", 0)


class Lines:
    """All lines of a run of the suite."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.all = list(lines)

    @classmethod
    def read(cls, path: Path) -> Lines:
        """Of a file."""
        return cls([json.loads(line) for line in path.read_text("utf-8").splitlines()])

    def where(self, part: str | None = None, name: str | None = None, **parameters: Any) -> Lines:
        """Those of a part, of a benchmark, with these parameters."""
        return Lines(
            [
                line
                for line in self.all
                if (part is None or line.get("part") == part)
                and (name is None or line["name"] == name)
                and all(line["parameters"].get(key) == value for key, value in parameters.items())
            ]
        )

    def told(self, figure: str | Figure) -> Told | None:
        """Of a figure in all of them; None where there are none."""
        take = figure if callable(figure) else (lambda line: line[figure])
        values = [value for line in self.all if (value := take(line)) is not None]
        return told(values) if values else None

    def variants(self) -> list[Lines]:
        """Grouped by name and parameters, in the order of their first lines."""
        groups: dict[str, list[Line]] = {}
        for line in self.all:
            key = json.dumps([line["name"], line["parameters"]], sort_keys=True)
            groups.setdefault(key, []).append(line)
        return [Lines(group) for group in groups.values()]

    @property
    def first(self) -> Line:
        """The first of them."""
        return self.all[0]

    @property
    def disturbed(self) -> int:
        """The number of runs with a stall of the control process."""
        return sum((line.get("control_max_ms") or 0.0) > STALL_MS_MAX for line in self.all)

    def ratios(self, other: Lines, figure: str = "rate") -> Told | None:
        """Of each round of a sitting, this variant's figure by the other's; rounds both have."""
        theirs = {_when(line): line[figure] for line in other.all}
        found = [line[figure] / theirs[_when(line)] for line in self.all if theirs.get(_when(line))]
        return told(found) if found else None
