"""Compare timerstore with its peers (benchmarks/peers), which do the same work in turns.

A run schedules n messages in batches, with due times uniform over 3 s. When all are due, it moves
them to a ready queue in (due, put) order, and takes them out batch by batch. The time includes the
client code of each engine. Engines with a manual clock use one. Every run has a process and a
directory of its own.

The engines give different guarantees. The flush column describes the data that a power cut can
lose; heapq keeps nothing. Only timerstore and RocketMQ keep delivered messages and checksum every
record; the others delete them. Only timerstore detects duplicates and delivers exactly once after
any kill. To tune a peer better, change its file in benchmarks/peers.

Thread safety: a client has one thread. Services and servers have their own threads.
Invariants:
    1. Delivered messages equal the messages that were put, byte by byte, so work digests are equal.
    2. The order is checked to the millisecond, or to the second for RocketMQ.
Raises: WorkError if an engine returns other rows or another order.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, peers
from benchmarks.harness import Result, Work, need
from benchmarks.peers.contract import HORIZON_MS, Peer, Settings
from benchmarks.rounds import interleaved
from benchmarks.warm import warm_bytes_for

_COMPARED = 100_000  # bodies per comparison
FULL: dict[str, Any] = {
    "n": 200_000,
    "body": 128,
    "batch": 10_000,
    "rounds": 5,
    "seconds_max": 600.0,
    "peers": "all",
}
SMOKE: dict[str, Any] = {
    "n": 600,
    "body": 32,
    "batch": 100,
    "rounds": 1,
    "seconds_max": 60.0,
    "peers": "timerstore,timerstore-buffer,timerstore-stepped,lmdb,lmdb-sync,rocksdb,redis,sqlite,"
    "sqlite-index,heapq",
}


def rows_in_order(peer: Peer, work: Work, bodies: bytes) -> bytes:
    """Check identity and order of the bodies. Return them in the required order."""
    rows = harness.rows_of(bodies, work.body_bytes)
    need(len(rows) == work.n, f"{peer.key}: {len(rows)} came out, {work.n} were put")
    once = (rows >= 0).all() and (rows < work.n).all() and len(np.unique(rows)) == work.n
    need(bool(once), f"{peer.key}: a message is lost or duplicated")
    need(_unaltered(work, rows, bodies), f"{peer.key}: a body differs from the one that was put")
    wanted = work.due_order()
    if peer.exact:
        need(bool((rows == wanted).all()), f"{peer.key}: not in the order of (due, put)")
        return bodies
    seconds = work.due_ms[rows] // 1000  # a slot can span two seconds
    behind = np.maximum.accumulate(seconds) - seconds
    need(bool((behind <= 1).all()), f"{peer.key}: not in the order of seconds")
    places = np.empty(work.n, dtype=np.int64)
    places[rows] = np.arange(work.n)
    matrix = np.frombuffer(bodies, dtype=np.uint8).reshape(work.n, work.body_bytes)
    return matrix[places[wanted]].tobytes()


def _unaltered(work: Work, rows: harness.Int64, bodies: bytes) -> bool:
    came, put = (
        np.frombuffer(one, dtype=np.uint8).reshape(work.n, work.body_bytes)
        for one in (bodies, work.buffer)
    )
    parts = (slice(at, at + _COMPARED) for at in range(0, work.n, _COMPARED))
    return all(bool((came[part] == put[rows[part]]).all()) for part in parts)


def once(
    peer: Peer, work: Work, settings: Settings, parameters: dict[str, Any], root: Path
) -> Result:
    """Run one engine once."""
    times = peer.work(work, root, settings)
    bodies = rows_in_order(peer, work, times.bodies)
    laps = np.array(times.laps_ns) / min(settings.batch, work.n)
    return Result(
        "peers",
        {"engine": peer.name, "variant": peer.variant, **parameters},
        work.n,
        work.n / (times.schedule + times.deliver),
        "ns a message of a scheduled batch",
        harness.spread(laps),
        peer.durability,
        harness.digest(bodies),
        {
            "key": peer.key,
            "tuned": peer.tuned,
            "schedule_rate": work.n / times.schedule,
            "deliver_rate": work.n / times.deliver,
            "disk_bytes_per_pending": times.disk_bytes / work.n,
            "ram_bytes_per_pending": times.ram_bytes / work.n,
            **times.figures,
        },
    )


def there(keys: str, *, paced: bool = False) -> list[Peer]:
    """Return the peers that can run (with `paced`, under a steady load), and report the others."""
    found = []
    for peer in peers.named(keys):
        reason = peer.missing()
        if reason is None and paced and peer.paced is None:
            reason = "no steady load is written for it"
        if reason is None:
            found.append(peer)
        else:
            print(f"!!! NOT MEASURED: {peer.name} ({peer.variant}): {reason}", file=sys.stderr)
    need(bool(found), f"none of these can run here: {keys}")
    return found


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Run every engine once per round."""
    told = {name: parameters[name] for name in ("n", "body", "batch")}
    work = harness.make_work(told["n"], told["body"], HORIZON_MS)
    settings = Settings(told["batch"], smoke)
    variants = [partial(once, peer, work, settings, told) for peer in there(parameters["peers"])]
    return interleaved(
        variants,
        parameters,
        smoke=smoke,
        directory=directory,
        warm_bytes=warm_bytes_for(told["n"], told["body"]),
    )


def ratios(results: list[Result]) -> str:
    """Return a table of medians, and of the speed of timerstore relative to each engine.

    A ratio is the median over the rounds, for the first variant of timerstore. Without a run of
    timerstore there are no ratios.
    """
    runs: dict[str, list[Result]] = {}
    for result in results:
        runs.setdefault(result.figures["key"], []).append(result)
    first = next((key for key in runs if key.startswith("timerstore")), None)
    ours = {result.figures["round"]: result.rate for result in runs.get(first or "", [])}
    head = f"{'engine':<44}{'schedule/s':>12}{'deliver/s':>12}{'both/s':>12}"
    lines = [f"{head}{'range':>22}{'ours is':>10}{'range':>16}"]
    for group in runs.values():
        rates = [result.rate for result in group]
        schedule = statistics.median(result.figures["schedule_rate"] for result in group)
        deliver = statistics.median(result.figures["deliver_rate"] for result in group)
        name = f"{group[0].parameters['engine']}, {group[0].parameters['variant']}"
        line = (
            f"{name:<44}{schedule:>12,.0f}{deliver:>12,.0f}{statistics.median(rates):>12,.0f}"
            f"{f'{min(rates):,.0f}-{max(rates):,.0f}':>22}"
        )
        if ours:
            times = [ours[result.figures["round"]] / result.rate for result in group]
            line += f"{statistics.median(times):>8.2f} x"
            line += f"{f'{min(times):.2f}-{max(times):.2f}':>16}"
        lines.append(line)
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print one line per run, then medians and ratios."""
    options = harness.arguments(__doc__, FULL).parse_args(argv)
    found = run(harness.chosen(options, FULL, SMOKE), options.smoke, options.directory)
    print(ratios(harness.emit(found, options.json)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
