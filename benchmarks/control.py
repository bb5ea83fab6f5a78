"""The control process: sleeps beside a measured program and tells how late the machine woke it.

Data:     one JSON object on standard output when standard input closes.
Threads:  none; it is a process of its own, so that no interpreter lock delays it.
Holds:    imports nothing but the standard library: it must be awake before what it watches.
Source:   lateness beside a stall of more than about 6 ms says nothing about a store.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import NamedTuple, Self

SLEEP_S = 0.002
"""What it sleeps at a time."""

STALL_MS_MAX = 6.0
"""A run whose control overshot by more is told as disturbed."""


class Stall(NamedTuple):
    """How far sleeps overshot, in milliseconds."""

    p99_ms: float
    max_ms: float


class Control:
    """`with Control() as control: ...`; afterwards control.stall holds what it saw."""

    def __init__(self) -> None:
        self.stall = Stall(float("nan"), float("nan"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        answer, _ = self._process.communicate()
        with contextlib.suppress(ValueError, KeyError):
            found = json.loads(answer)
            self.stall = Stall(found["p99_ms"], found["max_ms"])

    @property
    def calm(self) -> bool:
        """Whether the machine itself stayed below the bound."""
        return self.stall.max_ms <= STALL_MS_MAX


def watch() -> Stall:
    """Sleep until standard input closes."""
    overshoots: list[float] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        before = time.perf_counter()
        time.sleep(SLEEP_S)
        overshoots.append((time.perf_counter() - before - SLEEP_S) * 1e3)
    overshoots.sort()
    if not overshoots:
        return Stall(0.0, 0.0)
    return Stall(overshoots[int(len(overshoots) * 0.99)], overshoots[-1])


if __name__ == "__main__":
    print(json.dumps(watch()._asdict()))
