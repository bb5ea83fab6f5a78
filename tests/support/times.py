"""The seconds of `make test` by folder, and the budget of each: `make test-times`.

Reads a report of pytest in JUnit's form, and writes tests/TIMES.md.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

TABLE = Path(__file__).parent.parent / "TIMES.md"
HEAD = """# Where the time of `make test` goes

Written by `make test-times`, on two cores. The tests of a folder should fit its budget,
which no test checks.

| folder | tests | seconds of one core | budget |
|---|---|---|---|
"""
BUDGET_S = {"tests/cli": 100, "tests/unit/net": 90, "tests/interop": 60, "tests/sim": 60}
USUAL_S = 50
"""The budget of a folder without an own one."""


def folder_of(classname: str) -> str:
    """Return the folder of a test by the name of its class: tests.unit.read.test_pull."""
    parts = classname.split(".")
    modules = [k for k, part in enumerate(parts) if part.startswith("test_")]
    folders = parts[: modules[0]] if modules else parts
    return "/".join(folders[:3] if folders[1:2] == ["unit"] else folders[:2])


def main(report: Path) -> None:
    """Write the table."""
    seconds, counts = Counter[str](), Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        folder = folder_of(case.get("classname", ""))
        seconds[folder] += float(case.get("time", 0))  # type: ignore[assignment]
        counts[folder] += 1
    rows = [
        f"| {folder} | {counts[folder]:,} | {took:.0f} | {BUDGET_S.get(folder, USUAL_S)} |\n"
        for folder, took in seconds.most_common()
    ]
    total = f"| all | {counts.total():,} | {sum(seconds.values()):.0f} | |\n"
    TABLE.write_text(HEAD + "".join(rows) + total, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
