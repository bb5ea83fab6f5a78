"""A pool of threads that serves its clients in turn.

    connection A: 1,000 calls   A A A A ...  --+
    connection B: 1 call        B            --+--> threads:  A B A A A ...
    other work of the store     -            --+

The jobs of a client wait in a queue of their own. A thread takes one job of the first queue, and
the queue goes to the end of the line. A client that has too many jobs in hand, or does not take its
answers, is left out until that has changed. A job is in hand until the task that awaits its result
has run.

Thread safety: any thread may submit. The loop pauses, resumes and ends clients.
Locking: the lock protects the queues for a few steps. No other lock is taken under it.
Invariants:
    1. The jobs of a client begin in the order in which they were submitted.
    2. Jobs of no client, and of a client that has ended, are never left out.
Raises: RuntimeError as any executor: it is shut, or the interpreter ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from timerstore._engine.base.owner import NotCopyable

Answer = TypeVar("Answer")


class PoolClient:
    """A source of jobs."""

    def __init__(self, in_hand_max: int | None) -> None:
        """`in_hand_max`: jobs that run, or whose results no task has; None: no limit."""
        self.in_hand_max = in_hand_max
        self.in_hand = 0
        self.is_paused = False
        self.is_in_line = False
        self.jobs: deque[_Job] = deque()

    @property
    def ready_count(self) -> int:
        """How many jobs may begin."""
        if self.is_paused:
            return 0
        left = len(self.jobs) if self.in_hand_max is None else self.in_hand_max - self.in_hand
        return min(len(self.jobs), left)


pool_client: ContextVar[PoolClient | None] = ContextVar("pool_client", default=None)
"""The client whose jobs are submitted in this context."""


class _Job:
    """A call and its result."""

    __slots__ = ("call", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class FairPool(NotCopyable, Executor):
    """Threads that take jobs of clients in turn."""

    def __init__(self, workers: int, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: gets the results."""
        self._loop = loop
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._lock = Lock()
        self._line: deque[PoolClient] = deque()  # clients whose next job may begin
        self._held: set[PoolClient] = set()  # clients with jobs that may not begin yet
        self._idle = 0  # threads that were asked to take a job, and found none
        self._others = PoolClient(None)

    def submit(self, call: Callable[..., Answer], /, *args: Any, **named: Any) -> "Future[Answer]":
        """Run a call in a thread, in its client's turn."""
        job = _Job(partial(call, *args, **named))
        client = pool_client.get() or self._others
        with self._lock:
            client.jobs.append(job)
            self._enter(client)
        try:
            self._threads.submit(self._run_next)
        except RuntimeError:
            job.future.cancel()  # the queue still has it
            raise
        return job.future

    def _enter(self, client: PoolClient) -> None:
        """Put a client at the end of the line, if it may begin a job. The caller has the lock."""
        if client.is_in_line:
            return
        if client.ready_count:
            client.is_in_line = True
            self._line.append(client)
            self._held.discard(client)
        elif client.jobs:
            self._held.add(client)

    def _take(self) -> "tuple[PoolClient, _Job] | None":
        """Take the next job. The caller has the lock."""
        while self._line:
            client = self._line.popleft()
            client.is_in_line = False
            if client.ready_count:
                job = client.jobs.popleft()
                client.in_hand += 1
                self._enter(client)
                return client, job
            self._enter(client)  # it was paused in the line
        return None

    def _run_next(self) -> None:
        with self._lock:
            taken = self._take()
            if taken is None:
                self._idle += 1
                return
        client, job = taken
        job.run()
        if client.in_hand_max is None:
            self._done(client)
            return
        try:
            self._loop.call_soon_threadsafe(self._arrived, client)
        except RuntimeError:  # the loop is closed
            self._done(client)

    def _arrived(self, client: PoolClient) -> None:
        """The loop has a result. The task that awaits it runs before another job begins."""
        self._loop.call_soon(self._done, client)

    def _done(self, client: PoolClient) -> None:
        with self._lock:
            client.in_hand -= 1
        self._ready_again(client)

    def _ready_again(self, client: PoolClient) -> None:
        """Let threads take jobs of a client that was left out."""
        with self._lock:
            self._enter(client)
            count = min(self._idle, client.ready_count)
            self._idle -= count
        for _ in range(count):
            # Without another thread, those that there are take the job. `shutdown` makes the rest.
            with suppress(RuntimeError):
                self._threads.submit(self._run_next)

    def pause(self, client: PoolClient) -> None:
        """Begin no job of a client until `resume`."""
        client.is_paused = True

    def resume(self, client: PoolClient) -> None:
        """Begin jobs of a client again."""
        if client.is_paused:
            client.is_paused = False
            self._ready_again(client)

    def end(self, client: PoolClient) -> None:
        """Leave the client out no more."""
        client.in_hand_max, client.is_paused = None, False
        self._ready_again(client)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Make the calls that were submitted, and end the threads."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for client in list(self._held):
            self.end(client)
        while True:
            with self._lock:
                taken = self._take()
            if taken is None:
                return
            taken[1].run()
