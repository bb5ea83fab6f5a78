"""Check units that existed when the store was opened against the log.

The tags code of a unit takes 8 of its 20 bytes and has no checksum. For a level message these bytes
hold the due time. So a unit that this opening did not write is compared with its message.

Thread safety: any thread.
Invariants:
    1. A filter skips a message by its unit's tags code only if this opening wrote or checked the
       unit.
    2. A level message is due at the time that its record and the table of delays give.
Raises: CorruptError if the tags code of a unit differs from its message's tags.
See also: docs/decisions/0006-index-and-queries.md.
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


def old_unit_count(route: Route, offset: int, count: int) -> int:
    """Return how many of `count` units from a queue offset existed at opening: the first ones."""
    return max(0, min(count, route.queue.old_count - offset))


def check_tags(log: CommitLog, view: Any, route: Route, units: bytes, offset: int) -> int:
    """Return how many units from the first on have the tags code of their messages.

    offset: the queue offset of the first unit.

    Returns 0 if the first unit differs. Raises CorruptError if its message cannot be read.
    """
    count, done = old_unit_count(route, offset, len(units) // UNIT_BYTES), 0
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
    """Return the error for a unit whose tags code differs from its message's tags."""
    return CorruptError(
        "a queue unit has other tags than its message", where=route.queue.where(offset)
    )


class LevelUnits(Owner):
    """Reads units of the level topic."""

    def __init__(self, log: CommitLog, delays: Sequence[int]) -> None:
        self._log = log
        self._delays = ffi.new("int64_t[]", list(delays))
        self._level_count = len(delays)

    def read(self, route: Route, offset: int, count: int) -> queue_unit.Units:
        """Return units [offset, offset + count), with the due times in place of tags codes.

        The units must be below the queue's count.
        """
        data = bytearray(route.queue.read(offset, count))
        assert len(data) == count * UNIT_BYTES, "units below the count of a queue exist"
        if old := old_unit_count(route, offset, count):
            self._correct(route, data, old, offset)
        return queue_unit.read(bytes(data))

    def _correct(self, route: Route, data: bytearray, count: int, offset: int) -> None:
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
