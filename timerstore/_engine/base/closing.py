"""Closing: `with` for everything that has a `close`, and what happens to it at interpreter exit.

Thread safety: any thread.
Invariants:
    1. What has threads, or locks that threads hold, is closed by an exit hook (atexit), if it is
       still open: the interpreter stops daemon threads where they are after that, and clears
       modules. A `close` that comes later, as in `__del__`, has nothing left to do.
    2. A forked child closes nothing at exit that its parent opened.
"""

import atexit
import os
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Self
from weakref import WeakMethod, WeakSet

from timerstore._engine.base.owner import Owner
from timerstore.errors import ForkedError


class Closing(Owner):
    """Closed at the end of its `with` block, whatever ended it.

    A block that a forked child leaves closes nothing, as what is open belongs to its parent. What
    the child raised there, as by `sys.exit`, comes out of it; ForkedError if it raised nothing.
    """

    __slots__ = ()

    _warns_unclosed = True
    """False for a shard, whose ShardedStore warns, and in a simulated process, which may die."""

    def close(self) -> None:
        """Let go of what it has."""
        raise NotImplementedError

    def _close_at_exit(self) -> None:
        """Close before the interpreter ends; wait for no call of another thread for ever."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except ForkedError:
            if error is None:
                raise


class AsyncClosing(Owner):
    """The same for `async with`."""

    __slots__ = ()

    async def close(self) -> None:
        """Let go of what it has."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except ForkedError:
            if error is None:
                raise


def warn_unclosed(one: Closing, path: object) -> None:
    """Warn of a store that is dropped without a close, as Python does of a file."""
    if one._warns_unclosed:
        warnings.warn(
            f"unclosed {type(one).__name__} of {path}: close it, or use `with`",
            ResourceWarning,
            stacklevel=3,  # without `source`: a recorded warning would keep the store alive
        )


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a bound method, and does not keep its object alive. Once the
    object is gone, the function does nothing.
    """
    found = WeakMethod(method)

    def call() -> None:
        alive = found()
        if alive is not None:
            alive()

    return call


def forked_error(where: object, pid: int) -> ForkedError:
    """Make the error of a forked child that uses what process `pid` opened."""
    return ForkedError(
        "what a process opened belongs to it",
        where=where,
        wanted=f"process {pid}",
        got=f"process {os.getpid()}",
    )


_open: WeakSet[Closing] = WeakSet()


def close_at_exit(one: Closing) -> None:
    """Have it closed before the interpreter ends, if it exists by then."""
    _open.add(one)


@atexit.register
def _close_all() -> None:
    errors: list[Exception] = []
    for one in list(_open):
        try:
            one._close_at_exit()
        except Exception as error:  # noqa: BLE001 - raised once all others are closed
            errors.append(error)
    if errors:
        raise errors[0]


def _forget_in_child() -> None:
    global _open  # noqa: PLW0603 - the parent's are none of the child's business
    _open = WeakSet()


os.register_at_fork(after_in_child=_forget_in_child)
