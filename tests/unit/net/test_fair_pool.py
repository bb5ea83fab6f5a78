"""Threads take the jobs of clients in turn, and leave out those that may not begin."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import Barrier, Event
from typing import Any

import pytest

from tests.support.held_sync import PATIENCE_S
from timerstore.net.fair_pool import FairPool, PoolClient, pool_client


class Jobs:
    """Jobs that write down their names, and one that holds the only thread."""

    def __init__(self, workers: int) -> None:
        self.pool = FairPool(workers, "fair", asyncio.get_running_loop())
        self.ran: list[str] = []
        self.is_released = Event()

    def hold(self) -> "Future[bool]":
        return self.pool.submit(self.is_released.wait, PATIENCE_S)

    def add(self, client: PoolClient | None, *names: str) -> "list[Future[None]]":
        with _as(client):
            return [self.pool.submit(self.ran.append, one) for one in names]

    async def all_of(self, *futures: "Future[Any]") -> None:
        self.is_released.set()
        await asyncio.wait_for(
            asyncio.gather(*(asyncio.wrap_future(one) for one in futures)), PATIENCE_S
        )


@contextmanager
def _as(client: PoolClient | None) -> Iterator[None]:
    token = pool_client.set(client)
    try:
        yield
    finally:
        pool_client.reset(token)


def _run(test: Callable[[Jobs], Awaitable[None]], workers: int = 1) -> None:
    async def run() -> None:
        jobs = Jobs(workers)
        try:
            await test(jobs)
        finally:
            jobs.is_released.set()
            jobs.pool.shutdown()

    asyncio.run(run())


def test_clients_take_turns_and_keep_their_order() -> None:
    async def test(jobs: Jobs) -> None:
        first, second = PoolClient(None), PoolClient(None)
        jobs.hold()
        ends = jobs.add(first, *"abcd") + jobs.add(second, *"xy") + jobs.add(None, "1", "2")
        await jobs.all_of(*ends)
        assert jobs.ran == ["a", "x", "1", "b", "y", "2", "c", "d"]

    _run(test)


def test_paused_client_is_left_out_until_it_resumes() -> None:
    async def test(jobs: Jobs) -> None:
        client = PoolClient(None)
        jobs.hold()
        held = jobs.add(client, "a", "b")
        jobs.pool.pause(client)
        await jobs.all_of(*jobs.add(None, "1", "2"))
        assert jobs.ran == ["1", "2"]
        jobs.pool.resume(client)
        await jobs.all_of(*held)
        assert jobs.ran == ["1", "2", "a", "b"]

    _run(test)


def test_job_of_a_paused_client_begins_when_it_ends() -> None:
    async def test(jobs: Jobs) -> None:
        client = PoolClient(1)
        jobs.pool.pause(client)
        held = jobs.add(client, "a", "b", "c")
        jobs.pool.end(client)
        await jobs.all_of(*held)
        assert jobs.ran == ["a", "b", "c"]

    _run(test)


def test_client_that_ended_has_no_limit_on_results_in_hand() -> None:
    """Its jobs do not wait for the loop, which may have no turn any more."""

    async def test(jobs: Jobs) -> None:
        client = PoolClient(1)
        jobs.hold()
        held = jobs.add(client, "a", "b", "c")
        jobs.pool.end(client)
        jobs.is_released.set()
        for one in held:
            one.result(PATIENCE_S)

    _run(test)


def test_client_that_resumes_has_as_many_threads_as_before() -> None:
    async def test(jobs: Jobs) -> None:
        client, meeting = PoolClient(None), Barrier(2)
        jobs.pool.pause(client)
        with _as(client):
            held = [jobs.pool.submit(meeting.wait, PATIENCE_S) for _ in range(2)]
        while jobs.pool._idle < 2:  # both threads found no job
            await asyncio.sleep(0)
        jobs.pool.resume(client)
        await jobs.all_of(*held)

    _run(test, workers=2)


def test_client_that_resumes_loses_no_job_if_no_thread_can_be_started() -> None:
    async def test(jobs: Jobs) -> None:
        client = PoolClient(None)
        jobs.pool.pause(client)
        held = jobs.add(client, "a", "b")
        while jobs.pool._idle < 2:
            await asyncio.sleep(0)
        submit = jobs.pool._threads.submit

        def submit_and_fail(call: Callable[[], None]) -> None:
            submit(call)  # as an executor: it has the call before it starts a thread
            raise RuntimeError("can't start new thread")

        jobs.pool._threads.submit = submit_and_fail  # type: ignore[method-assign, assignment]
        jobs.pool.resume(client)
        await jobs.all_of(*held)

    _run(test)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_results_in_hand_are_limited_until_their_task_has_run(limit: int) -> None:
    async def test(jobs: Jobs) -> None:
        client = PoolClient(limit)
        jobs.hold()
        ends = jobs.add(client, *"abcdef")
        jobs.is_released.set()
        for one in ends[:limit]:
            one.result(PATIENCE_S)
        for one in jobs.add(None, *"1" * 9):  # the thread has time, but the loop does not run
            one.result(PATIENCE_S)
        assert [one.done() for one in ends] == [True] * limit + [False] * (6 - limit)
        assert client.in_hand == limit
        await jobs.all_of(*ends)
        assert [one for one in jobs.ran if one != "1"] == list("abcdef")

    _run(test)


def test_cancelled_job_is_left_out() -> None:
    async def test(jobs: Jobs) -> None:
        client = PoolClient(1)
        jobs.hold()
        ends = jobs.add(client, *"abc")
        assert ends[1].cancel()
        await jobs.all_of(ends[0], ends[2])
        assert jobs.ran == ["a", "c"]

    _run(test)


def test_error_goes_to_the_caller() -> None:
    async def test(jobs: Jobs) -> None:
        def failing() -> None:
            raise ValueError("no")

        with _as(PoolClient(1)):
            failed = jobs.pool.submit(failing)
        with pytest.raises(ValueError, match="no"):
            await jobs.all_of(failed)
        await jobs.all_of(*jobs.add(None, "1"))

    _run(test)


def test_shutdown_makes_the_jobs_that_were_left_out() -> None:
    async def test(jobs: Jobs) -> None:
        client = PoolClient(None)
        jobs.pool.pause(client)
        held = jobs.add(client, "a", "b")
        jobs.pool.shutdown()
        assert [one.done() for one in held] == [True, True]
        with pytest.raises(RuntimeError):
            jobs.add(None, "1")

    _run(test)


def test_shutdown_makes_the_jobs_of_a_client_that_was_paused_in_the_line() -> None:
    async def test(jobs: Jobs) -> None:
        client = PoolClient(None)
        jobs.hold()
        held = jobs.add(client, "a")
        jobs.pool.pause(client)
        await jobs.all_of(*jobs.add(None, "1"))  # the client left the line before
        jobs.pool.shutdown()
        assert held[0].done()

    _run(test)


def test_job_that_was_refused_is_never_made() -> None:
    async def test(jobs: Jobs) -> None:
        jobs.pool.shutdown()
        with pytest.raises(RuntimeError):
            jobs.add(None, "1")
        jobs.pool.shutdown()
        assert jobs.ran == []

    _run(test)


def test_jobs_begin_also_after_the_loop_was_closed() -> None:
    loop = asyncio.new_event_loop()
    pool = FairPool(1, "fair", loop)
    loop.close()
    with _as(PoolClient(1)):
        ends = [pool.submit(int, one) for one in "123"]
    assert [one.result(PATIENCE_S) for one in ends] == [1, 2, 3]
    pool.shutdown()


class ByHand:
    """Threads and a loop whose work a test does step by step."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def submit(self, call: Callable[..., Any], *given: Any) -> None:
        self.work.append(partial(call, *given))

    call_soon = call_soon_threadsafe = submit

    def shutdown(self, *_: object, **__: object) -> None:
        self.step_all()

    def step(self) -> None:
        if self.work:
            self.work.pop(0)()

    def step_all(self) -> None:
        while self.work:
            self.step()


@pytest.mark.parametrize("seed", range(40))
def test_each_request_of_a_thread_makes_one_job_whatever_the_order(seed: int) -> None:
    """Pauses and limits leave requests over for a time, and none for ever."""
    draw = random.Random(seed)
    threads, loop = ByHand(), ByHand()
    pool = FairPool(1, "fair", loop)  # type: ignore[arg-type]
    pool._threads = threads  # type: ignore[assignment]
    clients = [PoolClient(None), PoolClient(1), PoolClient(2)]
    ran: list[tuple[int, int]] = []
    submitted: list[tuple[int, int]] = []
    for number in range(200):
        at = draw.randrange(len(clients))
        step = draw.choice(["submit", "submit", "pause", "resume", "thread", "thread", "loop"])
        if step == "submit":
            submitted.append((at, number))
            with _as(clients[at]):
                pool.submit(ran.append, (at, number))
        elif step in {"pause", "resume"}:
            getattr(pool, step)(clients[at])
        else:
            (threads if step == "thread" else loop).step()
        assert all(one.in_hand_max is None or one.in_hand <= one.in_hand_max for one in clients)
    for one in clients:
        pool.resume(one)
    while threads.work or loop.work:
        threads.step()
        loop.step()
    assert [one.in_hand for one in clients] == [0, 0, 0]
    assert [sorted(ran), pool._idle] == [sorted(submitted), 0]
    for at in range(len(clients)):  # each client's in their order
        mine = [one for one in ran if one[0] == at]
        assert mine == sorted(mine)
