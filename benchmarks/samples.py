"""Sample bench_profile with `perf record`, and assign each sample to the step that ran.

The input is the samples of perf (monotonic clock, symbol, object) and the marks of the program. If
perf is missing or may not sample, the module prints a warning and returns no samples.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

HERTZ = 4000
SAMPLE = re.compile(
    r"^\s*(?P<time>[0-9]+\.[0-9]+):\s+[0-9a-f]+\s+(?P<symbol>.+?)\s+\((?P<object>.*)\)$"
)
Marks = list[tuple[int, int, str]]


def by_step(parameters: dict[str, Any]) -> dict[str, Counter[tuple[str, str]]] | None:
    """Return the number of samples of each (function, object) per step."""
    perf = shutil.which("perf")
    if perf is None:
        print("!!! NO TABLE BY FUNCTION: there is no perf", file=sys.stderr)
        return None
    words = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in parameters.items()
        if name not in {"rounds", "seconds_max"}
    ]
    with tempfile.TemporaryDirectory(prefix="timerstore-perf-") as folder:
        data, marks = Path(folder, "data"), Path(folder, "marks")
        done = subprocess.run(
            (perf, "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "-k", "CLOCK_MONOTONIC",
             "-o", str(data), sys.executable, "-m", "benchmarks.bench_profile", *words,
             "--sampled", str(marks)),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or not marks.exists():
            print(f"!!! NO TABLE BY FUNCTION: {done.stderr[-400:]}", file=sys.stderr)
            return None
        told = subprocess.run(
            (perf, "script", "-i", str(data), "--ns", "-F", "time,ip,sym,dso"),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found: Marks = [tuple(one) for one in json.loads(marks.read_text("utf-8"))]
    return laid_under(found, told.stdout.splitlines())


def laid_under(marks: Marks, lines: list[str]) -> dict[str, Counter[tuple[str, str]]]:
    """Assign each sample to the step during which it was taken. Drop the others."""
    marks = sorted(marks)
    begins = [begin for begin, _, _ in marks]
    found: dict[str, Counter[tuple[str, str]]] = {}
    for line in lines:
        sample = SAMPLE.match(line)
        if sample is None:
            continue
        seconds, _, rest = sample["time"].partition(".")
        at = int(seconds) * 1_000_000_000 + int(rest.ljust(9, "0"))
        place = bisect_right(begins, at) - 1
        if place < 0 or at >= marks[place][1]:
            continue
        name = Path(sample["object"]).name
        symbol = re.sub(r"\+0x[0-9a-f]+$", "", sample["symbol"])
        found.setdefault(marks[place][2], Counter())[symbol, name] += 1
    return found
