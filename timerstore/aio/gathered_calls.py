"""Gather the calls that tasks make in one turn of their loop, and make them as one.

    task 1: await store.ack(a)  ---+
    task 2: await store.ack(b)  ---+---> one call in the pool, one sync ---> an answer for each task
    task 3: await store.nack(c) ---+

A single call waits for one turn of the loop longer than a call of its own would. The loop of a
server makes the calls itself, unless they take long (quick_work.py).

Thread safety: any loop may await; the calls of different loops are not gathered together.
Locking: `_lock` protects the answers of calls and whether they are wanted.
Invariants:
    1. The calls of one turn are passed on in the order in which tasks made them; the store makes
       each `receive` after those that settle leases. The loop makes a turn
       itself only if no earlier one is being made. Of two turns in threads either may be first;
       their calls are in flight together, so no task knows an order of them.
    2. Each task gets the answer or the error of its own call. An error that concerns all of them,
       such as a failed sync, goes to each.
    3. A call of a task that is cancelled is made all the same. Its answer is passed to `unwanted`,
       once, before `running` loses its turn.
See also: docs/decisions/0002-group-commit.md.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore.aio.loop_turns import LoopTurns
from timerstore.aio.quick_work import QuickWork

_log = logging.getLogger(__name__)

Value = TypeVar("Value")
Answer = TypeVar("Answer")


class _Gathered(Generic[Value, Answer]):
    """One call."""

    __slots__ = ("answer", "done", "is_unwanted", "value")

    def __init__(self, value: Value, done: Callable[[Answer | BaseException], None]) -> None:
        self.value = value
        self.done = done
        self.answer: Answer | BaseException | None = None
        self.is_unwanted = False  # its caller was cancelled

    def finish(self) -> None:
        """Answer the caller, on its loop."""
        assert self.answer is not None, "the call was made"
        self.done(self.answer)


def _complete(future: "asyncio.Future[Answer]", answer: Answer | BaseException) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


class GatheredCalls(NotCopyable, Generic[Value, Answer]):
    """The calls of one kind of all tasks of a store."""

    def __init__(
        self,
        check_open: Callable[[], None],
        pool: Executor,
        make_all: Callable[[Sequence[Value]], Sequence[Answer | Exception]],
        unwanted: Callable[[Answer], None] = lambda _: None,
        *,
        may_block: bool,
    ) -> None:
        """`make_all` makes the calls, in a thread of the pool or, as `may_block` permits, on the
        loop (QuickWork). `unwanted` gets the answers of calls whose callers were cancelled, in any
        thread. `check_open` raises if the store is closed or belongs to another process.
        """
        self._check_open = check_open
        self._pool = pool
        self._make_all = make_all
        self._unwanted = unwanted
        self._quick = QuickWork(may_block=may_block)
        self._lock = Lock()
        self._turns: LoopTurns[_Gathered[Value, Answer]] = LoopTurns(self._begin)
        self.running: set[Future[None]] = set()
        """The turns that are being made."""

    async def call(self, value: Value) -> Answer:
        """Make a call together with the others of this turn. Return its answer, or raise it."""
        self._check_open()  # a forked child has no running loop
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        one = self._add(value, partial(_complete, future))
        try:
            return await future
        except BaseException:
            with self._lock:
                one.is_unwanted = True
                is_made = one.answer is not None
            if is_made:
                self._drop(one)
            raise

    def begin(
        self, value: Value, done: Callable[[Answer | BaseException], None]
    ) -> _Gathered[Value, Answer]:
        """Make a call together with the others of this turn. `done` gets its answer or its error on
        this loop, in a later turn.
        """
        self._check_open()
        return self._add(value, done)

    def _add(
        self, value: Value, done: Callable[[Answer | BaseException], None]
    ) -> _Gathered[Value, Answer]:
        one: _Gathered[Value, Answer] = _Gathered(value, done)
        self._turns.add(one)
        return one

    def _begin(self, loop: asyncio.AbstractEventLoop, turn: list[_Gathered[Value, Answer]]) -> None:
        """Make the calls of the turn that has ended."""
        try:
            self._check_open()  # a pool that is shut, or lost in a fork, accepts no work
            if self._quick.is_for_loop and not self.running:
                self._make(turn)
                _finish(turn)
                return
            work = self._pool.submit(self._make_for, loop, turn)
        except Exception as error:  # noqa: BLE001 - raised to each task
            for one in turn:
                one.answer = error
            _finish(turn)
            return
        self.running.add(work)
        work.add_done_callback(self.running.discard)

    def _make_for(
        self, loop: asyncio.AbstractEventLoop, turn: list[_Gathered[Value, Answer]]
    ) -> None:
        """Make the calls, in a thread of the pool."""
        self._make(turn)
        with suppress(RuntimeError):  # the loop is closed: no task awaits there any more
            loop.call_soon_threadsafe(_finish, turn)

    def _make(self, turn: list[_Gathered[Value, Answer]]) -> None:
        """Make the calls, and drop the answers that are not wanted."""
        answers: Sequence[Any]
        values = [one.value for one in turn]
        try:
            answers = self._quick.timed(partial(self._make_all, values))
        except BaseException as error:  # noqa: BLE001 - raised to each task
            answers = [error] * len(turn)
        with self._lock:
            for one, answer in zip(turn, answers, strict=True):
                one.answer = answer
            unwanted = [one for one in turn if one.is_unwanted]
        for one in unwanted:
            self._drop(one)

    def _drop(self, one: _Gathered[Value, Answer]) -> None:
        if not isinstance(one.answer, BaseException) and one.answer is not None:
            self._unwanted(one.answer)


def _finish(turn: list[_Gathered[Any, Any]]) -> None:
    for one in turn:
        try:
            one.finish()
        except Exception:  # noqa: BLE001 - the others still get their answers
            _log.exception("a call was not answered")
