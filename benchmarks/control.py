"""The control process: sleep during a measured run, and report how late the machine woke it.

It is a separate process, so that no interpreter lock delays it. It imports only the standard
library, so that it starts before the measured program. It writes one JSON object to standard output
when standard input closes. If it woke more than about 6 ms late, a measured lateness says nothing
about the store.
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
"""The duration of one sleep."""

STALL_MS_MAX = 6.0
"""A run is reported as disturbed if its control process woke later than this."""


class Stall(NamedTuple):
    """How far sleeps overshot, in milliseconds."""

    p99_ms: float
    max_ms: float


class Control:
    """Run the control process during a `with` block. `stall` has its result afterwards."""

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
