"""Metrics: the one table of what is counted. Rooms count, doors export.

Threads:  any; a count may miss a unit when two threads add at once, gauges are read from their
          owner.
"""

import threading

COUNTERS = {
    "enqueue_put_messages": "timer messages placed on the wheel",
    "enqueue_put_late_messages": "of these, whose slot had been read already",
    "enqueue_put_unusable_messages": "records of the timer topic that are no timers",
    "enqueue_put_blocked": "times no slot could take a message until others were read",
    "dequeue_get_units": "timer units read from slots",
    "dequeue_put_messages": "messages handed to their topic",
    "dequeue_put_rolled_messages": "messages rolled to a later slot",
    "dequeue_put_skipped_messages": "units whose message no longer waited",
    "dispatch_records": "records dispatched to queues",
    "flush_syncs": "syncs that the flush service asked for",
    "flush_checkpoints": "checkpoints completed",
    "service_retries": "steps tried again after an error that may pass",
}


class Metrics:
    """The counters of one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values = dict.fromkeys(COUNTERS, 0)

    def add(self, name: str, amount: int) -> None:
        """Count."""
        with self._lock:
            self._values[name] += amount

    def values(self) -> dict[str, int]:
        """Give all counters as they are."""
        with self._lock:
            return dict(self._values)
