"""`RecordUnits`: the consume queue units of a log's records, as dispatch writes them.

Readers and checks use it: it makes units in memory and writes none.

Thread safety: one thread for each object.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.queues.routes import Routes

_BATCH = 16_384

UnitRows = npt.NDArray[np.uint8]
"""Rows of 20 bytes."""


class RecordUnits(Owner):
    """Makes the units of one log, batch by batch."""

    def __init__(self, routes: Routes, level_delays: str) -> None:
        self._routes = routes
        delays = parse_level_delays(level_delays)
        self._delays, self._delay_count = ffi.new("int64_t[]", delays), len(delays)
        self._units = np.empty(_BATCH * UNIT_BYTES, np.uint8)
        self._indexes, self._offsets = np.empty(_BATCH, np.int32), np.empty(_BATCH, np.int64)
        self._following = ffi.new("int64_t *")

    @property
    def reached(self) -> int:
        """The log offset after the last record of the last batch."""
        return int(self._following[0])

    def make(self, view: Any, begin: int) -> int:
        """Make the units of the records from a log offset on; return how many, or a status of C."""
        return int(
            lib.ts_dispatch(
                view,
                self._routes.native,
                self._delays,
                self._delay_count,
                begin,
                self._following,
                _BATCH,
                address(self._units),
                ffi.from_buffer("int32_t[]", self._indexes),
                ffi.from_buffer("int64_t[]", self._offsets),
                ffi.NULL,
                ffi.NULL,
                ffi.NULL,
            )
        )

    def by_queue(self, count: int) -> Iterator[tuple[int, Int64Array, UnitRows]]:
        """Return the units of the last batch: (index of the route, queue offsets, units)."""
        indexes = self._indexes[:count]
        units = self._units[: count * UNIT_BYTES].reshape(count, UNIT_BYTES)
        order = np.argsort(indexes, kind="stable")
        edges = np.flatnonzero(np.diff(indexes[order])) + 1
        for part in np.split(order, edges) if count else ():
            yield int(indexes[part[0]]), self._offsets[part], units[part]
