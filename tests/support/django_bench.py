"""A project of Django in this process, and a backend on a stepped store whose clock is set by hand.

Import it after `pytest.importorskip("django.tasks")`.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.tasks import Task, TaskResult, task_backends
from django.test import override_settings

from tests.support.bench import Bench, small
from tests.support.served_bench import ServedBench
from timerstore.contrib.django import TimerStoreBackend
from timerstore.contrib.django.task_record import TaskRecord
from timerstore.contrib.django.task_runner import LEASE_S, TaskRunner
from timerstore.contrib.django.task_store import TaskStore
from timerstore.contrib.django.task_topics import task_topic

BACKEND = "timerstore.contrib.django.TimerStoreBackend"
QUEUES = ["default", "emails", "queue_1"]
DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}

if not settings.configured:
    settings.configure(
        DATABASES={"default": DATABASE},
        INSTALLED_APPS=["timerstore.contrib.django"],
        SECRET_KEY="of tests",
        TASKS={
            "default": {"BACKEND": BACKEND, "QUEUES": QUEUES, "OPTIONS": {"url": "unix:///none"}}
        },
        USE_TZ=True,
    )
    django.setup()


class EagerBackend(TimerStoreBackend):
    """Runs each task that is due as soon as it is enqueued, in the calling thread."""

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        result = super().enqueue(task, args, kwargs)
        if result.enqueued_at is not None:
            run_due(self)
        return self.get_result(result.id)


class DjangoBench:
    """A backend, its store and the clock of the store."""

    def __init__(self, root: Path) -> None:
        now_ms = time.time_ns() // 1_000_000
        self.bench = Bench(root / "store", small(message_bytes_max=200_000, flush="sync"), now_ms)
        self._served = ServedBench(self.bench, root / "tasks.sock")
        self.url = self._served.url

    @property
    def backend(self) -> TimerStoreBackend:
        found = task_backends["default"]
        assert isinstance(found, TimerStoreBackend)
        return found

    @property
    def tasks(self) -> TaskStore:
        return self.backend.tasks

    @contextmanager
    def configured(self, backend: str = BACKEND, **options: Any) -> Iterator[None]:
        """Set TASKS: one backend, with the url of this store."""
        params = {
            "BACKEND": backend,
            "QUEUES": options.pop("QUEUES", QUEUES),
            "OPTIONS": {"url": self.url, **options},
        }
        with override_settings(TASKS={"default": params}):
            try:
                yield
            finally:
                self.backend.close()

    def lease(self, queue: str = "default") -> Any:
        """Lease the next task of a queue, as a worker does; None: there is none."""
        self.bench.turn()
        return _lease(self.backend, [queue])

    def leased(self) -> TaskRecord:
        """Lease the next task of the queue "default", as a worker does that then dies."""
        return self.tasks.state_of(TaskRecord.from_bytes(self.lease().body))

    def run_due(self, *queues: str, worker_id: str = "worker") -> int:
        """Run the tasks that are due, and return their number."""
        self.bench.turn()
        return run_due(self.backend, queues or tuple(QUEUES), worker_id)

    def turn(self, seconds: float) -> None:
        """Set the clock forward."""
        self.bench.turn(int(seconds * 1000))

    def close(self) -> None:
        self._served.close()


def _lease(backend: TimerStoreBackend, queues: Any) -> Any:
    topics = [task_topic(backend.alias, one) for one in queues]
    tasks = backend.tasks
    found = tasks.store.receive(topics, tasks.group, lease=LEASE_S, max_attempts=None)
    return found[0] if found else None


def run_due(backend: TimerStoreBackend, queues: Any = QUEUES, worker_id: str = "worker") -> int:
    """Run the tasks that are due, in this thread, and return their number."""
    runner = TaskRunner(backend, worker_id, threading.Event())
    count = 0
    for message in iter(partial(_lease, backend, queues), None):
        runner.run(message)
        count += 1
    return count
