"""The calls of a store, by task: enqueue, find, save; list, cancel and repeat for operators.

Invariants:
    1. A task is one message, so it is enqueued whole or not at all. Until its first attempt it has
       no message in the topic of results.
    2. A task that has failed is a dead letter of the workers' group.
Raises: as the calls of the store.
"""

import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from timerstore import CancelResult
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
        saved = self._saved(result_id)
        if saved is not None:
            return saved
        return next((record for _, record in _tasks_in(self._messages(result_id))), None)

    def state_of(self, enqueued: TaskRecord) -> TaskRecord:
        """Return the present state of a task."""
        return self._saved(enqueued.id) or enqueued

    def _saved(self, result_id: str) -> TaskRecord | None:
        found = self.store.query(self._results_topic, result_id, max_count=1)
        return TaskRecord.from_bytes(found[0].body) if found else None

    def _messages(self, result_id: str) -> Iterator[Any]:
        """Return the message of a task; there is none after a cancel."""
        for topic in self._topics():
            yield from self.store.query(topic, result_id, max_count=1)

    def _topics(self) -> list[str]:
        """Return the topics of all queues that ever had a task."""
        return sorted(
            one for one in self.store.topics() if one.startswith(f"{self._results_topic}|")
        )

    # --- for operators ---

    def counts(self) -> Iterator[QueueCounts]:
        """Return how many tasks of each queue are in each state."""
        deferred = self.store.stats()["pending_by_topic"]
        for topic in self._topics():
            log = self.store.backlog(topic, self.group)
            yield QueueCounts(
                queue_of(topic),
                deferred.get(topic, 0),
                log.ready,
                log.leased,
                log.in_backoff,
                log.dead_letters,
            )

    def deferred(self) -> Iterator[TaskRecord]:
        """Return the tasks that wait for their `run_after`, ordered by it in each queue."""
        for topic in self._topics():
            yield from self._pending(topic)

    def begun(self) -> Iterator[TaskRecord]:
        """Return the tasks that a worker has, and those that wait for their next attempt."""
        for topic in self._topics():
            yield from map(self.state_of, self._pending(lease_topic(self.alias, topic)))

    def _pending(self, topic: str) -> Iterator[TaskRecord]:
        for timer in self.store.pending(topic=topic):
            for _, record in _tasks_in(self.store.query(topic, timer.message_id, max_count=1)):
                yield record

    def failed(self) -> Iterator[TaskRecord]:
        """Return the tasks that have failed, oldest first in each queue."""
        for _, record in _tasks_in(self.store.dead_letters(self.group)):
            yield self.state_of(record)

    def cancel(self, record: TaskRecord) -> bool:
        """Cancel a task that waits for its `run_after`; it then has failed.

        Return whether it waited. A task that is due already is not changed.
        """
        for message in self._messages(record.id):
            if message.handle and self.store.cancel(message.handle) == CancelResult.CANCELLED:
                record.fail(TaskCancelledError("cancelled before its time"), attempts_max=0)
                self.save(record)
                return True
        return False

    def repeat(self, result_id: str) -> bool:
        """Enqueue a failed task again, as if it had had no attempt. Return whether it had failed.

        Its state is saved first, as a worker may have the task before this returns.
        """
        for letter, record in _tasks_in(self.store.dead_letters(self.group)):
            if record.id == result_id:
                record.enqueue_again()
                self.save(record)
                return bool(self.store.requeue(self.group, letter))
        return False


def _tasks_in(messages: Iterable[Any]) -> Iterator[tuple[Any, TaskRecord]]:
    """Return messages and their tasks, without messages that another program put there."""
    for message in messages:
        try:
            record = TaskRecord.from_bytes(message.body)
        except ValueError:  # the worker logs it, and makes it a dead letter
            continue
        yield message, record
