"""Measure how soon a caller reads the message that it has just put, by polling with wait=0.

One thread puts a message that is due at once, and reads until the message is there. The time from
the end of the put to the end of the read is one sample. `found_at_once` is the share of messages
that the first read returned.

Raises: WorkError if a read returns another message.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import timerstore
from benchmarks import harness
from benchmarks.harness import Result, need, spread
from benchmarks.rounds import watched
from timerstore import StoreConfig, TimerStore

Read = Callable[[TimerStore, int], list[bytes]]
FULL: dict[str, Any] = {"n": 1000}
SMOKE: dict[str, Any] = {"n": 20}


def _pull(store: TimerStore, offset: int) -> list[bytes]:
    return [one.body for one in store.pull("own", 0, offset, max_count=1).messages]


def _receive(store: TimerStore, _offset: int) -> list[bytes]:
    return [one.body for one in store.receive("own", "group", max_count=1)]


READS: dict[str, Read] = {"pull": _pull, "receive": _receive}
SETTINGS: tuple[dict[str, Any], ...] = (
    {"flush": "sync", "visibility": "durable"},
    {"flush": "async", "visibility": "written"},
)


def once(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Put and read `n` messages, one after another."""
    read, took, first = READS[parameters["read"]], [], 0
    began = time.perf_counter()
    with timerstore.open(root, config) as store:
        for k in range(parameters["n"]):
            store.put("own", b"%d" % k)
            reads, put_at = 1, time.perf_counter()
            while not (found := read(store, k)):
                reads += 1
            took.append(1000 * (time.perf_counter() - put_at))
            first += reads == 1
            need(found == [b"%d" % k], f"{found} instead of message {k}")
    return Result(
        "own_reads",
        parameters,
        parameters["n"],
        parameters["n"] / (time.perf_counter() - began),
        "ms",
        spread(took),
        parameters["flush"],
        harness.digest(f"{parameters['n']}"),
        {"found_at_once": first / parameters["n"]},
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """One line for each read and setting."""
    make = harness.small_config if smoke else StoreConfig
    for setting in SETTINGS:
        for name in READS:
            given = {**parameters, **setting, "read": name}
            yield watched(
                partial(once, make(**setting), given), 0, smoke=smoke, directory=directory
            )


def main(argv: list[str] | None = None) -> int:
    """Print the lines."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
