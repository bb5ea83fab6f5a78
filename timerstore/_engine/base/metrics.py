"""Metrics: the names of all statistics, and the counters and distributions of one store.

Components count; telemetry and `stats()` read. Gauges are read from their component.

Thread safety: any thread.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable

COUNTERS = {
    "flow_control_rejected_messages": "puts rejected because the slot was full (slot_messages_max)",
    "enqueue_put_messages": "timer messages linked into the wheel",
    "enqueue_put_late_messages": "timer messages linked after their slot was read",
    "enqueue_put_unusable_messages": "records of the timer topic that are not valid timers",
    "enqueue_put_blocked": "times that no slot was free until others were read",
    "dequeue_get_units": "timer units read from slots",
    "dequeue_put_messages": "timer messages delivered to their topic",
    "dequeue_put_rolled_messages": "messages rolled to a later slot, with their bodies",
    "dequeue_put_relinked_messages": "messages moved to a later slot without writing their bodies",
    "overflow_messages": "messages that went to overflow because no slot was free",
    "far_added_messages": "messages added to the far wheel",
    "far_moved_messages": "messages moved from the far wheel to the wheel",
    "dequeue_put_skipped_messages": "timer units of messages that were no longer pending",
    "dequeue_put_order_waivers": "times stop_enqueue may have reordered equal due times",
    "schedule_deliver_messages": "messages of delay levels delivered to their topic",
    "schedule_deliver_unusable_messages": "records of the delay-level topic that are unusable",
    "schedule_deliver_resends": "batches of delay-level messages that were appended again",
    "dispatch_records": "records dispatched to queues",
    "pull_waits": "pulls that started to wait (long polls)",
    "pull_woken": "waiting pulls woken by a message of their queue",
    "flush_syncs": "syncs by the flush service",
    "flush_checkpoints": "checkpoints completed",
    "retention_moved_messages": "pending messages moved out of an expiring commit log file",
    "retention_log_files": "commit log files removed by retention",
    "retention_unconsumed_messages": "messages removed before a group read them, once per group",
    "expired_messages": "messages that groups dropped because they had expired",
    "service_retries": "service steps repeated after a transient error",
}


GAUGES = {
    "put_messages": "messages put since opening, leases and recurring runs included",
    "cancelled_messages": "messages cancelled since opening, settled leases included",
    "rescheduled_messages": (
        "messages rescheduled or replaced since opening, extended and returned leases included"
    ),
    "pending_messages": "pending messages, delay levels included",
    "pending_by_topic": "pending messages by topic; topics without any are omitted",
    "log_begin_bytes": "log offset of the first record",
    "log_end_bytes": "log offset after the last record",
    "log_durable_bytes": "log offset up to which the log is synced",
    "dispatch_lag_bytes": "log that is not dispatched to queues yet",
    "enqueue_lag_messages": "records of the timer topic that are not linked yet",
    "enqueue_lag_ms": "age of the oldest record that is not linked yet",
    "delivery_lag_messages": "due messages on the wheel that are not delivered yet",
    "delivery_lag_ms": "lateness of the first due message that is not delivered yet",
    "open_slot_messages": "messages in the open slot, loaded and not due yet",
    "paced_messages": "due messages that wait for their topic's turn or rate limit",
    "level_pending_messages": "pending messages of delay levels",
    "far_messages": "messages on the far wheel; cancelled ones count until their slot comes near",
    "timer_log_end_bytes": "timer log position after the last unit",
    "disk_bytes": "bytes in use by commit log, timer log, queues, wheel and far wheel",
    "disk_used_percent": "used space of the file system, by all files",
    "memory_bytes": "memory of timer states, open slot and histogram",
}
"""Values that `stats()` reads from their component, in addition to the counters."""

SINCE_OPENING = frozenset({"put_messages", "cancelled_messages", "rescheduled_messages"})
"""Gauges that only grow: exporters present them as counters."""

SERVER_COUNTERS = {
    "net_accepted_connections": "connections accepted",
    "net_rejected_connections": "connections over the limit, or whose user or token was wrong",
    "net_broken_connections": (
        "connections closed because they violated the protocol or did not read their answers"
    ),
    "net_requests": "calls of clients",
    "net_failed_requests": "calls whose answer was an error",
    "net_received_bytes": "bytes received from clients",
    "net_sent_bytes": "bytes sent to clients",
    "net_returned_leases": "leases given back because their connection had ended",
}
"""Counters of the running servers of a store, since their start; 0 without a server."""

SERVER_GAUGES = {
    "net_connections": "open connections of clients",
    "net_running_requests": "calls that run",
    "net_waiting_requests": "running calls that may wait for messages",
}
"""Gauges of the running servers of a store."""

SERVER_CALL_COUNTERS = {
    "net_calls": "calls of RocketMQ clients, by method and code",
    "net_calls_ms": "milliseconds that these calls took; polls and Telemetry streams wait",
}
"""Counters of the servers for clients of RocketMQ, by method and code."""

LATE_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 3_600_000)
TOOK_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)

GROUP_SEPARATOR = "@"
"""Between topic and group, and method and code, in the keys of statistics; no name has it."""

GROUP_GAUGES: dict[str, tuple[str, str]] = {
    "group_ready_messages": ("ready", "messages that a group can receive now"),
    "group_leased_messages": ("leased", "messages that a group has leased"),
    "group_backoff_messages": (
        "in_backoff",
        "messages that a group returned, and can receive again later",
    ),
    "group_dead_letters": ("dead_letters", "dead letters of a group that were not requeued"),
    "group_oldest_ms": ("oldest_ms", "age of the oldest message that a group can receive now"),
}
"""Gauges by topic and group: the field of GroupBacklog, and the help text."""

DISTRIBUTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "lateness_ms": ("milliseconds from due time to delivery, timers and delay levels", LATE_MS),
    "sync_ms": ("milliseconds of a commit log sync", TOOK_MS),
    "checkpoint_ms": ("milliseconds of a checkpoint", TOOK_MS),
}
"""Histograms since opening: help text, and the upper bounds of the buckets."""


def server_metrics(servers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of the counters and gauges of servers, by name."""
    found = list(servers)
    names = (*SERVER_COUNTERS, *SERVER_GAUGES)
    sums: dict[str, Any] = {name: sum(one[name] for one in found) for name in names}
    for name in SERVER_CALL_COUNTERS:
        counts = [Counter(one[name]) for one in found if name in one]
        sums[name] = dict(sum(counts, Counter()))
    return sums


class Distribution:
    """A histogram: how many values fell into each bucket, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Count values. All in one bucket is the usual case, and cheap."""
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

    def counts(self) -> dict[float | str | None, float]:
        """Return the counts by upper bound, None for the last bucket, and the key "sum"."""
        counted: dict[float | str | None, float] = dict(
            zip((*self._bounds, None), self._counts, strict=True)
        )
        return {**counted, "sum": self._sum}


class Metrics(NotCopyable):
    """The counters of one store."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values = dict.fromkeys(COUNTERS, 0)
        self._distributions = {
            name: Distribution(bounds) for name, (_, bounds) in DISTRIBUTIONS.items()
        }

    def add(self, name: str, amount: int) -> None:
        """Add to a counter."""
        with self._lock:
            self._values[name] += amount

    def values(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._values)

    def observe(self, name: str, values: npt.NDArray[np.int64]) -> None:
        """Count many values of a distribution."""
        with self._lock:
            self._distributions[name].add(values)

    def took(self, name: str, took_ns: int) -> None:
        """Add a duration to a distribution in ms."""
        with self._lock:
            self._distributions[name].add_one(took_ns / 1e6)

    def distributions(self) -> Mapping[str, dict[float | str | None, float]]:
        """Return all distributions."""
        with self._lock:
            return {name: one.counts() for name, one in self._distributions.items()}
