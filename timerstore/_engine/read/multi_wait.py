"""Wait for several pulls at once, of which any may have something, as `receive` does.

Threads:  the one caller's own; `ring` comes from any.
Holds:    who waits stands in every line, or in none.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore._engine.read.waiting_pull import Waits
from timerstore.errors import ClosedError

One = TypeVar("One")


class MultiWait(Owner, Generic[One]):
    """A call that may wait for any of its parts, without the waiting; its answer is a list."""

    def __init__(self, parts: Sequence[Waits[Any, Any]], take: Callable[[], list[One]]) -> None:
        self._parts = parts
        self._take = take
        self.within: Callable[[Callable[[], list[One]]], list[One]] = lambda take: take()
        """Runs a look: in a call of the store, where an event loop does the waiting."""

    def run_within(self, within: Callable[[Callable[[], list[One]]], list[One]]) -> Self:
        """Have each look run in this, as in a call of the store; return self."""
        self.within = within
        return self

    @property
    def left_s(self) -> float:
        """How long it may still wait, seconds."""
        return self._parts[0].left_s

    @property
    def is_closed(self) -> bool:
        """Whether a store was closed."""
        return any(one.is_closed for one in self._parts)

    def enter(self, ring: Callable[[], None]) -> bool:
        """Begin to wait; False where there is something to look at, or no time left."""
        entered: list[Waits[Any, Any]] = []
        try:
            for one in self._parts:
                if not one.enter(ring):
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
        """End of waiting, whatever ended it."""
        for one in self._parts:
            one.leave()

    def look(self) -> list[One]:
        """Take what there is now."""
        try:
            return self.within(self._take)
        except ClosedError:
            if self.is_closed:
                return []
            raise

    def is_done(self, got: list[One]) -> bool:
        """Whether this is the answer; else `enter` again."""
        return bool(got) or self.is_closed or self.left_s <= 0

    def final(self, got: list[One]) -> list[One]:
        """The answer."""
        return got

    def when_closed(self) -> list[One]:
        """The answer where all is over."""
        return []

    def end(self) -> None:
        """Leave the lines; whoever entered must come here at last."""
        for one in self._parts:
            one.end()
