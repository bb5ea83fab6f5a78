"""Replace a thread pool by sequential calls in a random order.

Invariants:
    1. Calls do not interleave: at a death, each call is either finished or not begun. Interleaved
       calls would show nothing new, because shards share no file.
"""

from collections.abc import Callable
from random import Random
from typing import Any


class _Call:
    """A submitted call and its result."""

    def __init__(self, pool: "SteppedPool", call: Callable[[], Any]) -> None:
        self._pool, self._call = pool, call
        self._answer: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the call, as a thread of the pool does."""
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 - the error is raised in the waiting caller
            self._error = error

    def exception(self) -> BaseException | None:
        """Run the call if necessary, and return its error."""
        self._pool.run()
        return self._error

    def result(self) -> Any:
        """Run the call if necessary, and return its result."""
        if (error := self.exception()) is not None:
            raise error
        return self._answer


class SteppedPool:
    """The part of ThreadPoolExecutor that the engine uses."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._waiting: list[_Call] = []
        self._is_over = False

    def submit(self, call: Callable[..., Any], *given: Any) -> _Call:
        if self._is_over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        one = _Call(self, lambda: call(*given))
        self._waiting.append(one)
        return one

    def run(self) -> None:
        """Run all submitted calls in a random order."""
        calls, self._waiting = self._waiting, []
        self._draw.shuffle(calls)
        for one in calls:
            one.run()

    def shutdown(self) -> None:
        """Run all submitted calls, and accept no more."""
        self.run()
        self._is_over = True
