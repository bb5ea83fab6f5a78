"""The base of every class that owns descriptors, maps, threads, locks or C memory.

Two objects cannot own the same resource. The finalizer of a copy would close the resource of the
original, and the number of a closed descriptor is soon reused for another file.

Invariants:
    1. copy, deepcopy and pickle of an owner raise TypeError before a second object exists. So does
       a copy of an object that refers to one, also through a bound method.
    2. The finalizer of an owner also works if `__init__` did not complete.
"""

import atexit
import os
import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn, Self, SupportsIndex, TypeVar
from weakref import WeakMethod, WeakSet

from timerstore.errors import ForkedError

# --- owner ---


class NotCopyable:
    """Cannot be copied or pickled."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        reject_copy(self)

    def __reduce__(self) -> NoReturn:
        reject_copy(self)


def reject_copy(owner: object) -> NoReturn:
    """Raise the TypeError for a copy or pickle of an owner."""
    name = type(owner).__name__
    raise TypeError(
        f"{name}: wanted an object that can be copied or pickled, got {name}, which owns files, "
        "threads, locks or memory of this process; share this one between threads, or open another"
    )


# --- closing ---
# Base classes for objects with a `close`: `with` blocks, and closing at interpreter exit.
#
# Thread safety: any thread.
# Invariants:
#     1. An open object that has threads, or locks that threads hold, is closed by an exit hook
#        (atexit). After the hook the interpreter stops daemon threads wherever they are, and clears
#        modules. A later `close`, for example in `__del__`, has nothing left to do.
#     2. At exit a forked child closes nothing that its parent opened.


class Closing(NotCopyable):
    """Closed at the end of a `with` block, also after an exception.

    If a forked child leaves the block of its parent, nothing is closed. The child's own exception
    (as of `sys.exit`) propagates; without one ForkedError is raised.
    """

    __slots__ = ()

    _warns_unclosed = True
    """False for a shard, whose ShardedStore warns, and in a simulated process, which may die."""

    def close(self) -> None:
        """Release the resources of this object."""
        raise NotImplementedError

    def _close_at_exit(self) -> None:
        """Close before the interpreter ends. The wait for calls of other threads is bounded."""
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


class AsyncClosing(NotCopyable):
    """The same for `async with`."""

    __slots__ = ()

    async def close(self) -> None:
        """Release the resources of this object."""
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


_AsyncClosing = TypeVar("_AsyncClosing", bound=AsyncClosing)


class Making(NotCopyable, Coroutine[Any, Any, _AsyncClosing]):
    """An object that is being made: await it, or use it with `async with`.

    It is a coroutine, so that `asyncio.run` and `create_task` take it.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, _AsyncClosing]]) -> None:
        self._make = make
        self._running: Coroutine[Any, Any, _AsyncClosing] | None = None
        self._made: _AsyncClosing | None = None

    def __await__(self) -> Generator[Any, Any, _AsyncClosing]:
        return self._make().__await__()

    def _started(self) -> Coroutine[Any, Any, _AsyncClosing]:
        if self._running is None:
            self._running = self._make()
        return self._running

    def send(self, value: Any) -> Any:
        """Continue, as a coroutine does."""
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception inside, as a coroutine does."""
        return self._started().throw(*error)

    def close(self) -> None:
        """End the coroutine; an object that was made stays open."""
        if self._running is not None:
            self._running.close()

    async def __aenter__(self) -> _AsyncClosing:
        self._made = await self
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._made is not None, "left without having been entered"
        await self._made.__aexit__(kind, error, trace)


def warn_unclosed(one: Closing, path: object) -> None:
    """Warn about a store that is dropped without a close, as Python does for a file."""
    if one._warns_unclosed:
        warnings.warn(
            f"unclosed {type(one).__name__} of {path}: close it, or use `with`",
            ResourceWarning,
            stacklevel=3,  # without `source`: a recorded warning would keep the store alive
        )


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a bound method without keeping its object alive.

    The function does nothing once the object is gone.
    """
    found = WeakMethod(method)

    def call() -> None:
        alive = found()
        if alive is not None:
            alive()

    return call


def forked_error(where: object, pid: int) -> ForkedError:
    """Return the error for a forked child that uses a store of process `pid`."""
    return ForkedError(
        "a store belongs to the process that opened it",
        where=where,
        wanted=f"process {pid}",
        got=f"process {os.getpid()}",
    )


_open: WeakSet[Closing] = WeakSet()


def close_at_exit(one: Closing) -> None:
    """Close this object before the interpreter ends, if it still exists."""
    _open.add(one)


@atexit.register
def _close_all() -> None:
    errors: list[Exception] = []
    for one in list(_open):
        try:
            one._close_at_exit()
        except Exception as error:  # noqa: BLE001 - raised when all others are closed
            errors.append(error)
    if errors:
        raise errors[0]


def _forget_in_child() -> None:
    global _open  # noqa: PLW0603 - the child must not close its parent's objects
    _open = WeakSet()


os.register_at_fork(after_in_child=_forget_in_child)
