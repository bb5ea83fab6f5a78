"""Where the rows of a batch go, and the log offsets and queue offsets that they were given."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.queues.routes import Route
from timerstore._engine.write.targets import Level


class Destination(NamedTuple):
    """A queue of a topic, and the fixed delay level on which the messages wait, if any."""

    real: Route
    level: Level | None = None

    @property
    def route(self) -> Route:
        """The queue of the appended records, except timers: the level's queue if there is one."""
        return self.real if self.level is None else self.level.route


class AppendedRows(NotCopyable):
    """Places of the rows of one batch in the log, by row.

    log_offsets: of the row's record, or of the first message with its id; -1: not appended.
    numbers: queue offset, or timer id of a timer; TS_DUPLICATE if the id was known.
    now_ms: time of the append.
    none: -1 for each row, where an array of "not applicable" is needed.
    """

    def __init__(self, count: int) -> None:
        rows = np.empty((4, count), np.int64)
        rows[:3] = -1
        self.log_offsets, self.numbers, self.none, self.now_ms = rows
        self.now_ms[:] = 0
        self._kept = ffi.from_buffer("int64_t[]", rows)
        self.native = self._kept, self._kept + count

    @property
    def duplicate(self) -> npt.NDArray[np.bool_]:
        """Rows that were not appended, because their ids were known."""
        found: npt.NDArray[np.bool_] = self.numbers == lib.TS_DUPLICATE
        return found
