"""Compare two revisions in turns: `make bench-compare BASE=rev [ARGS="--only put"]`.

The base is checked out and built in build/compare (a git worktree), and compared with the working
tree. The benchmarks of the working tree measure both. Every run is a separate process. The order is
base, new, new, base, base, new, and so on. The result is the median and range of the ratio of
adjacent runs, whose work digests are equal. The base can also be a wheel, a file of this Python's.

A benchmark that the base cannot run, or a run without a pair, is reported and skipped. The exit
status is 2 if the base does not build, and 1 if the working tree fails or nothing was compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from benchmarks import harness
from benchmarks.lines import Line, human, told

TREE = Path(__file__).resolve().parents[1]
KEPT = Path("build") / "compare"


class Compared(NamedTuple):
    """A benchmark and its options in one round."""

    bench: str
    options: tuple[str, ...]


PLAN = {
    "put": Compared("put", ("--rounds", "1", "--n", "200000")),
    "end_to_end": Compared("end_to_end", ("--rounds", "1", "--stops", "60")),
    "end_to_end_1k": Compared(
        "end_to_end", ("--rounds", "1", "--stops", "60", "--body", "1024", "--n", "200000")
    ),
    "cancel": Compared(
        "cancel",
        (
            "--rounds",
            "1",
        ),
    ),
    "lateness": Compared("lateness", ("--tries", "1", "--peers", "timerstore")),
    "recovery": Compared("recovery", ("--rounds", "1", "--n", "1000000")),
    "delay_queue": Compared(
        "delay_queue",
        (
            "--rounds",
            "1",
        ),
    ),
    "levels": Compared("levels", ("--rounds", "1", "--n", "100000")),
    "single": Compared("single", ("--rounds", "1")),
}
_HEAD, _CHANGES = ("rev-parse", "HEAD"), ("status", "--porcelain")
USUAL = ("put", "end_to_end", "end_to_end_1k", "cancel", "single")


class Tree:
    """A checkout to measure."""

    def __init__(self, name: str, path: Path, scratch: Path) -> None:
        self.name = name
        self.failed = False
        # The engine of this tree comes first, then the benchmarks of the working tree.
        front = scratch / name
        front.mkdir()
        (front / "benchmarks").symlink_to(TREE / "benchmarks")
        (front / "timerstore").symlink_to(path / "timerstore")
        self._front = front

    def run(self, compared: Compared, smoke: bool) -> list[Line]:
        """Run a benchmark. Return its lines, or none if it failed."""
        words = ("--smoke",) if smoke else compared.options
        done = subprocess.run(
            (sys.executable, "-m", f"benchmarks.bench_{compared.bench}", *words),
            cwd=self._front, env={**os.environ, "PYTHONPATH": str(self._front)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(f"!!! {self.name}: {compared.bench}: {done.stderr[-600:]}", file=sys.stderr)
            return []
        return [json.loads(line) for line in done.stdout.splitlines()]


def check_out(revision: str) -> Path:
    """Return the built tree of the base. It is made again if it was changed."""
    if revision.endswith(".whl"):
        path = TREE / KEPT / Path(revision).stem
        shutil.rmtree(path, ignore_errors=True)
        ZipFile(revision).extractall(path)
        return path
    commit = run_git("rev-parse", "--verify", f"{revision}^{{commit}}")
    path = TREE / KEPT / commit[:12]
    if not _is_unchanged(path, commit):
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        run_git("worktree", "add", "--detach", "--force", str(path), commit)
    subprocess.run((sys.executable, "native/build.py"), cwd=path, check=True, text=True,
                   capture_output=True, env={**os.environ, "PYTHONPATH": str(path)})  # fmt: skip
    return path


def _is_unchanged(path: Path, commit: str) -> bool:
    if not (path / ".git").is_file():  # git would use the outer tree
        return False
    try:
        head, changes = (run_git(*words, tree=path) for words in (_HEAD, _CHANGES))
    except subprocess.CalledProcessError:
        return False
    return head == commit and not changes


def run_git(*words: str, tree: Path = TREE) -> str:
    done = subprocess.run(("git", "-C", str(tree), *words), capture_output=True, text=True,
                          check=True)  # fmt: skip
    return done.stdout.strip()


def measure(
    base: Tree, new: Tree, compared: Compared, rounds: int, *, smoke: bool
) -> list[tuple[Line, Line]]:
    """Yield pairs of lines of one variant and round, base first, until a run fails."""
    pairs: list[tuple[Line, Line]] = []
    for number in range(rounds):
        turn = (base, new) if number % 2 == 0 else (new, base)
        found = {tree.name: tree.run(compared, smoke) for tree in turn}
        theirs = {_key(line): line for line in found[base.name]}
        ours = {_key(line): line for line in found[new.name]}
        if not theirs or not ours:
            new.failed |= not ours
            break
        pairs += [(theirs[key], ours[key]) for key in theirs if key in ours]
        for key in theirs.keys() ^ ours.keys():
            print(f"!!! {compared.bench}: only one tree did this work: {key}", file=sys.stderr)
    return pairs


def _key(line: Line) -> str:
    return json.dumps([line["name"], line["parameters"], line["work"]], sort_keys=True)


_COSTS = {"lateness": ("p99", "p99 ms"), "single": ("p50", "p50 us CPU")}
"""The compared figure, and its name, of benchmarks whose rate means nothing or is too noisy."""


def lower_is_better(line: Line) -> bool:
    """Return whether the compared figure is a cost, not the rate."""
    return line["name"] in _COSTS


def figure_of(line: Line) -> float:
    """Return the compared figure of a line."""
    return float(line[_COSTS[line["name"]][0]] if lower_is_better(line) else line["rate"])


def rows(pairs: Sequence[tuple[Line, Line]]) -> list[tuple[str, ...]]:
    """Return for each variant both medians, the ratio with its range, and the better rounds."""
    groups: dict[str, list[tuple[Line, Line]]] = {}
    for pair in pairs:
        groups.setdefault(_key(pair[0]), []).append(pair)
    found = []
    for group in groups.values():
        line = group[0][0]
        before, after = (told([figure_of(pair[side]) for pair in group]) for side in (0, 1))
        ratio = told([figure_of(new) / max(figure_of(old), 1e-9) for old, new in group])
        better = sum(
            (figure_of(new) < figure_of(old)) == lower_is_better(line) for old, new in group
        )
        parameters = " ".join(f"{key}={value}" for key, value in line["parameters"].items())
        found.append(
            (
                f"{line['name']} {parameters}",
                _COSTS[line["name"]][1] if lower_is_better(line) else "rate",
                human(before.median),
                human(after.median),
                f"{ratio.median:.3f}",
                f"{ratio.low:.3f} to {ratio.high:.3f}",
                f"{better} of {len(group)}",
            )
        )
    return found


def table(found: Sequence[tuple[str, ...]]) -> str:
    """Format the rows as a table."""
    head = ("benchmark", "figure", "base", "new", "new / base", "range", "better")
    widths = [max(len(row[at]) for row in (head, *found)) for at in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *found)
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table, and save the pairs."""
    parser = argparse.ArgumentParser(description="Compares a revision with the working tree.")
    parser.add_argument("base", help="a revision, as git knows it, or a wheel")
    parser.add_argument("--only", nargs="+", choices=tuple(PLAN), default=USUAL)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="run everything with tiny values")
    parser.add_argument("--json", type=Path, default=TREE / KEPT / "pairs.jsonl", metavar="OUT")
    options = parser.parse_args(argv)
    try:
        path = check_out(options.base)
    except (subprocess.CalledProcessError, OSError) as error:
        reason = getattr(error, "stderr", error)
        print(f"cannot build {options.base}: {reason}", file=sys.stderr)
        return 2
    pairs = []
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with (
        options.json.open("w", encoding="utf-8") as kept,  # fails before measuring
        harness.heeding_sigterm(),
        tempfile.TemporaryDirectory(prefix="timerstore-compare-") as scratch,
    ):
        base = Tree("base", path, Path(scratch))
        new = Tree("new", TREE, Path(scratch))
        for name in options.only:
            print(f"{name}: {options.rounds} rounds", file=sys.stderr, flush=True)
            found = measure(base, new, PLAN[name], options.rounds, smoke=options.smoke)
            for old, changed in found:
                kept.write(json.dumps({"base": old, "new": changed}) + "\n")
            kept.flush()
            pairs += found
    print(table(rows(pairs)))
    return 1 if new.failed or not pairs else 0


if __name__ == "__main__":
    sys.exit(main())
