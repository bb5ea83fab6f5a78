"""The ledger of what ran: suite, runs, seconds, commit; and the table of its sums in AMOUNTS.md.

Data: tests/amounts.jsonl, one JSON object a line; lines are only added. The table is between two
marks in tests/AMOUNTS.md; nothing is claimed that has no line.

    python -m tests.support.ledger     # writes the table again
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
    """The commit that ran, with a plus where the tree had changes."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
            cwd=_HERE, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def add(suite: str, runs: int, seconds: float, counts: dict[str, int]) -> None:
    """Note that a suite ran; `counts`: what else it did so many times."""
    line = {
        "suite": suite, "runs": runs, "seconds": round(seconds, 1), "commit": commit(),
        "counts": counts,
    }  # fmt: skip
    with LEDGER.open("a") as file:
        file.write(json.dumps(line) + "\n")


@dataclass(slots=True)
class Sum:
    """All lines of one suite."""

    runs: int = 0
    seconds: float = 0.0
    last: str = ""  # commit
    counts: Counter[str] = field(default_factory=Counter)


def sums() -> dict[str, Sum]:
    """Give the sums by suite."""
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
    """The sums of all lines, a row a suite."""
    rows = ["| suite | runs | of these | core hours | last at |", "|---|---|---|---|---|"]
    for suite, one in sorted(sums().items()):
        parts = ", ".join(f"{count:,} {name}" for name, count in one.counts.items())
        rows.append(f"| {suite} | {one.runs:,} | {parts} | {one.seconds / 3600:.1f} | {one.last} |")
    return "\n".join(rows)


def write_page() -> None:
    """Put the table between its marks."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}")


if __name__ == "__main__":
    write_page()
