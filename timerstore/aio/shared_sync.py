"""One sync for all coroutines that wait until their puts are durable.

The waiters of one turn of a loop are added together at its end. If a thread began with the first of
them, the others would need a second sync, and the thread would take Python's lock from the loop.

    the loop of a program                                a separate thread syncs
    the loop of a server                                 the loop syncs, at the end of the turn
    the loop of a server: the thread syncs already,
    or a sync was slow not long ago (QuickWork)    a separate thread syncs

Thread safety: any loop may await. The thread is not part of the pool, so no long call delays it.
Locking: the lock protects the list of waiters for a few steps. No other lock is taken under it.
Invariants:
    1. A waiter is served by a sync that began after the waiter was added.
    2. The list has no waiter while the thread is idle, whatever error made it so.
    3. A waiter that is cancelled does not affect the others.
Raises: the error of the sync, to each waiter whose put is not durable.
See also: docs/decisions/0002-group-commit.md.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore.aio.loop_turns import LoopTurns
from timerstore.aio.quick_work import QuickWork
from timerstore.errors import ClosedError
from timerstore.store import TimerStore

_log = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]
"""Called with the error of a sync, or None."""
_Result = tuple[Done, BaseException | None]


class _Waiting(NamedTuple):
    """One waiter."""

    end: int  # the log must become durable below this
    loop: asyncio.AbstractEventLoop | None  # None if the result is not wanted
    done: Done


class SharedSync(NotCopyable):
    """The puts of a store that wait for a sync, and the thread that syncs."""

    def __init__(self, store: TimerStore, *, may_block: bool) -> None:
        """`may_block`: see QuickWork."""
        self._store = store
        self._quick = QuickWork(may_block=may_block)
        self._lock = Lock()
        self._turns: LoopTurns[_Waiting] = LoopTurns(self._add_turn)
        self._waiting: list[_Waiting] = []
        self._is_running = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="timerstore-aio-sync")

    async def through(self, end: int) -> None:
        """Return when the log is durable below `end`."""
        if self._store._log.durable >= end:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_when_durable(end, partial(_complete_future, future))
        await future

    def call_when_durable(self, end: int, done: Done) -> None:
        """Call `done` on the running loop when the log is durable below `end`, or with the error
        of the sync.
        """
        self._turns.add(_Waiting(end, asyncio.get_running_loop(), done))

    def begin(self, end: int) -> None:
        """Make the log durable below `end`, even if no caller waits for it. From any thread."""
        self._add([_Waiting(end, None, _ignore)])

    def shut(self) -> None:
        """End the thread after the present waiters are served."""
        self._thread.shutdown()

    def _add_turn(self, _loop: asyncio.AbstractEventLoop, turn: list[_Waiting]) -> None:
        if self._quick.is_for_loop and not self._is_running:
            error = self._sync(max(one.end for one in turn))
            _call_all(_results(turn, self._store._log.durable, error))
            return
        with suppress(BaseException):  # the waiters get it
            self._add(turn)

    def _add(self, new: list[_Waiting]) -> None:
        with self._lock:
            self._waiting += new
            if self._is_running:
                return
            self._is_running = True
        try:
            self._thread.submit(self._run)
        except RuntimeError:  # the thread is shut: the store is closed, or its server ends
            self._run()
        except BaseException as error:  # no thread or no memory: the next waiter tries again
            _complete(self._take(is_last=True), -1, error)
            raise

    def _take(self, *, is_last: bool = False) -> list[_Waiting]:
        """Return the waiters. If there are none, the thread is idle from now on."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._is_running = bool(waiting) and not is_last
        return waiting

    def _run(self) -> None:
        waiting: list[_Waiting] = []
        try:
            while waiting := self._take():
                error = self._sync(max(one.end for one in waiting))
                _complete(waiting, self._store._log.durable, error)
        except BaseException as error:
            _complete(waiting + self._take(is_last=True), -1, error)
            raise

    def _sync(self, end: int) -> BaseException | None:
        """Sync through `end`. Return the error, or None."""
        try:
            try:
                self._quick.timed(partial(self._store._sync_begun, end))
            except ClosedError as error:
                self._store.close()  # waits for a running close
                raise self._store._log.failed or error from None
        except BaseException as error:  # noqa: BLE001 - passed to the waiters
            return error
        return None


def _results(waiting: list[_Waiting], durable: int, error: BaseException | None) -> list[_Result]:
    """Return the results for the waiters. Those whose put is durable get no error."""
    return [(one.done, None if one.end <= durable else error) for one in waiting]


def _complete(waiting: list[_Waiting], durable: int, error: BaseException | None) -> None:
    """Call the waiters, each on its loop."""
    for loop in {one.loop for one in waiting if one.loop is not None}:
        mine = [one for one in waiting if one.loop is loop]
        with suppress(RuntimeError):  # the loop is closed: no task awaits there any more
            loop.call_soon_threadsafe(_call_all, _results(mine, durable, error))


def _call_all(results: list[_Result]) -> None:
    for done, error in results:
        try:
            done(error)
        except Exception:  # noqa: BLE001 - the others still get their results
            _log.exception("a put was not answered")


def _complete_future(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _ignore(_error: BaseException | None) -> None:
    """Do nothing: the result is not wanted."""
