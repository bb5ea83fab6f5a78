"""Write the results of benchmarks as JSON lines, and format them as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Spread


@dataclass(frozen=True, slots=True)
class Result:
    """One result. The spread is in `unit`; `figures` has the fields of this benchmark only."""

    name: str
    parameters: Mapping[str, Any]
    n: int
    rate: float
    unit: str
    spread: Spread
    flush: str
    work: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the result as one line of JSON, with null for NaN and infinity."""
        record: dict[str, Any] = {
            "name": self.name,
            "parameters": dict(self.parameters),
            "n": self.n,
            "rate": _rounded(self.rate),
            "unit": self.unit,
            "p50": _rounded(self.spread.p50),
            "p99": _rounded(self.spread.p99),
            "max": _rounded(self.spread.max),
            "flush": self.flush,
            "work": self.work,
        }
        record.update({key: _rounded(value) for key, value in self.figures.items()})
        return json.dumps(record)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if not math.isfinite(value) else float(f"{value:.6g}")
    if isinstance(value, np.generic):
        return _rounded(value.item())
    return value


def emit(results: Iterable[Result], out: Path | None) -> list[Result]:
    """Print each line at once, append it to the file if given, and return all results."""
    done = []
    for result in results:
        print(result.line(), flush=True)
        if out is not None:
            with out.open("a", encoding="utf-8") as lines:
                lines.write(result.line() + "\n")
        done.append(result)
    return done


def table(results: Sequence[Result]) -> str:
    """Format the results as a table of name, parameters, rate and spread."""
    head = ("benchmark", "parameters", "rate/s", "unit", "p50", "p99", "max", "flush")
    rows: list[tuple[str, ...]] = [head]
    for result in results:
        told = " ".join(f"{key}={value}" for key, value in result.parameters.items())
        figures = (f"{value:,.6g}" if math.isfinite(value) else "-" for value in result.spread)
        rate = f"{result.rate:,.0f}" if math.isfinite(result.rate) else "-"
        rows.append((result.name, told, rate, result.unit, *figures, result.flush))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = {2, 4, 5, 6}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def medians(results: Sequence[Result]) -> list[Result]:
    """Return the run with the median rate from each group of runs with equal parameters."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = (result.name, json.dumps(dict(result.parameters), sort_keys=True))
        groups.setdefault(key, []).append(result)
    return [
        sorted(group, key=lambda result: result.rate)[(len(group) - 1) // 2]
        for group in groups.values()
    ]


def or_none(value: float) -> float | None:
    """Return None for NaN, which JSON does not have, and an int for a whole number."""
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value
