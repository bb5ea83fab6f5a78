"""A child dies by SIGKILL, at every fail point and at random; what is left keeps every promise.

What was acknowledged comes once and not early, what was cancelled does not, what was seen stays
where it was: after each life check.py compares the store with what its children said.

TIMERSTORE_CRASH_KILLS and TIMERSTORE_CRASH_SEED set amount and seed of the long run.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.crash.lives import make_lives
from timerstore import failpoint

pytestmark = [pytest.mark.crash, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]
_MEMORY = Path("/dev/shm")
_SEED = 20_131
_KILLS = 290
_KILLS_MIN = 300
_KILLS_LONG = 3000


class Campaign:
    """Lives, lived side by side in as many workers as there are cores."""

    def __init__(self, directory: Path, seed: int, kills: int) -> None:
        self.seed = seed
        self.points: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.failed: list[dict[str, Any]] = []
        self._lives = make_lives(seed, kills)
        self._lock = threading.Lock()
        self._in_memory = tempfile.mkdtemp(
            prefix="timerstore-crash-", dir=_MEMORY if _MEMORY.is_dir() else directory
        )
        started = time.monotonic()
        workers = len(os.sched_getaffinity(0))
        threads = [
            threading.Thread(target=self._work, args=(directory / f"worker-{number}",))
            for number in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self.failed:
            shutil.rmtree(self._in_memory)
        self.seconds = time.monotonic() - started

    def _next(self) -> Iterator[dict[str, Any]]:
        while True:
            with self._lock:
                life = next(self._lives, None) if len(self.failed) < 5 else None
            if life is None:
                return
            yield life

    def _work(self, directory: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(_ROOT),
            "OPENBLAS_NUM_THREADS": "1",  # a process that forks must have one thread
            "OMP_NUM_THREADS": "1",
        }
        with subprocess.Popen(
            [sys.executable, "-m", "tests.crash.worker", str(directory), self._in_memory],
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

    @property
    def kills(self) -> int:
        """How many children died by a kill."""
        return self.points.total() - self.points["not killed"]

    @property
    def summary(self) -> str:
        """What was done, as text."""
        named = "  ".join(f"{name} {self.points[name]}" for name in failpoint.NAMES)
        return (
            f"\n{self.kills} kills in {self.totals['lives']} lives, seed {self.seed},"
            f" {self.seconds:.0f} s: {self.points['at random']} at random,"
            f" {self.kills - self.points['at random']} at {len(failpoint.NAMES)} points;"
            f" {self.totals['messages']} acknowledged messages checked,"
            f" {self.totals['seen']} of them had been seen; {len(self.failed)} lives failed\n"
            f"{named}\n"
        )

    def check(self) -> None:
        """Fail with what went wrong, and what it takes to live it again."""
        texts = []
        for one in self.failed:
            problems = "\n    ".join(one.pop("problems"))
            texts.append(f"  {json.dumps(one)}\n    {problems}")
        assert not texts, f"{self.summary}\n" + "\n".join(texts)


def _gone(life: dict[str, Any]) -> dict[str, Any]:
    return {"points": {}, "messages": 0, "seen": 0, "problems": [f"the worker died: {life}"]}


@pytest.mark.timeout(600)
def test_nothing_is_lost_doubled_early_or_taken_back_after_kill_9(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = Campaign(tmp_path, _SEED, _KILLS)
    with capsys.disabled():
        print(campaign.summary)
    campaign.check()
    assert campaign.kills >= _KILLS_MIN
    assert [name for name in failpoint.NAMES if not campaign.points[name]] == []


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_the_same_for_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("TIMERSTORE_CRASH_SEED") or secrets.randbits(31))
    kills = int(os.environ.get("TIMERSTORE_CRASH_KILLS") or _KILLS_LONG)
    with capsys.disabled():
        print(f"\nTIMERSTORE_CRASH_SEED={seed} TIMERSTORE_CRASH_KILLS={kills}")
    campaign = Campaign(tmp_path, seed, kills)
    with capsys.disabled():
        print(campaign.summary)
    campaign.check()
    assert campaign.kills >= 0.85 * kills


def test_every_point_in_the_code_has_a_name_and_every_name_its_point() -> None:
    found: Counter[str] = Counter()
    for path in Path(timerstore.__file__).parent.rglob("*.py"):
        if path.name == "failpoint.py":
            continue
        for call in re.findall(r"\breach\((.*)\)", path.read_text()):
            names = re.findall(r'"(\w+)"', call)
            assert names, f"{path}: a point without a plain name: reach({call})"
            found.update(names)
    assert len(failpoint.NAMES) >= 20
    assert len(set(failpoint.NAMES)) == len(failpoint.NAMES)
    assert set(found) == set(failpoint.NAMES) | set(failpoint.SHARD_NAMES)
    assert [name for name, count in found.items() if count > 1] == [], "one name, two moments"
