"""Stores that another process may have open, as the page asks them: as of the last checkpoint.

Threads:  any. Files are read once for all who look at the same time.
Holds:    no lock is taken, nothing is written, nothing is delivered.
Fails:    CorruptError on what does not read.
"""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from timerstore._engine.base.metrics import LATE_MS
from timerstore._engine.base.owner import Owner
from timerstore._engine.snapshot.live_stats import LiveStats, Watch
from timerstore.clock import SystemClock
from timerstore.dashboard.rates import lateness_of
from timerstore.dashboard.source import TOPICS_SHOWN, Json, Source, ring_of, topics_of, turn_of
from timerstore.errors import MessageError


class SnapshotSource(Owner, Source):
    """Stores that another process may have open: their files, as of the last checkpoint."""

    def __init__(
        self,
        path: Path,
        stores: Mapping[int | None, Path],
        *,
        every_s: float,
        is_brokers: bool = False,
    ) -> None:
        self.clock = SystemClock()
        self._path = path
        self._is_brokers = is_brokers
        self._shards = None if None in stores else len(stores)
        self._watch = Watch(stores)
        self._fresh_s = every_s / 2
        self._read_s = -1.0
        self._lock = threading.Lock()
        self._pulse: LiveStats | None = None

    def about(self) -> Json:
        """What does not change."""
        return {
            "path": str(self._path),
            "shards": self._shards,
            "mode": "beside",
            "brokers": self._is_brokers,
            "can_search": False,
            "read_only": True,
            "late_bounds_ms": LATE_MS,
            "clock_runs": True,
        }

    def now(self, turn: str, topic: str | None) -> Json:
        """The numbers of this moment; the ring is that of all topics."""
        unit_ms, places = turn_of(turn)
        if topic is not None:
            raise MessageError("topic: beside its owner the wheel tells all topics together")
        pulse = self._look()
        now_ms = pulse.now_ms
        late = lateness_of(pulse.late_counts)
        told = late._asdict()
        if pulse.lateness is not None:
            _, p50, p99, worst = pulse.lateness
            told |= {"p50": p50, "p99": p99, "worst": worst}
        ahead = pulse.due_ms[(pulse.counts > 0) & (pulse.due_ms >= now_ms)]
        holders = [one.holder for one in pulse.looks]
        return {
            "waiting": pulse.waiting,
            "late": pulse.late,
            **_topics(pulse),
            "lateness": told,
            "put_per_s": pulse.put_per_s,
            "delivered_per_s": pulse.arrived_per_s,
            "history": list(pulse.history),
            "behind": None,
            "log_bytes": sum(one.store.log_end - one.store.log_begin for one in pulse.looks),
            "holder": next((one for one in holders if one is not None), None),
            "now_ms": now_ms,
            "next_ms": int(ahead[0]) if len(ahead) else None,
            "ring": ring_of(turn, now_ms // unit_ms * unit_ms, pulse.ahead(unit_ms, places)),
        }

    def _look(self) -> LiveStats:
        with self._lock:
            now_s = time.monotonic()
            if self._pulse is None or now_s - self._read_s >= self._fresh_s:
                self._pulse = self._watch.look(self.clock.now_ms, now_s)
                self._read_s = now_s
            return self._pulse


def _topics(pulse: LiveStats) -> Json:
    """What waits for each topic; of a broker's store, which has no counts of ours, None."""
    if pulse.waiting is None:
        names = sorted(pulse.by_topic)[:TOPICS_SHOWN]
        return {**topics_of({}), "topics": [[name, None] for name in names]}
    return topics_of({name: one[0] for name, one in pulse.by_topic.items()})
