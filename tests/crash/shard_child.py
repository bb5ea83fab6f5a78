"""Stage, commit and ingest in a child that is killed, as a writer and as the owner of all shards.

The child does the work of Spark without Spark. Attempts stage parts, some of them twice and some
after the commit. Each version has one commit and then an entry in a log (Spark's commit log). A
version without an entry is replayed. Then the child ingests shard by shard, and opens all shards as
their owner.
"""

import os
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa

import timerstore
from tests.support.bench import small
from tests.support.inside import failpoints
from tests.support.points import die_at
from timerstore.shards import Staged, Stager, WriteOptions, abort, commit, ingest, stage

SHARDS = 2
ROWS = 500
BODY_BYTES = 2500
CONFIG = small(commit_log_segment_bytes=1 << 21)
POINTS = (*failpoints.SHARD_NAMES, "ingest_chunk_appended", "ingest_appended")


def rows(version: int) -> pa.RecordBatch:
    """Return the rows of a version, which are always the same."""
    numbers = range(version * ROWS, (version + 1) * ROWS)
    return pa.record_batch(
        {
            "topic": pa.array(["t"] * ROWS),
            "body": pa.array([b"%08d" % k + b"x" * (BODY_BYTES - 8) for k in numbers], pa.binary()),
            "deliver_ms": pa.array([0] * ROWS),
            "key": pa.array([f"key-{k}" for k in numbers]),
        }
    )


def run(root: str, first: int, last: int, point: str | None, nth: int) -> None:
    """Write versions, replay those without an entry, and ingest. Die at a fail point."""
    if point is not None:
        die_at(point, nth)
    random = Random(os.urandom(8))
    place = Path(root)
    for version in range(first, last + 1):
        note = place.parent / f"noted-{version}"
        if not note.exists():
            _write(place, version, random)
            note.write_bytes(b"")
    ingest(place, clock=None)
    with timerstore.open_shards(place, threads=False) as store:
        store.ingest()


def run_at_random(root: str, first: int, last: int, seconds: float) -> None:
    """Repeat the same work until the parent kills the process."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run(root, first, last, None, 0)
        for version in range(first, last + 1):  # as if the commit log had no entry
            (Path(root).parent / f"noted-{version}").unlink(missing_ok=True)


def _write(root: Path, version: int, random: Random) -> None:
    batch = rows(version)
    cuts = sorted({0, ROWS, *(random.randrange(ROWS) for _ in range(2))})
    parts: list[Staged] = []
    lost: list[Staged] = []
    for begin, end in pairwise(cuts):
        part = batch.slice(begin, end - begin)
        if random.random() < 0.3:  # an attempt whose result is never committed
            lost.append(_stage(root, version, [part]))
        parts.append(_stage(root, version, [part.slice(0, 7), part.slice(7)]))
    zombie = Stager(root, "q", version, _attempt(), WriteOptions())
    zombie.add(batch)
    commit(root, "q", version, parts)
    lost.append(zombie.finish())
    abort(root, [*lost, parts[0]] if random.random() < 0.5 else lost)


def _stage(root: Path, version: int, batches: Iterable[pa.RecordBatch]) -> Staged:
    return stage(root, "q", version, _attempt(), batches)


def _attempt() -> str:
    return f"0-{os.urandom(6).hex()}"
