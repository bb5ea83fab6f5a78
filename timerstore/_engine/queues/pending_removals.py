"""Track timers that were cancelled or rescheduled at a log offset that readers do not see yet.

    the log:   ... source of 7 ...  V ... delete record of 7 | source of 9 ...  E

A reader that sees the log below V must report 7 as pending, although its state is already
cancelled.

Thread safety: any thread.
Locking: the append lock. `note` runs in the critical section that appends the record; `reading`
    takes the lock when it begins and when it ends.
Invariants:
    1. `hidden` returns exactly the timers that were removed at or after V.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from timerstore._engine.base.native import lib
from timerstore._engine.log.commit_log import CommitLog

Removal = tuple[int, int]
"""Log offset of the record that removed a timer, and the timer's id."""


class RemovalsReading:
    """A reader of the pending timers as of `visible_end`."""

    def __init__(self, visible_end: int, removals: list[Removal]) -> None:
        self.visible_end = visible_end
        self._removals = removals  # `note` adds to it

    def hidden(self) -> set[int]:
        """Return ids of timers that were pending at `visible_end` and were removed since."""
        return {timer_id for at, timer_id in list(self._removals) if at >= self.visible_end}


class Removals:
    """The recent removals of one store."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._recent: deque[Removal] = deque()  # by log offset; not needed below `durable`
        self._readers: list[list[Removal]] = []

    def note(self, timer_id: int, log_offset: int) -> None:
        """Record that a timer was removed by a record at or after a log offset.

        Call it in the critical section that appends the record.
        """
        self.note_many([(log_offset, timer_id)])

    def note_many(self, removals: list[Removal]) -> None:
        """Record several removals, in the order of their log offsets; see `note`."""
        durable = self._log.durable
        while self._recent and self._recent[0][0] < durable:
            self._recent.popleft()
        self._recent.extend(removals)
        for reader in self._readers:
            reader.extend(removals)

    def noting(self, call: Callable[..., int], timer_id: int) -> Callable[..., int]:
        """Wrap a C function that appends a removal of a timer, so that the removal is recorded."""

        def noted(native: Any, *arguments: Any) -> int:
            log_offset = self._log.end
            got = call(native, *arguments)
            if got == lib.TS_PENDING:
                self.note(timer_id, log_offset)
            return got

        return noted

    @contextmanager
    def reading(self, visible_end: Callable[[], int]) -> Iterator[RemovalsReading]:
        """Register a reader within the context; removals are recorded for it.

        visible_end: returns the log offset up to which the reader sees the log.
        """
        with self._log.lock:
            removals = list(self._recent)
            self._readers.append(removals)
            reading = RemovalsReading(visible_end(), removals)
        try:
            yield reading
        finally:
            with self._log.lock:
                self._readers = [one for one in self._readers if one is not removals]
