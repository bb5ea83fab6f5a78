"""The ledger of test runs (suite, runs, seconds, commit), and the table of its sums.

    python -m tests.support.ledger     # write the table again

The ledger is tests/amounts.jsonl, with one JSON object on each line; lines are only added. The
table stands between two marks in tests/AMOUNTS.md and counts nothing that has no line.
"""

import json
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).parents[1]
LEDGER = _HERE / "amounts.jsonl"
PAGE = _HERE / "AMOUNTS.md"
BEGIN, END = "<!-- amounts: begin -->", "<!-- amounts: end -->"


def commit() -> str:
    """Return the current commit, with a plus if the tree has changes."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
            cwd=_HERE, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def add(suite: str, runs: int, seconds: float, counts: dict[str, int]) -> None:
    """Record a run of a suite; `counts` are its further counts."""
    line = {
        "suite": suite, "runs": runs, "seconds": round(seconds, 1), "commit": commit(),
        "counts": counts,
    }  # fmt: skip
    with LEDGER.open("a") as file:
        file.write(json.dumps(line) + "\n")


@dataclass(slots=True)
class Sum:
    """The sum of all runs of one suite."""

    runs: int = 0
    seconds: float = 0.0
    last: str = ""  # commit
    counts: Counter[str] = field(default_factory=Counter)


def sums() -> dict[str, Sum]:
    """Return the sums by suite."""
    found: dict[str, Sum] = {}
    for text in LEDGER.read_text().splitlines() if LEDGER.exists() else ():
        line = json.loads(text)
        one = found.setdefault(line["suite"], Sum())
        one.runs += line["runs"]
        one.seconds += line["seconds"]
        one.last = line["commit"]
        one.counts.update(line["counts"])
    return found


def table() -> str:
    """Return the table of sums, with one row for each suite."""
    rows = ["| suite | runs | of these | core hours | last at |", "|---|---|---|---|---|"]
    for suite, one in sorted(sums().items()):
        parts = ", ".join(f"{count:,} {name}" for name, count in one.counts.items())
        rows.append(f"| {suite} | {one.runs:,} | {parts} | {one.seconds / 3600:.1f} | {one.last} |")
    return "\n".join(rows)


def write_page() -> None:
    """Write the table between its marks."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}")


if __name__ == "__main__":
    write_page()
