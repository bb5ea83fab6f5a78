"""Metrics: the one table of what is counted. Rooms count, doors export.

Threads:  any; a count may miss a unit when two threads add at once, gauges are read from their
          owner.
"""

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner

COUNTERS = {
    "flow_control_rejected_messages": "messages that were not put, for their slot was full",
    "enqueue_put_messages": "timer messages placed on the wheel",
    "enqueue_put_late_messages": "timer messages whose slot had been read when they were placed",
    "enqueue_put_unusable_messages": "records of the timer topic that are no timers",
    "enqueue_put_blocked": "times no slot could take a message until others were read",
    "dequeue_get_units": "timer units read from slots",
    "dequeue_put_messages": "messages handed to their topic",
    "dequeue_put_rolled_messages": "messages rolled to a later slot",
    "dequeue_put_relinked_messages": "messages given a later slot, their bodies not written",
    "overflow_messages": "messages that began to wait in memory, for no slot of the wheel was free",
    "far_added_messages": "messages that began to wait on the far wheel",
    "far_moved_messages": "messages moved from the far wheel down to the wheel",
    "dequeue_put_skipped_messages": "units whose message no longer waited",
    "dequeue_put_order_waivers": "times stop_enqueue may have cost equal due times their order",
    "schedule_deliver_messages": "messages of fixed levels handed to their topic",
    "schedule_deliver_unusable_messages": "records of the level topic that cannot be delivered",
    "schedule_deliver_resends": "batches of level messages that must be placed again",
    "dispatch_records": "records dispatched to queues",
    "pull_waits": "times a pull began to wait for a message",
    "pull_woken": "waiting pulls that a message of their queue woke",
    "flush_syncs": "syncs that the flush service asked for",
    "flush_checkpoints": "checkpoints completed",
    "retention_moved_messages": "waiting messages moved out of a commit log file that was to go",
    "retention_log_files": "commit log files removed",
    "retention_unconsumed_messages": "removed before a group had read them, once for each group",
    "service_retries": "steps tried again after an error that may pass",
}


GAUGES = {
    "put_messages": "messages put since opening; each lease and each run of what recurs is one",
    "cancelled_messages": "messages cancelled since opening, leases that were settled among them",
    "rescheduled_messages": (
        "messages given another time, or replaced by replace=True, since opening; leases extended "
        "or given back among them"
    ),
    "pending_messages": "messages that wait, those of fixed levels, too",
    "pending_by_topic": "messages that wait, by real topic; topics without any are left out",
    "log_begin_bytes": "log offset of the first record that is kept",
    "log_end_bytes": "log offset behind the last record",
    "log_durable_bytes": "log offset up to which the disk has answered",
    "dispatch_lag_bytes": "log that is in no queue yet",
    "enqueue_lag_messages": "records of the timer topic that are not on the wheel yet",
    "enqueue_lag_ms": "how long the oldest record that is not on the wheel has been stored",
    "delivery_lag_messages": "messages on the wheel that are due and not in their topic yet",
    "delivery_lag_ms": "how long the first that is due and not in its topic has been due",
    "open_slot_messages": "messages read from their slot that wait for their millisecond",
    "paced_messages": "messages that are due and wait for their topic's turn or rate",
    "level_pending_messages": "messages that wait for a fixed level",
    "far_messages": "messages on the far wheel, cancelled ones too until their slot comes near",
    "timer_log_end_bytes": "timer log position behind the last unit",
    "disk_bytes": "bytes of commit log, timer log, queues, wheel and far wheel that are in use",
    "disk_used_percent": "how full the file system is, by whatever",
    "memory_bytes": "memory of the state table, of messages read from slots, and of the histogram",
}
"""What `stats()` reads from its owner, beside the counters."""

SINCE_OPENING = frozenset({"put_messages", "cancelled_messages", "rescheduled_messages"})
"""Those of the gauges that only grow: counters, for who exports them."""

LATE_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 3_600_000)
TOOK_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)

DISTRIBUTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "lateness_ms": ("ms from due to handed over, of each message, timer or level", LATE_MS),
    "sync_ms": ("ms that a sync of the commit log took", TOOK_MS),
    "checkpoint_ms": ("ms that a checkpoint took", TOOK_MS),
}
"""Upper bounds, and how many lay between each and the one before; since opening."""


class Distribution:
    """How many values lay where."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Count values; most often all of them lie between the same two bounds."""
        if not len(values):
            return
        least = bisect_left(self._bounds, int(values.min()))
        if least == bisect_left(self._bounds, int(values.max())):
            self._counts[least] += len(values)
        else:
            places = np.searchsorted(self._bounds, values, side="left")
            for place, count in enumerate(np.bincount(places).tolist()):
                self._counts[place] += count
        self._sum += float(values.sum())

    def add_one(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def told(self) -> dict[float | str | None, float]:
        """Give how many by upper bound, None for what lies beyond; and their `sum`."""
        counted: dict[float | str | None, float] = dict(
            zip((*self._bounds, None), self._counts, strict=True)
        )
        return {**counted, "sum": self._sum}


class Metrics(Owner):
    """The counters of one store."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values = dict.fromkeys(COUNTERS, 0)
        self._distributions = {
            name: Distribution(bounds) for name, (_, bounds) in DISTRIBUTIONS.items()
        }

    def add(self, name: str, amount: int) -> None:
        """Count."""
        with self._lock:
            self._values[name] += amount

    def values(self) -> dict[str, int]:
        """Give all counters as they are."""
        with self._lock:
            return dict(self._values)

    def observe(self, name: str, values: npt.NDArray[np.int64]) -> None:
        """Count many values of a distribution."""
        with self._lock:
            self._distributions[name].add(values)

    def took(self, name: str, took_ns: int) -> None:
        """Count a time, one value of a distribution in ms."""
        with self._lock:
            self._distributions[name].add_one(took_ns / 1e6)

    def distributions(self) -> Mapping[str, dict[float | str | None, float]]:
        """Give all distributions as they are."""
        with self._lock:
            return {name: one.told() for name, one in self._distributions.items()}
