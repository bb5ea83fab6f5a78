"""`SnapshotSource`: stores that another process may have open, as the dashboard reads them.

Thread safety: any thread. Requests at the same time share one read of the files.
Invariants: no lock is taken, nothing is written and nothing is delivered.
Raises: CorruptError if a file cannot be read.
"""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from timerstore._engine.base.metrics import LATE_MS
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.snapshot.live_stats import LiveStats, Watch
from timerstore.dashboard.rates import lateness_of
from timerstore.dashboard.source import (
    TOPICS_SHOWN,
    DashboardSource,
    Json,
    ring_of,
    topics_of,
    turn_of,
)
from timerstore.errors import MessageError
from timerstore.types.clock import SystemClock


class SnapshotSource(NotCopyable, DashboardSource):
    """Stores that another process may have open, as of their last checkpoints."""

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
        self._stats: LiveStats | None = None

    def about(self) -> Json:
        """Return the constant facts of the stores."""
        return {
            "path": str(self._path),
            "shards": self._shards,
            "mode": "snapshot",
            "brokers": self._is_brokers,
            "can_search": False,
            "read_only": True,
            "late_bounds_ms": LATE_MS,
            "clock_runs": True,
        }

    def check_alive(self) -> None:
        """Do nothing: the store fails in its owner."""

    def now(self, turn: str, topic: str | None) -> Json:
        """Return the present numbers. The ring is that of all topics."""
        unit_ms, places = turn_of(turn)
        if topic is not None:
            raise MessageError("topic: without the owner, the wheel shows only all topics together")
        stats = self._measure()
        now_ms = stats.now_ms
        late = lateness_of(stats.late_counts)
        lateness = late._asdict()
        if stats.lateness is not None:
            _, p50, p99, worst = stats.lateness
            lateness |= {"p50": p50, "p99": p99, "worst": worst}
        ahead = stats.due_ms[(stats.counts > 0) & (stats.due_ms >= now_ms)]
        holders = [one.holder for one in stats.looks]
        return {
            "pending": stats.pending,
            "late": stats.late,
            **_topics(stats),
            "groups": None,  # leases are counted by the process that has the store open
            "more_groups": 0,
            "lateness": lateness,
            "put_per_s": stats.put_per_s,
            "delivered_per_s": stats.arrived_per_s,
            "history": list(stats.history),
            "behind": None,
            "log_bytes": sum(one.store.log_end - one.store.log_begin for one in stats.looks),
            "holder": next((one for one in holders if one is not None), None),
            "now_ms": now_ms,
            "next_ms": int(ahead[0]) if len(ahead) else None,
            "ring": ring_of(turn, now_ms // unit_ms * unit_ms, stats.ahead(unit_ms, places)),
        }

    def _measure(self) -> LiveStats:
        with self._lock:
            now_s = time.monotonic()
            if self._stats is None or now_s - self._read_s >= self._fresh_s:
                self._stats = self._watch.look(self.clock.now_ms, now_s)
                self._read_s = now_s
            return self._stats


def _topics(stats: LiveStats) -> Json:
    """Return the pending messages of each topic; None for a store that a broker has open."""
    if stats.pending is None:
        names = sorted(stats.by_topic)[:TOPICS_SHOWN]
        return {**topics_of({}), "topics": [[name, None] for name in names]}
    return topics_of({name: one[0] or 0 for name, one in stats.by_topic.items()})
