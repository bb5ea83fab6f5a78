"""Old units: what was in the queues at opening says of tags and times, held against the log.

Data:     a queue unit's tags code, 8 of 20 bytes that have no checksum.
Threads:  any.
Holds:    (1) no unit passes over a message by its tags that was not looked at in this opening, by
          who wrote it or here; (2) a level's message is due as its record and the table say.
Fails:    CorruptError where a unit says other tags than its message.
Source:   docs/decisions/0006-index-and-queries.md.
"""

from collections.abc import Sequence
from typing import Any

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import queue_unit
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.routes import Route
from timerstore.errors import CorruptError


def old_among(route: Route, offset: int, count: int) -> int:
    """How many of so many units from an offset on were there at opening; the others come behind."""
    return max(0, min(count, route.queue.old_count - offset))


def check_tags(log: CommitLog, view: Any, route: Route, units: bytes, offset: int) -> int:
    """How many units, from the first on, say of tags what their messages do; 0: the first does not.
    Raises CorruptError where that one's message does not read. `offset`: its queue offset.
    """
    count, done = old_among(route, offset, len(units) // UNIT_BYTES), 0
    while done < count:
        got = lib.ts_old_units_check(
            view,
            route.native,
            ffi.from_buffer("uint8_t[]", units) + done * UNIT_BYTES,
            count - done,
            offset + done,
        )
        if got > 0:
            done += got
        elif got == lib.TS_CORRUPT and (done or view.fault == lib.TS_FAULT_NONE):
            return done
        else:
            log.segments.serve(view, got, "pull")
    return len(units) // UNIT_BYTES


def wrong_tags(route: Route, offset: int) -> CorruptError:
    """Give what is raised for a unit that says other tags than its message."""
    return CorruptError(
        "a queue unit says other tags than its message", where=route.queue.where(offset)
    )


class LevelUnits(Owner):
    """Reads the units of the levels' topic."""

    def __init__(self, log: CommitLog, delays: Sequence[int]) -> None:
        self._log = log
        self._delays = ffi.new("int64_t[]", list(delays))
        self._level_count = len(delays)

    def read(self, route: Route, offset: int, count: int) -> queue_unit.Units:
        """Give units [offset, offset + count), their tags codes the times when they are due."""
        data = bytearray(route.queue.read(offset, count))
        assert len(data) == count * UNIT_BYTES, "units below the count of a queue are there"
        if old := old_among(route, offset, count):
            self._mend(route, data, old, offset)
        return queue_unit.read(bytes(data))

    def _mend(self, route: Route, data: bytearray, count: int, offset: int) -> None:
        done, units = 0, ffi.from_buffer("uint8_t[]", data)
        with self._log.segments.view(self._log.written) as view:
            while done < count:
                got = lib.ts_old_units_repair(
                    view,
                    route.native,
                    units + done * UNIT_BYTES,
                    count - done,
                    offset + done,
                    self._delays,
                    self._level_count,
                )
                if got > 0:
                    done += got
                else:
                    self._log.segments.serve(view, got, "level")
