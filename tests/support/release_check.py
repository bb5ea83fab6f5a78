"""Do in a fresh clone what can be done before a release: `make release-check`.

    python -m tests.support.release_check [--only NAME...] [--list]

Every step is a target of the Makefile. The clone is in build/release-check, with the commit that
is checked out here and an environment of its own; each step's output is there, too. At the end a
table has each step with its result, seconds and last line, and what only the workflows can do. Exit
status 1 if a step fails or was left out.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "release-check"
_WHEEL = (
    f"dist/*-cp{sys.version_info[0]}{sys.version_info[1]}-*manylinux_2_17_{platform.machine()}.whl"
)
_LAST_CHARACTERS = 100
_NOT_DONE = re.compile(r"\bNOT (?:FOUND|LINTED|RUN|TESTED)\b")

STEPS = {
    "check": ("make", "check"),
    "native": ("make", "native-test", "native-fuzz"),
    "docs": ("make", "docs"),
    "zensical": ("make", "docs-zensical"),
    "test-docs": ("make", "test-docs"),
    "wheels": ("make", "wheels"),
    "test-wheel": ("make", "test-wheel"),
    "first-message": ("make", "first-message"),
    "aarch64": ("make", "test-arm"),
    "speed": ("make", "bench-compare", f"BASE=$(wildcard {_WHEEL})", "ARGS=--only put"),
    "pythons": ("make", "test-pythons"),
    "django": ("make", "test-django"),
    "test": ("make", "test"),
    "test-late": ("make", "test-late"),
    "test-more": ("make", "test-more"),
    "property": ("make", "test-property"),
    "crash": ("make", "test-crash"),
    "interop": ("make", "test-interop"),
    "spark": ("make", "test-spark"),
}
"""Each step and its command."""

ONLY_WORKFLOWS = {
    "wheels on musl and a real aarch64": "wheels.yml, by cibuildwheel, and their tests",
    "links to other sites": "docs.yml",
    "publish the site": "docs.yml, from a tag",
    "approval, attestations, upload": "release.yml, from a tag",
}
"""What can only be done elsewhere, and where."""


def run(steps: Mapping[str, Sequence[str]], tree: Path, logs: Path) -> dict[str, tuple[str, float]]:
    """Run commands in a tree. Return the result and seconds of each."""
    found = {}
    # Each step is a make of its own: ARGS of the make that runs this are not for it.
    own = {name: text for name, text in os.environ.items() if not name.startswith(("ARGS", "MAKE"))}
    for name, command in steps.items():
        began = time.monotonic()
        with (logs / f"{name}.log").open("w") as log:
            done = subprocess.run(command, cwd=tree, env=own, stdout=log, stderr=log, check=False)
        result = "FAILED" if done.returncode else "passed"
        found[name] = (result, time.monotonic() - began)
        print(f"--- {name}: {result}", file=sys.stderr, flush=True)
    return found


def table(found: Mapping[str, tuple[str, float]], logs: Path) -> str:
    """Return a line for each step, done or not, and for each thing that only a workflow does."""
    rows = []
    for name, command in STEPS.items():
        result, seconds = found.get(name, ("NOT RUN", 0.0))
        text = (logs / f"{name}.log").read_text(errors="replace") if name in found else ""
        skipped = len(_NOT_DONE.findall(text))
        more = f"; its log says {skipped} times what it could not do" if skipped else ""
        rows.append(f"{name:13} {result:8} {seconds:6.0f} s  {' '.join(command)}{more}")
        rows += [f"{'':13} {line[:_LAST_CHARACTERS]}" for line in text.splitlines()[-1:]]
    rows += [f"{name:34} only in the workflow: {how}" for name, how in ONLY_WORKFLOWS.items()]
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    if asked.list:
        print(table({}, FOLDER))
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    tree = FOLDER / "tree"
    subprocess.run(("git", "clone", "--quiet", ROOT, tree), check=True)
    head = subprocess.check_output(("git", "rev-parse", "HEAD"), cwd=tree, text=True).strip()
    print(f"commit {head}; uncommitted changes are not checked", file=sys.stderr)
    found = run({name: STEPS[name] for name in asked.only}, tree, FOLDER)
    print(table(found, FOLDER))
    return any(result != "passed" for result, _ in found.values()) or found.keys() != STEPS.keys()


if __name__ == "__main__":
    sys.exit(main())
