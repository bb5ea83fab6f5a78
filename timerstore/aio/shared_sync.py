"""Shared syncs: one sync for all coroutines that wait until what they put is durable.

Threads:  awaited on any loop; syncs are waited for in one thread of its own, so that no call that
          takes long in the pool keeps them.
Locks:    its own, for a few steps, with nothing taken under it.
Holds:    (1) whoever waits is served by a sync that began after he came; (2) nobody waits while the
          thread is idle, whatever error made it so; (3) who gives up waiting takes it from nobody.
Fails:    as the sync, for each whom it did not serve.
Source:   docs/decisions/0002-group-commit.md.
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
    """One who waits."""

    end: int  # the log is to be durable below this
    future: "asyncio.Future[None] | None"  # None: nobody waits, it is to be so all the same


class SharedSync(Owner):
    """What coroutines wait for that put."""

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
        """Have the log made durable below `end`, whoever waits for it; from any thread."""
        self._add(_Waiting(end, None))

    def shut(self) -> None:
        """End the thread, behind those who wait."""
        self._thread.shutdown()

    def _add(self, one: _Waiting) -> None:
        with self._lock:
            self._waiting.append(one)
            if self._is_running:
                return
            self._is_running = True
        try:
            self._thread.submit(self._run)
        except RuntimeError:  # shut since this was put: the store is closed, that is quick
            self._run()
        except BaseException as error:  # no thread, no memory: the next one tries again
            others = [each for each in self._take(is_last=True) if each is not one]
            _tell(others, -1, error)
            raise

    def _take(self, *, is_last: bool = False) -> list[_Waiting]:
        """Take those who wait; where nobody does, the thread is idle from here on."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._is_running = bool(waiting) and not is_last
        return waiting

    def _run(self) -> None:
        waiting: list[_Waiting] = []
        try:
            while waiting := self._take():
                error = self._sync(max(one.end for one in waiting))
                _tell(waiting, self._store._log.durable, error)
        except BaseException as error:
            _tell(waiting + self._take(is_last=True), -1, error)
            raise

    def _sync(self, end: int) -> BaseException | None:
        """Sync through `end`, or tell why not."""
        try:
            try:
                self._store._sync_begun(end)
            except ClosedError as error:
                self._store.close()  # waits for who closes; all is durable then, or it failed
                raise self._store._log.failed or error from None
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            return error
        return None


def _tell(waiting: list[_Waiting], durable: int, error: BaseException | None) -> None:
    """Answer those who wait: each whom the sync served hears of no error."""
    answers = [(one.future, None if one.end <= durable else error) for one in waiting]
    for loop in {future.get_loop() for future, _ in answers if future is not None}:
        mine = [(one, told) for one, told in answers if one is not None and one.get_loop() is loop]
        with suppress(RuntimeError):  # the loop is closed: nobody awaits there any more
            loop.call_soon_threadsafe(_answer, mine)


def _answer(answers: "list[tuple[asyncio.Future[None], BaseException | None]]") -> None:
    for future, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
