"""The same work by timerstore and its peers (benchmarks/peers), in turns, in one sitting.

Data:     n messages, due times uniform over 3 s, in batches; a turned clock where there is one.
Threads:  a client has one; services and servers have their own. Every run is a process and a
          directory of its own.
Holds:    (1) schedule all; then, all being due, move them to a ready queue in (due, put) order and
              take them out of it, batch by batch: each engine's client code is in its time;
          (2) what came out is what was put, byte by byte: work digests are equal. The order is
              checked to the millisecond, or to the second where a peer knows no better (RocketMQ).
Fails:    WorkError where an engine gives other rows, or another order.

What is compared differs in what it promises: the flush column says what a power cut takes. heapq
keeps nothing. Only timerstore and RocketMQ keep what was delivered and checksum every record; the
others delete it. Only timerstore finds duplicates and hands over exactly once after any kill.
Where a peer could be tuned better, change it in benchmarks/peers.
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

_COMPARED = 100_000  # bodies at a time
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
    """Check identity and order; the bodies, in the order in which they had to come."""
    rows = harness.rows_of(bodies, work.body_bytes)
    need(len(rows) == work.n, f"{peer.key}: {len(rows)} came out, {work.n} were put")
    once = (rows >= 0).all() and (rows < work.n).all() and len(np.unique(rows)) == work.n
    need(bool(once), f"{peer.key}: something lost or doubled")
    need(_unaltered(work, rows, bodies), f"{peer.key}: a body is not the one that was put")
    wanted = work.due_order()
    if peer.exact:
        need(bool((rows == wanted).all()), f"{peer.key}: not in the order of (due, put)")
        return bodies
    seconds = work.due_ms[rows] // 1000  # of a slot that begins amid one: two
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
    """One run of one engine."""
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
    """The peers that can run, under a steady load where that is asked; who cannot is told."""
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
    """Every engine once a round."""
    told = {name: parameters[name] for name in ("n", "body", "batch")}
    work = harness.make_work(told["n"], told["body"], HORIZON_MS)
    settings = Settings(told["batch"], smoke)
    variants = [partial(once, peer, work, settings, told) for peer in there(parameters["peers"])]
    return interleaved(
        variants,
        rounds=parameters["rounds"],
        seconds_max=parameters["seconds_max"],
        smoke=smoke,
        directory=directory,
        warm_bytes=warm_bytes_for(told["n"], told["body"]),
    )


def ratios(results: list[Result]) -> str:
    """Medians, and how many times as fast as each ours is: the median of the rounds' ratios.

    Ours: the first of timerstore's variants; where none ran there are no ratios.
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
    """Print one line a run, then medians and ratios."""
    options = harness.arguments(__doc__, FULL).parse_args(argv)
    found = run(harness.chosen(options, FULL, SMOKE), options.smoke, options.directory)
    print(ratios(harness.emit(found, options.json)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
