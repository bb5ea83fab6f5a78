"""Gather the calls that tasks make in one turn of their loop, and make them as one.

    task 1: await store.ack(a)  ---+
    task 2: await store.ack(b)  ---+---> one call in the pool, one sync ---> an answer for each task
    task 3: await store.nack(c) ---+

A single call waits for one turn of the loop longer than a call of its own would.

Thread safety: any loop may await; the calls of different loops are not gathered together.
Invariants:
    1. The calls of a loop are made in the order in which its tasks made them.
    2. Each task gets the answer or the error of its own call. An error that concerns all of them,
       such as a failed sync, goes to each.
    3. A call of a task that is cancelled is made all the same.
See also: docs/decisions/0002-group-commit.md.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Generic, TypeVar

from timerstore._engine.base.owner import Owner

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class GatheredCalls(Owner, Generic[Call, Answer]):
    """The calls of one kind of all tasks of a store."""

    def __init__(
        self,
        check_open: Callable[[], None],
        pool: Executor,
        make_all: Callable[[Sequence[Call]], Sequence[Answer | Exception]],
    ) -> None:
        """`make_all` makes the calls, in a thread of the pool. `check_open` raises if the store is
        closed or belongs to another process.
        """
        self._check_open = check_open
        self._pool = pool
        self._make_all = make_all
        self._turns: dict[asyncio.AbstractEventLoop, list[tuple[Call, asyncio.Future[Answer]]]] = {}

    async def call(self, one: Call) -> Answer:
        """Make a call together with the others of this turn. Return its answer, or raise it."""
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        turn = self._turns.get(loop)
        if turn is None:
            for other in [other for other in self._turns if other.is_closed()]:
                del self._turns[other]  # it was closed before the turn ended
            turn = self._turns[loop] = []
            loop.call_soon(self._begin, loop)
        turn.append((one, future))
        return await future

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the calls of the turn that has ended."""
        turn = self._turns.pop(loop)
        futures = [future for _, future in turn]
        try:
            self._check_open()  # a pool that is shut, or lost in a fork, accepts no work
            calls = [call for call, _ in turn]
            made = loop.run_in_executor(self._pool, self._make_all, calls)
        except Exception as error:  # noqa: BLE001 - raised to each task
            _answer_all(futures, error)
            return
        made.add_done_callback(partial(_answer, futures))


def _answer(
    futures: "list[asyncio.Future[Answer]]",
    made: "asyncio.Future[Sequence[Answer | Exception]]",
) -> None:
    if (error := made.exception()) is not None:
        _answer_all(futures, error)
    else:
        for future, answer in zip(futures, made.result(), strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _answer_all(futures: "list[asyncio.Future[Answer]]", error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
