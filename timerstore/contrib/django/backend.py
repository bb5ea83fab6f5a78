"""TimerStoreBackend: tasks of Django as messages of a store."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.core.checks import Error
from django.db import connection, transaction
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone
from django.utils.crypto import get_random_string

from timerstore.contrib.django.options import read_options
from timerstore.contrib.django.store_connections import close_store, store_of
from timerstore.contrib.django.task_record import TaskRecord
from timerstore.contrib.django.task_store import TaskStore
from timerstore.contrib.django.task_topics import excess_of


class TimerStoreBackend(BaseTaskBackend):
    """Keeps the tasks of `TASKS[alias]` in a store, and their results.

    Thread safety: any thread. The threads of a process share one connection.
    Raises:
        Each call raises InvalidTaskBackend if an option is invalid, and otherwise as
        `timerstore.connect` and the calls of the store: UnavailableError if no server answers.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.settings = read_options(self.options)

    @property
    def tasks(self) -> TaskStore:
        """The tasks in the store, which is opened at the first use."""
        if self.settings.problems:
            raise InvalidTaskBackend(
                f"TASKS[{self.alias!r}]: OPTIONS: {'; '.join(self.settings.problems)}"
            )
        return TaskStore(store_of(self.settings.url, self.settings.token_file), self.alias)

    def close(self) -> None:
        """Close the connection of this process to the store. The next call connects again."""
        close_store(self.settings.url, self.settings.token_file)

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask for a task that this backend cannot execute."""
        super().validate_task(task)
        for problem in self._name_problems([task.queue_name]):
            raise InvalidTask(problem)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Store a task. With ON_COMMIT and in `atomic`, it is stored after the commit.

        Until then the result's `enqueued_at` is None. On return, or after the commit, the task is
        durable.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=get_random_string(32),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if self.settings.on_commit and connection.in_atomic_block:
            transaction.on_commit(partial(self._put, result))
        else:
            self._put(result)
        return result

    def _put(self, result: TaskResult) -> None:
        now = timezone.now()
        object.__setattr__(result, "enqueued_at", now)
        run_after = result.task.run_after
        is_due = run_after is None or run_after <= now
        self.tasks.enqueue(TaskRecord.of(result), None if is_due else run_after)
        task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> TaskResult:
        """Return the present state of a task.

        Raises:
            TaskResultDoesNotExist: there is no such task, or its result was dropped: RESULT_DAYS
                have passed, or the store's retention dropped it.
            ImportError: the code of the task does not exist any more.
        """
        record = self.tasks.find(result_id)
        if record is None or record.is_older_than(self.settings.result_days):
            raise TaskResultDoesNotExist(result_id)
        return record.result(self.alias)

    def check(self, **_kwargs: Any) -> list[Error]:
        """Return the errors in the options and names of queues, for `manage.py check`."""
        place = f"TASKS[{self.alias!r}]"
        options = [
            Error(f"{place}: OPTIONS: {one}", id="timerstore.E001")
            for one in self.settings.problems
        ]
        queues = [
            Error(f"{place}: QUEUES: {one}", id="timerstore.E002")
            for one in self._name_problems(sorted(self.queues))
        ]
        return options + queues

    def _name_problems(self, queues: list[str]) -> list[str]:
        long = [(one, excess_of(self.alias, one)) for one in queues]
        return [
            f"queue {queue!r}: wanted a name that is shorter by {excess} characters (each byte of "
            "a character other than A-Za-z0-9_- counts as three)"
            for queue, excess in long
            if excess
        ]
