"""What stands in the place of a pool of threads: calls side by side become one after the other.

Holds:    which goes first is drawn: a death finds any of them done, and any not begun. None is cut
          off amid another one, which would tell nothing new: shards have no file in common.
"""

from collections.abc import Callable
from random import Random
from typing import Any


class _Call:
    """One that was submitted; what became of it."""

    def __init__(self, pool: "SteppedPool", call: Callable[[], Any]) -> None:
        self._pool, self._call = pool, call
        self._answer: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """As a thread of the pool does."""
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
            self._error = error

    def exception(self) -> BaseException | None:
        """Wait for it."""
        self._pool.run()
        return self._error

    def result(self) -> Any:
        """Wait for it."""
        if (error := self.exception()) is not None:
            raise error
        return self._answer


class SteppedPool:
    """As much of ThreadPoolExecutor as is asked for."""

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
        """Everything that was submitted, in an order that is drawn."""
        calls, self._waiting = self._waiting, []
        self._draw.shuffle(calls)
        for one in calls:
            one.run()

    def shutdown(self) -> None:
        """What was submitted ends first."""
        self.run()
        self._is_over = True
