"""The threads of one process that runs tasks.

Each thread leases one task at a time, so no task waits in a worker.

Invariants:
    1. After `stop` no task begins. The lease of one that arrives then is returned.
    2. A thread that meets an error that cannot pass stops the worker, and `run` raises the error.
"""

import os
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial

from django.db import connections

from timerstore.contrib.django.backend import TimerStoreBackend
from timerstore.contrib.django.task_runner import LEASE_S, TaskRunner
from timerstore.contrib.django.task_topics import task_topic

_WAIT_S = 1.0  # of one `receive`: the longest delay of a stop


class Worker:
    """Runs the tasks of some queues, in threads."""

    def __init__(self, backend: TimerStoreBackend, queues: Sequence[str], threads: int) -> None:
        self._backend = backend
        self._topics = [task_topic(backend.alias, one) for one in queues]
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        name = f"{socket.gethostname()}:{os.getpid()}"
        self._threads = [
            threading.Thread(target=self._serve, args=(f"{name}:{k}",), daemon=True)
            for k in range(1, threads + 1)
        ]

    def run(self, stop_timeout_s: float) -> int:
        """Run tasks until `stop` is called. Return how many still run `stop_timeout_s` later."""
        for one in self._threads:
            one.start()
        self._stopping.wait()
        return self.finish(stop_timeout_s)

    def stop(self) -> None:
        """Begin no more tasks. A signal handler may call this."""
        self._stopping.set()

    def finish(self, stop_timeout_s: float) -> int:
        """Stop, and wait for running tasks. Return how many still run after `stop_timeout_s`."""
        self.stop()
        deadline_s = time.monotonic() + stop_timeout_s + _WAIT_S
        for one in self._threads:
            one.join(max(0.0, deadline_s - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        return sum(one.is_alive() for one in self._threads)

    def _serve(self, worker_id: str) -> None:
        try:
            self._run_tasks(worker_id)
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failure = error
        finally:
            self.stop()
            connections.close_all()

    def _run_tasks(self, worker_id: str) -> None:
        tasks = self._backend.tasks
        runner = TaskRunner(self._backend, worker_id, self._stopping)
        receive = partial(
            tasks.store.receive,
            self._topics,
            tasks.group,
            lease=LEASE_S,
            wait=_WAIT_S,
            max_attempts=None,  # of leases: the runner counts the attempts of tasks
        )
        while not self._stopping.is_set():
            for message in runner.insist(receive):
                if self._stopping.is_set():
                    tasks.store.nack(message, delay=0)
                else:
                    runner.run(message)
