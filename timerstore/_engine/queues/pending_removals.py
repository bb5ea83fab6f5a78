"""Removals: timers that were cancelled or rescheduled where not everybody may see it yet.

    the log:   ... source of 7 ...  V ... delete record of 7 | source of 9 ...  E
    who sees what lies below V sees 7 wait, though its state says cancelled since E

Threads:  any.
Locks:    the append lock: `note` runs in the hold that appends, `reading` takes it at both ends.
Holds:    what `hidden` gives is all that was removed at or behind V, and nothing that was not.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from timerstore._engine.base.native import lib
from timerstore._engine.log.commit_log import CommitLog

Removal = tuple[int, int]
"""Where the log says that a timer waits no more, and its id."""


class Reading:
    """One who reads what lies below `visible_end`."""

    def __init__(self, visible_end: int, removals: list[Removal]) -> None:
        self.visible_end = visible_end
        self._removals = removals  # `note` adds to it

    def hidden(self) -> set[int]:
        """Ids of what waits as of `visible_end`, whatever its state is by now."""
        return {timer_id for at, timer_id in list(self._removals) if at >= self.visible_end}


class Removals:
    """Those of one store."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._recent: deque[Removal] = deque()  # by log offset; those below `durable` may go
        self._readers: list[list[Removal]] = []

    def note(self, timer_id: int, log_offset: int) -> None:
        """It waits no more: in the hold that says so in the log, at this offset or behind."""
        self.note_many([(log_offset, timer_id)])

    def note_many(self, some: list[Removal]) -> None:
        """The same of several, by log offset."""
        durable = self._log.durable
        while self._recent and self._recent[0][0] < durable:
            self._recent.popleft()
        self._recent.extend(some)
        for reader in self._readers:
            reader.extend(some)

    def noting(self, call: Callable[..., int], timer_id: int) -> Callable[..., int]:
        """The same call of C, which appends what removes a timer, noted where it did."""

        def noted(native: Any, *arguments: Any) -> int:
            log_offset = self._log.end
            got = call(native, *arguments)
            if got == lib.TS_WAITING:
                self.note(timer_id, log_offset)
            return got

        return noted

    @contextmanager
    def reading(self, visible_end: Callable[[], int]) -> Iterator[Reading]:
        """Begin to read; what is removed meanwhile is noted for the reader."""
        with self._log.lock:
            removals = list(self._recent)
            self._readers.append(removals)
            reading = Reading(visible_end(), removals)
        try:
            yield reading
        finally:
            with self._log.lock:
                self._readers = [one for one in self._readers if one is not removals]
