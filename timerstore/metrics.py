"""Metrics: the one table of what is counted. Rooms count, doors export.

Threads:  any; a count may miss a unit when two threads add at once, gauges are read from their
          owner.
"""

import threading

COUNTERS = {
    "flow_control_refused_messages": "messages that were not put, for their slot was full",
    "enqueue_put_messages": "timer messages placed on the wheel",
    "enqueue_put_late_messages": "of these, whose slot had been read already",
    "enqueue_put_unusable_messages": "records of the timer topic that are no timers",
    "enqueue_put_blocked": "times no slot could take a message until others were read",
    "dequeue_get_units": "timer units read from slots",
    "dequeue_put_messages": "messages handed to their topic",
    "dequeue_put_rolled_messages": "messages rolled to a later slot",
    "dequeue_put_skipped_messages": "units whose message no longer waited",
    "dequeue_put_order_waivers": "times equal due times lost their order, for the wheel was full",
    "schedule_deliver_messages": "messages of fixed levels handed to their topic",
    "schedule_deliver_unusable_messages": "records of the level topic that cannot be delivered",
    "schedule_deliver_resends": "batches of level messages that must be placed again",
    "dispatch_records": "records dispatched to queues",
    "pull_held": "times a pull began to wait for a message",
    "pull_woken": "waiting pulls that a message of their queue woke",
    "flush_syncs": "syncs that the flush service asked for",
    "flush_checkpoints": "checkpoints completed",
    "retention_moved_messages": "waiting messages moved out of a commit log file that was to go",
    "retention_log_files": "commit log files removed",
    "retention_unread_messages": "messages removed that a group had not read, once for each group",
    "service_retries": "steps tried again after an error that may pass",
}


GAUGES = {
    "put_messages": "messages put since opening",
    "cancelled_messages": "messages cancelled since opening",
    "rescheduled_messages": "messages that were given another time since opening",
    "pending_messages": "messages that wait, those of fixed levels, too",
    "pending_by_topic": "the same by real topic; topics without any are left out",
    "log_begin_bytes": "log offset of the first record that is kept",
    "log_end_bytes": "log offset behind the last record",
    "log_durable_bytes": "log offset up to which the disk has answered",
    "dispatch_behind_bytes": "log that is in no queue yet",
    "enqueue_behind_messages": "records of the timer topic that are not on the wheel yet",
    "enqueue_behind_ms": "how long the oldest of these has been stored",
    "dequeue_behind_messages": "messages on the wheel that are due and not in their topic yet",
    "dequeue_behind_ms": "how long the first of these has been due",
    "open_slot_messages": "messages read from their slot that wait for their millisecond",
    "paced_messages": "messages that are due and wait for their topic's turn or rate",
    "level_pending_messages": "those of them that wait for a fixed level",
    "timer_log_end_bytes": "timer log position behind the last unit",
}
"""What `stats()` reads from its owner, beside the counters."""


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
