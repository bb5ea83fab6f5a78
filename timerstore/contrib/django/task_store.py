"""The calls of a store, by task: enqueue, find, save; list, cancel and repeat for operators.

Invariants:
    1. A task is one message, so it is enqueued whole or not at all. Until its first attempt it has
       no message in the topic of results.
    2. A task that has failed is a dead letter of the workers' group.
Raises: as the calls of the store.
"""

import math
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import timerstore
from timerstore.contrib.django.store_connections import Store
from timerstore.contrib.django.task_record import TaskCancelledError, TaskRecord
from timerstore.contrib.django.task_topics import (
    group_of,
    lease_topic,
    level_of,
    queue_of,
    results_topic,
    task_topic,
)

_ID = re.compile("[A-Za-z0-9]{32}")


class QueueCounts(NamedTuple):
    """How many tasks of a queue are in each state."""

    queue: str
    deferred: int
    """Wait for `run_after`."""
    ready: int
    running: int
    in_backoff: int
    """Wait for their next attempt."""
    failed: int


class TaskStore:
    """The tasks of one backend in its store."""

    def __init__(self, store: Store, alias: str) -> None:
        self.store = store
        self.alias = alias
        self.group = group_of(alias)
        self._results_topic = results_topic(alias)

    def enqueue(self, record: TaskRecord, run_after: datetime | None) -> None:
        """Put a task into the topic of its queue."""
        self.store.put(
            task_topic(self.alias, record.queue_name),
            record.to_bytes(),
            deliver_ms=None if run_after is None else math.ceil(run_after.timestamp() * 1000),
            priority=level_of(record.priority),
            keys=record.id,
        )

    def save(self, record: TaskRecord) -> None:
        """Make the state of a task durable."""
        self.store.put(self._results_topic, record.to_bytes(), keys=record.id)

    def find(self, result_id: str) -> TaskRecord | None:
        """Return the present state of a task, or None if there is none or it was dropped."""
        if _ID.fullmatch(str(result_id)) is None:  # `query` raises an error for some of them
            return None
        return self._saved(result_id) or self._enqueued(result_id)

    def state_of(self, enqueued: TaskRecord) -> TaskRecord:
        """Return the present state of a task."""
        return self._saved(enqueued.id) or enqueued

    def _saved(self, result_id: str) -> TaskRecord | None:
        found = self.store.query(self._results_topic, result_id, max_count=1)
        return TaskRecord.from_bytes(found[0].body) if found else None

    def _enqueued(self, result_id: str) -> TaskRecord | None:
        message = self._message(result_id)
        return None if message is None else TaskRecord.from_bytes(message.body)

    def _message(self, result_id: str) -> Any:
        """Return the message of a task."""
        for topic in self._topics():
            for message in self.store.query(topic, result_id, max_count=1):
                return message
        return None

    def _topics(self) -> list[str]:
        """Return the topics of all queues that ever had a task."""
        return sorted(
            one for one in self.store.topics() if one.startswith(f"{self._results_topic}|")
        )

    # --- for operators ---

    def counts(self) -> Iterator[QueueCounts]:
        """Return how many tasks of each queue are in each state."""
        for topic in self._topics():
            deferred = sum(1 for _ in self.store.pending(topic=topic))
            log = self.store.backlog(topic, self.group)
            yield QueueCounts(
                queue_of(topic), deferred, log.ready, log.leased, log.in_backoff, log.dead_letters
            )

    def deferred(self) -> Iterator[TaskRecord]:
        """Return the tasks that wait for their `run_after`, ordered by it in each queue."""
        for topic in self._topics():
            for timer in self.store.pending(topic=topic):
                for message in self.store.query(topic, timer.message_id, max_count=1):
                    yield TaskRecord.from_bytes(message.body)

    def begun(self) -> Iterator[TaskRecord]:
        """Return the tasks that a worker has, and those that wait for their next attempt."""
        for topic in self._topics():
            leases = lease_topic(self.alias, topic)
            for timer in self.store.pending(topic=leases):
                for message in self.store.query(leases, timer.message_id, max_count=1):
                    yield self.state_of(TaskRecord.from_bytes(message.body))

    def failed(self) -> Iterator[TaskRecord]:
        """Return the tasks that have failed, oldest first in each queue."""
        for letter in self.store.dead_letters(self.group):
            yield self.state_of(TaskRecord.from_bytes(letter.body))

    def cancel(self, record: TaskRecord) -> timerstore.CancelResult:
        """Cancel a task that waits for its `run_after`; it then counts as failed.

        The result is true at the time of the call: a task that is due already is not cancelled.
        """
        message = self._message(record.id)
        if message is None or not message.handle:
            return timerstore.CancelResult.ALREADY_DELIVERED
        outcome: timerstore.CancelResult = self.store.cancel(message.handle)
        if outcome == timerstore.CancelResult.CANCELLED:
            record.fail(TaskCancelledError("cancelled before its time"), attempts_max=0)
            self.save(record)
        return outcome

    def repeat(self, result_id: str) -> bool:
        """Enqueue a failed task again, as if it had had no attempt. Return whether it had failed.

        The state is saved first: a worker may have the task before this returns.
        """
        for letter in self.store.dead_letters(self.group):
            record = TaskRecord.from_bytes(letter.body)
            if record.id == result_id:
                self.save(record)
                return bool(self.store.requeue(self.group, letter))
        return False
