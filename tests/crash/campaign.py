"""Distribute lives to parallel workers, count the results and report them.

Thread safety: one thread for each worker, which waits for its answers.
"""

import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import ledger
from tests.support.inside import failpoints

ROOT = Path(__file__).resolve().parents[2]


class Campaign:
    """Lives that run in parallel in the given workers."""

    how = "kills"
    suite = "kill -9"

    def __init__(
        self, lives: Iterator[dict[str, Any]], seed: int, workers: list[list[str]]
    ) -> None:
        """Start the workers. `workers` holds the command of each."""
        self.seed = seed
        self.points: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.failed: list[dict[str, Any]] = []
        self._lives = lives
        self._lock = threading.Lock()
        started = time.monotonic()
        threads = [threading.Thread(target=self._work, args=(command,)) for command in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - started

    def _next(self) -> Iterator[dict[str, Any]]:
        while True:
            with self._lock:
                life = next(self._lives, None) if len(self.failed) < 5 else None
            if life is None:
                return
            yield life

    def _work(self, command: list[str]) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",  # a process that forks must have one thread
            "OMP_NUM_THREADS": "1",
        }
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            for life in self._next():
                worker.stdin.write(json.dumps(life) + "\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
                result = json.loads(answer) if answer else _gone(life)
                with self._lock:
                    self._count(life, result)
                if not answer:
                    return

    def _count(self, life: dict[str, Any], result: dict[str, Any]) -> None:
        self.points.update(result["points"])
        self.totals.update(lives=1, messages=result["messages"], seen=result["seen"])
        if result["problems"]:
            self.failed.append(life | result)

    def note(self) -> None:
        """Add to the ledger if TIMERSTORE_NOTE_AMOUNTS is set, as in nightly runs."""
        if os.environ.get("TIMERSTORE_NOTE_AMOUNTS"):
            counts = {
                self.how: self.kills,
                "at points": self.kills - self.points["at random"],
                "messages": self.totals["messages"],
            }
            ledger.add(self.suite, self.totals["lives"], self.seconds, counts)

    @property
    def kills(self) -> int:
        """Return how many children were killed."""
        return self.points.total() - self.points["not killed"]

    @property
    def summary(self) -> str:
        """Return a summary as text."""
        named = "  ".join(f"{name} {self.points[name]}" for name in failpoints.NAMES)
        return (
            f"\n{self.kills} {self.how} in {self.totals['lives']} lives, seed {self.seed},"
            f" {self.seconds:.0f} s: {self.points['at random']} at random,"
            f" {self.kills - self.points['at random']} at {len(failpoints.NAMES)} points;"
            f" {self.totals['messages']} acknowledged messages checked,"
            f" {self.totals['seen']} of them had been seen; {len(self.failed)} lives failed\n"
            f"{named}\n"
        )

    def check(self) -> None:
        """Fail with all problems found, and with the data needed to repeat each life."""
        self.note()
        texts = []
        for one in self.failed:
            problems = "\n    ".join(one.pop("problems"))
            texts.append(f"  {json.dumps(one)}\n    {problems}")
        assert not texts, f"{self.summary}\n" + "\n".join(texts)


def _gone(life: dict[str, Any]) -> dict[str, Any]:
    return {"points": {}, "messages": 0, "seen": 0, "problems": [f"the worker died: {life}"]}
