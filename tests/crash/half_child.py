"""Put half messages and end them, in a child that is killed.

The child appends a row to a file before each call that ends a half message, and after its answer.
"""

import os
from pathlib import Path

import timerstore
from tests.crash.lease_child import CONFIG
from tests.support.points import die_at
from timerstore import TimerStore

TOPIC = "orders"
CHECKS = "%HALF%orders"
GROUP = "shops"
PUTS = 24


def run(root: str, first: int, point: str, nth: int) -> None:
    """Put half messages, end most of them by handle or check, and die at a fail point."""
    with timerstore.open(root, CONFIG) as store:
        notes = os.open(Path(root).parent / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        halves = {}
        for k in range(first, first + PUTS):
            # A quarter is due for its check at once, a quarter soon, and the others in an hour.
            after_s = (0, 0.05, 3600, 3600)[k % 4]
            halves[k] = store.put(TOPIC, b"%06d" % k, check_after=after_s).handle
            _note(notes, f"put {k} {halves[k]}")
        die_at(point, nth)
        for k in range(first, first + PUTS):
            if k % 4 == 2:
                _end(store, notes, k, halves[k])
        while got := store.receive(CHECKS, GROUP, max_count=3, lease=600, wait=0.2):
            for one in got:
                _end(store, notes, int(one.body), one.receipt)


def _end(store: TimerStore, notes: int, number: int, target: str) -> None:
    """Commit, or roll back each third one."""
    call = "rollback" if number % 3 == 0 else "commit"
    _note(notes, f"{call} {number} {target}")
    answer = getattr(store, call)(target)
    _note(notes, f"{answer} {number} {target}")


def _note(notes: int, line: str) -> None:
    os.write(notes, line.encode() + b"\n")
