"""One sync for all coroutines that wait until their puts are durable.

Thread safety: any loop may await. A separate thread waits for syncs, so no long call in the pool
delays them.
Locking: the lock protects the list of waiters for a few steps. No other lock is taken under it.
Invariants:
    1. A waiter is served by a sync that began after the waiter was added.
    2. There is no waiter while the thread is idle, whatever error made it so.
    3. A waiter that is cancelled does not affect the others.
Raises: the error of the sync, to each waiter whose put is not durable.
See also: docs/decisions/0002-group-commit.md.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore.errors import ClosedError
from timerstore.store import TimerStore


class _Waiting(NamedTuple):
    """One waiter."""

    end: int  # the log must become durable below this
    future: "asyncio.Future[None] | None"  # None if no coroutine waits


class SharedSync(Owner):
    """The coroutines of a store that wait for a sync, and the thread that syncs."""

    def __init__(self, store: TimerStore) -> None:
        self._store = store
        self._lock = Lock()
        self._waiting: list[_Waiting] = []
        self._is_running = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="timerstore-aio-sync")

    async def through(self, end: int) -> None:
        """Return when the log is durable below `end`."""
        if self._store._log.durable >= end:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(_Waiting(end, future))
        await future

    def begin(self, end: int) -> None:
        """Make the log durable below `end`, even if no caller waits for it. From any thread."""
        self._add(_Waiting(end, None))

    def shut(self) -> None:
        """End the thread after the present waiters are served."""
        self._thread.shutdown()

    def _add(self, one: _Waiting) -> None:
        with self._lock:
            self._waiting.append(one)
            if self._is_running:
                return
            self._is_running = True
        try:
            self._thread.submit(self._run)
        except RuntimeError:  # shut since the put: the store is closed, so this does not block
            self._run()
        except BaseException as error:  # no thread or no memory: the next waiter tries again
            others = [each for each in self._take(is_last=True) if each is not one]
            _complete(others, -1, error)
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
                self._store._sync_begun(end)
            except ClosedError as error:
                self._store.close()  # waits for a running close
                raise self._store._log.failed or error from None
        except BaseException as error:  # noqa: BLE001 - raised to the waiters
            return error
        return None


def _complete(waiting: list[_Waiting], durable: int, error: BaseException | None) -> None:
    """Complete the waiters. Those whose put is durable get no error."""
    answers = [(one.future, None if one.end <= durable else error) for one in waiting]
    for loop in {future.get_loop() for future, _ in answers if future is not None}:
        mine = [
            (one, failure) for one, failure in answers if one is not None and one.get_loop() is loop
        ]
        with suppress(RuntimeError):  # the loop is closed: no task awaits there any more
            loop.call_soon_threadsafe(_answer, mine)


def _answer(answers: "list[tuple[asyncio.Future[None], BaseException | None]]") -> None:
    for future, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
