"""Run in a Spark executor: simulate the year of one shard with a manual clock.

The services are stepped (threads=False). The clock stops at every --stop-minutes in which something
is due or cancelled. Each shard writes its progress to a file for the progress bar.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import timerstore
from benchmarks.flight_year import work
from benchmarks.flights import CANCEL_MS, HOUR_MS, MINUTE_MS
from timerstore import CancelResult, StoreConfig, TimerStore
from timerstore.shards.shard_ingest import ShardIngester
from timerstore.testing import ManualClock, Stepper

RESULT = (
    "shard int, ingested long, cancelled long, refused long, stops long, pending long, "
    "seconds double"
)

_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("ingested", pa.int64()),
        ("cancelled", pa.int64()),
        ("refused", pa.int64()),
        ("stops", pa.int64()),
        ("pending", pa.int64()),
        ("seconds", pa.float64()),
    ]
)
SETTLE_MS = 24 * HOUR_MS
AFTERWARDS_MS = 10 * 24 * HOUR_MS


@dataclass(frozen=True)
class PlayShards:
    """Simulate the shards whose numbers are the input rows."""

    root: str
    start_ms: int
    end_ms: int
    stop_minutes: int
    called_off: frozenset[str]
    """Message ids to cancel one hour before they are due."""

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for shard in batch.column(0).to_pylist():
                row = {"shard": shard, **self.play(shard)}
                columns = [pa.array([row[one.name]], one.type) for one in _SCHEMA]
                yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def play(self, shard: int) -> dict[str, float]:
        """Ingest the scheduled rows, and advance the clock to the end of the year."""
        began = time.perf_counter()
        clock = ManualClock(self.start_ms)
        config = StoreConfig(flush="async", index_enabled=False)
        path = Path(self.root, f"shard-{shard:05d}")
        with timerstore.open(path, config, clock=clock, threads=False) as store:
            taken = ShardIngester(Path(self.root), {shard: store}).run(0)
            ingested = sum(one.row_count for one in taken)
            Stepper(store).settle()
            cancelled, refused, stops = self._turn(store, clock, shard)
            pending = sum(1 for _ in store.pending())
        return {
            "ingested": ingested,
            "cancelled": cancelled,
            "refused": refused,
            "stops": stops,
            "pending": pending,
            "seconds": time.perf_counter() - began,
        }

    def _turn(self, store: TimerStore, clock: ManualClock, shard: int) -> tuple[int, int, int]:
        width = self.stop_minutes * MINUTE_MS
        waiting = list(store.pending())
        due = np.array([one.due_ms for one in waiting], dtype=np.int64)
        off = [one for one in waiting if one.message_id in self.called_off]
        off.sort(key=lambda one: one.due_ms)
        cancels = np.array([one.due_ms - CANCEL_MS for one in off], dtype=np.int64)
        stops = np.unique(-(-np.concatenate([due, cancels]) // width) * width)
        ends = np.searchsorted(cancels, stops, side="right").tolist()
        stepper = Stepper(store)
        cancelled = refused = done = 0
        next_settle_ms = self.start_ms
        for stop, now_ms in enumerate(stops.tolist()):
            clock.set(now_ms)
            while done < ends[stop]:
                answer = store.cancel(off[done].handle)
                cancelled += answer == CancelResult.CANCELLED
                refused += answer != CancelResult.CANCELLED
                done += 1
            work(stepper)
            if now_ms >= next_settle_ms:
                stepper.settle()
                next_settle_ms = now_ms + SETTLE_MS
                self._tell(shard, stop, len(stops), now_ms)
        clock.set(self.end_ms + AFTERWARDS_MS)
        stepper.settle()
        self._tell(shard, len(stops), len(stops), self.end_ms)
        return cancelled, refused, len(stops)

    def _tell(self, shard: int, stop: int, stops: int, now_ms: int) -> None:
        path = progress_path(self.root, shard)
        path.parent.mkdir(exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps({"done": stop, "of": stops, "now_ms": now_ms}))
        beside.replace(path)


def progress_path(root: str, shard: int) -> Path:
    """Return the progress file of a shard, in the parent of the shard directory."""
    return Path(f"{root}.progress") / f"{shard}.json"
