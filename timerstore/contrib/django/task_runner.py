"""One attempt at a task that a worker has leased.

    its state is FAILED or SUCCESSFUL   an earlier attempt could not settle the message: settle it
                 RUNNING                the worker of that attempt is lost: that is its error
                 READY                  save RUNNING, call the task, save the outcome, settle

Thread safety: one runner for each thread.
Invariants:
    1. A task begins at most MAX_ATTEMPTS times: each beginning is durable before the task is
       called.
    2. The outcome is durable before the message is settled.
    3. An attempt that knows that its lease is lost saves no outcome: another worker has the task.
Raises: errors of the store that cannot pass.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from threading import Event
from typing import Any, TypeVar

from django.db import close_old_connections
from django.tasks import TaskContext
from django.tasks.signals import task_finished, task_started

from timerstore.contrib.django.backend import TimerStoreBackend
from timerstore.contrib.django.task_record import (
    FAILED,
    READY,
    RUNNING,
    SUCCESSFUL,
    TaskRecord,
    WorkerLostError,
)
from timerstore.errors import LeaseLostError, MessageError, TimerStoreError

LEASE_S = 60.0
"""Of a running task, renewed each 20 s. The death of a worker is noticed when it ends."""
_PAUSE_S = 1.0

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class TaskRunner:
    """Runs the tasks of one thread of a worker."""

    def __init__(self, backend: TimerStoreBackend, worker_id: str, stopping: Event) -> None:
        """`stopping`: until it is set, the runner waits for a store that does not answer."""
        self._tasks = backend.tasks
        self._sender = type(backend)
        self._attempts_max = backend.settings.attempts_max
        self._worker_id = worker_id
        self._stopping = stopping

    def insist(self, call: Callable[[], Answer]) -> Answer:
        """Make a call of the store again until it succeeds, or the worker stops."""
        while True:
            try:
                return call()
            except TimerStoreError as error:
                if not error.retryable or self._stopping.is_set():
                    raise
                _log.warning("a call of the store failed, trying again: %s", error)
                self._stopping.wait(_PAUSE_S)

    def run(self, message: Any) -> None:
        """Run the task of a leased message, and settle the message."""
        store = self._tasks.store
        try:
            record = TaskRecord.from_bytes(message.body)
            if message.attempt > 1:  # otherwise no worker had it, so it is as it was enqueued
                record = self.insist(partial(self._tasks.state_of, record))
        except ValueError as error:  # another program put it there
            _log.error("topic %s: %s", message.topic, error)
            self.insist(partial(store.bury, message, error=str(error)))
            return
        try:
            if record.status == RUNNING:
                self._end_lost(record)
            if record.status == READY:
                self._attempt(record, message)
        except LeaseLostError as error:
            _log.error("task %s: its lease is lost, so another worker has it: %s", record.id, error)
        except MessageError as error:  # its state is larger than a message can be
            _log.error("task %s: %s", record.id, error)
            self.insist(partial(store.bury, message, error=str(error)))
        else:
            self._settle(record, message)

    def _end_lost(self, record: TaskRecord) -> None:
        """End the attempt of a worker that cannot do so."""
        worker = record.worker_ids[-1]
        error = WorkerLostError(f"worker {worker} died, or lost its lease, during this attempt")
        record.fail(error, self._attempts_max)
        self._save_outcome(record)

    def _attempt(self, record: TaskRecord, message: Any) -> None:
        close_old_connections()
        with ExitStack() as stack:
            stack.callback(close_old_connections)
            heartbeat = self._tasks.store.heartbeat(message, lease=LEASE_S)
            beat = self.insist(lambda: stack.enter_context(heartbeat))
            record.start(self._worker_id)
            self.insist(partial(self._tasks.save, record))
            try:
                record.succeed(self._call(record))
            except BaseException as error:  # noqa: BLE001 - SystemExit, too, is an outcome
                record.fail(error, self._attempts_max)
                self._save_outcome(record, beat)  # here, so that Django's log has the traceback
            else:
                self._save_outcome(record, beat)

    def _call(self, record: TaskRecord) -> Any:
        result = record.result(self._tasks.alias)
        task_started.send_robust(self._sender, task_result=result)
        context = [TaskContext(task_result=result)] if result.task.takes_context else []
        return result.task.call(*context, *result.args, **result.kwargs)

    def _save_outcome(self, record: TaskRecord, beat: Any = None) -> None:
        """Save the state after an attempt; after the last one, send Django's signal."""
        if beat is not None and beat.lost is not None:
            raise beat.lost
        try:
            self.insist(partial(self._tasks.save, record))
        except MessageError as error:  # the return value is larger than a message can be
            record.fail(error, self._attempts_max)
            self.insist(partial(self._tasks.save, record))
        if not record.is_final:
            _log.warning("task %s: attempt %d failed", record.id, len(record.worker_ids))
            return
        try:
            result = record.result(self._tasks.alias)
        except Exception:  # noqa: BLE001 - whatever the import of that code raises
            _log.exception("task %s: no signal task_finished, as its code is missing", record.id)
        else:
            task_finished.send_robust(self._sender, task_result=result)

    def _settle(self, record: TaskRecord, message: Any) -> None:
        store = self._tasks.store
        settle: Callable[[], Any] = {
            SUCCESSFUL: partial(store.ack, message),
            FAILED: partial(store.bury, message, error=record.last_error),
            READY: partial(store.nack, message, error=record.last_error),
        }[record.status]
        self.insist(settle)
