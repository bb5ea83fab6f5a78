"""Measure the distribution of lateness under a steady load, for timerstore and its peers.

`rate` messages per second are put for `seconds`, each due 1 to 3 s after its put. Lateness is the
consumer's clock minus the due time, on the real clock. A run is repeated if the control process
woke more than 6 ms late, up to `tries` times within `seconds_max`. The calmest run is reported, and
marked if it was disturbed too.

Thread safety: one thread puts and one consumes. A peer that the client steps does both in one
    thread, and polls every millisecond. Every run has a process and a directory of its own.
Raises: WorkError if a message is missing or early.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.bench_peers import there
from benchmarks.control import STALL_MS_MAX
from benchmarks.harness import Result, need
from benchmarks.peers import ours
from benchmarks.peers.contract import Pace, Peer
from benchmarks.rounds import Variant, watched

AHEAD_MS = (1000, 3000)
POINTS = 201
LATE_MS_MAX = 600_000
FULL: dict[str, Any] = {
    "rate": 20_000,
    "seconds": 5.0,
    "body": 128,
    "rounds": 1,
    "tries": 3,
    "seconds_max": 100.0,
    "peers": "timerstore,heapq,lmdb,redis,rocketmq,rocketmq-100ms",
}
SMOKE: dict[str, Any] = {
    "rate": 500,
    "seconds": 0.1,
    "body": 32,
    "rounds": 1,
    "tries": 1,
    "seconds_max": 20.0,
    "peers": "timerstore,heapq",
}


def curve(late_ms: Sequence[float] | NDArray[Any]) -> list[list[float]]:
    """The share of messages, and how late such a share is at most; dense near the end."""
    values = np.asarray(late_ms, dtype=np.float64)
    shares = 1 - np.logspace(0, -4, POINTS)
    shares[-1] = 1.0
    found = np.quantile(values, shares, method="higher")
    return [
        [round(float(share), 6), round(float(ms), 3)]
        for share, ms in zip(shares, found, strict=True)
    ]


def once(peer: Peer, parameters: dict[str, Any], ahead_ms: tuple[int, int], root: Path) -> Result:
    """One run of one peer."""
    pace = Pace(parameters["rate"], parameters["seconds"], parameters["body"], ahead_ms)
    assert peer.paced is not None
    late = peer.paced(pace, root)
    # A clock of whole milliseconds may have been read up to one before the due time was up.
    need(float(late.min()) > -1.0, f"{peer.key}: {late.min()} ms: early")
    need(float(late.max()) < LATE_MS_MAX, f"{peer.key}: {late.max()} ms late: no due time")
    n = int(pace.rate * pace.seconds)
    return Result(
        "lateness",
        {"engine": peer.name, "variant": peer.variant, **parameters},
        n,
        float(pace.rate),
        "ms late",
        harness.spread(late),
        peer.durability,
        harness.digest(f"{n} {pace}"),
        {"key": peer.key, "curve": curve(late)},
    )


def written() -> Peer:
    """The store with reads of messages that are not durable yet, as in every peer."""
    (first, *_) = ours.PEERS
    return replace(
        first,
        key="timerstore-written",
        variant="visibility written",
        durability="up to 0.5 s is lost in a power cut, seen by a consumer or not",
        paced=partial(ours.paced, visibility="written"),
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Peer by peer, in turns; the calmest of a few tries."""
    parameters = dict(parameters)
    rounds, tries = parameters.pop("rounds"), parameters.pop("tries")
    until = time.monotonic() + parameters.pop("seconds_max")
    need(parameters["body"] >= 16, "a body must hold its row and due time: 16 bytes")
    need(parameters["rate"] * parameters["seconds"] >= 1, "there is not one message to put")
    found = there(parameters.pop("peers"), paced=True)
    if any(peer.key == "timerstore" for peer in found):
        found.insert(1, written())
    ahead_ms = (50, 150) if smoke else AHEAD_MS
    for number in range(rounds):
        for peer in found:
            job = partial(once, peer, parameters, ahead_ms)
            yield calmest(job, tries, number, until, smoke=smoke, directory=directory)


def calmest(
    job: Variant, tries: int, number: int, until: float, *, smoke: bool, directory: Path | None
) -> Result:
    """The first calm one; else the calmest of those that there was time for."""
    best: Result | None = None
    for _ in range(tries):
        result = watched(job, number, smoke=smoke, directory=directory)
        stall = result.figures.get("control_max_ms", 0.0)
        if best is None or stall < best.figures["control_max_ms"]:
            told = {"control_max_ms": stall, "calm": stall <= STALL_MS_MAX}
            best = replace(result, figures={**result.figures, **told})
        if best.figures["calm"] or time.monotonic() > until:
            break
    assert best is not None
    return best


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
