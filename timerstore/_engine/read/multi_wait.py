"""Wait for several pulls or polls at once, until one of them has messages.

`receive` uses it for a topic and its retry topic, for several topics, and for all shards of a
directory.

Thread safety: one thread at a time; any thread may call `wake`.
Invariants:
    1. A waiting call has entered all of its parts or none.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Self, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore._engine.read.waiting_pull import Waits
from timerstore.errors import ClosedError

One = TypeVar("One")
Part = TypeVar("Part", bound=Waits[Any, Any])


def begin_parts(begins: Iterable[Callable[[], Part]]) -> list[Part]:
    """Begin each part. If one raises an error, end those before it."""
    begun: list[Part] = []
    try:
        for begin in begins:
            begun.append(begin())  # noqa: PERF401 - those before one that fails
    except BaseException:
        for one in begun:
            one.end()
        raise
    return begun


class MultiWait(Owner, Generic[One]):
    """A call that may wait for any of its parts; its answer is a list."""

    def __init__(self, parts: Sequence[Waits[Any, Any]], take: Callable[[], list[One]]) -> None:
        self._parts = parts
        self._take = take
        self.within: Callable[[Callable[[], list[One]]], list[One]] = lambda take: take()
        """Runs each look; for an event loop, as a call of the store."""

    def run_within(self, within: Callable[[Callable[[], list[One]]], list[One]]) -> Self:
        """Run each look in `within`, for example as a call of the store; return self."""
        self.within = within
        return self

    @property
    def left_s(self) -> float:
        """Return how many seconds it may still wait."""
        return self._parts[0].left_s

    @property
    def is_closed(self) -> bool:
        """Return whether a store was closed."""
        return any(one.is_closed for one in self._parts)

    def enter(self, wake: Callable[[], None]) -> bool:
        """Begin to wait; return False if there is something to read or no time left."""
        entered: list[Waits[Any, Any]] = []
        try:
            for one in self._parts:
                if not one.enter(wake):
                    break
                entered.append(one)
            else:
                entered = []
                return True
        finally:
            for one in entered:
                one.leave()
        return False

    def leave(self) -> None:
        """Stop waiting, for whatever reason."""
        for one in self._parts:
            one.leave()

    def look(self) -> list[One]:
        """Take the messages that there are now."""
        try:
            return self.within(self._take)
        except ClosedError:
            if self.is_closed:
                return []
            raise

    def is_done(self, fetched: list[One]) -> bool:
        """Return whether this is the answer; if not, `enter` again."""
        return bool(fetched) or self.is_closed or self.left_s <= 0

    def final(self, fetched: list[One]) -> list[One]:
        """Return the answer."""
        return fetched

    def when_closed(self) -> list[One]:
        """Return the answer of a closed store."""
        return []

    def end(self) -> None:
        """End every part; every caller that entered must call this in the end."""
        for one in self._parts:
            one.end()
