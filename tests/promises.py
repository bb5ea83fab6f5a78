"""Write PROMISES.md: guarantees, the tests that prove them, amounts of runs, and gaps.

    python -m tests.promises     # writes it from promises.toml and amounts.jsonl

Invariants: a row names only existing tests, and amounts that are in the ledger.
"""

import ast
import tomllib
from pathlib import Path
from typing import NamedTuple

from tests.support import ledger

_HERE = Path(__file__).parent
SOURCE = _HERE / "promises.toml"
PAGE = _HERE / "PROMISES.md"
_HEAD = """# Guarantees and their proofs

Written by `python -m tests.promises` from `promises.toml` and the ledger `amounts.jsonl`; do not
edit. The full text of each guarantee, and the fault model, are in
[guarantees](../timerstore/docs/guarantees.md). Runs of `make test` are not counted, only runs that
are recorded in the ledger (`make nightly`).

| guarantee | summary | tests | runs so far | not proved |
|---|---|---|---|---|
"""


class Promise(NamedTuple):
    """One row."""

    name: str
    says: str
    tests: list[str]
    suites: list[str]
    holes: str


def promises() -> list[Promise]:
    """Read promises.toml."""
    rows = tomllib.loads(SOURCE.read_text())
    return [Promise(name, **row) for name, row in rows.items()]


def missing_tests(row: Promise) -> list[str]:
    """Return the tests of a row that do not exist."""
    return [test for test in row.tests if not _is_there(test)]


def _is_there(test: str) -> bool:
    name, _, function = test.partition("::")
    path = _HERE.parent / name
    if not path.is_file():
        return False
    if not function:
        return True
    tree = ast.parse(path.read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    # A machine's TestCase is a name that is assigned.
    names |= {target.id for node in tree.body if isinstance(node, ast.Assign)
              for target in node.targets if isinstance(target, ast.Name)}  # fmt: skip
    return function in names


def page() -> str:
    """Return the page's text."""
    sums = ledger.sums()
    return _HEAD + "".join(_row(one, sums) for one in promises())


def _row(one: Promise, sums: dict[str, ledger.Sum]) -> str:
    tests = "<br>".join(test.removeprefix("tests/").replace("::", " ") for test in one.tests)
    ran = "<br>".join(f"{suite}: {sums[suite].runs:,}" for suite in one.suites if suite in sums)
    holes = one.holes or "-"
    return f"| {one.name} | {one.says} | {tests or '-'} | {ran or '-'} | {holes} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
