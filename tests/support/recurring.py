"""Recurring messages of a test's store: definitions, delivered runs, and kills."""

import shutil
from pathlib import Path
from typing import Any

from tests.support.bench import NOW, Bench
from tests.support.driver import abandon
from tests.support.inside import failpoints
from timerstore import Recurring

MINUTE = 60_000


RECURRING_FILE = "config/timerstoreRecurring.json"


def every(bench: Bench, **more: Any) -> Recurring:
    """Define a message named beat, put every minute unless `more` says otherwise."""
    given = {"every": 60, "name": "beat", **more}
    return bench.store.put_every("t", b"tick", **given)


def runs(bench: Bench, topic: str = "t") -> list[int]:
    """Return when each delivered run was due, in minutes after the start."""
    times = [int(m.properties["TS_EVERY"].rpartition(" ")[2]) for m in bench.out(topic)]
    assert len({m.message_id for m in bench.out(topic)}) == len(times), "a run was delivered twice"
    return [(ms - NOW) // MINUTE for ms in times]


def runs_of_beat(bench: Bench) -> list[int]:
    """As `runs`, in a topic that has other messages too."""
    times = [m.properties.get("TS_EVERY", "").rpartition(" ")[2] for m in bench.out()]
    return [(int(ms) - NOW) // MINUTE for ms in times if ms]


def reopen_after(bench: Bench, ms: int) -> None:
    """Close the store, advance the clock, and open the store."""
    bench.close()
    bench.clock.set(bench.clock.now_ms + ms)
    bench.open()


def killed_at(bench: Bench, tmp_path: Path, point: str, nth: int, call: Any) -> bool:
    """Kill the store when a call reaches a fail point for the nth time, and open it.

    Return False if the call does not reach it that often.
    """
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == nth:
            shutil.copytree(bench.root, tmp_path / "k")

    failpoints.hook = hook
    try:
        call()
    finally:
        failpoints.hook = None
    if passed < nth:
        return False
    abandon(bench.store)
    bench.root = tmp_path / "k"
    bench.open()
    return True


def reopen_killed_after(bench: Bench, copy: Path, ms: int) -> None:
    """Kill the store, advance the clock, and open a copy of its files."""
    shutil.copytree(bench.root, copy)
    abandon(bench.store)
    bench.root = copy
    bench.clock.set(bench.clock.now_ms + ms)
    bench.open()
