"""Queue units as a log says them, stretch after stretch, without any file of a queue.

Cost:     one call of C for each 16,384 records.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.store_paths import Tree, can_have_queue
from timerstore._engine.log.survey import Files, Records
from timerstore._engine.queues.record_lookup import queues_named
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.storage.disk import Disk
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError

_BATCH = 16_384
Units = npt.NDArray[np.uint8]


class Run(NamedTuple):
    """Units of one queue that lie side by side."""

    route: Route
    offset: int
    """Queue offset of the first."""
    units: Units
    """Rows of 20 bytes."""


class LogUnits(Owner):
    """What dispatch would write."""

    def __init__(self, tree: Tree, files: Files, config: StoreConfig) -> None:
        self._files = files
        # Routes of a folder that is nowhere: they find no file, and make none.
        self.routes = Routes(Disk(), Tree(tree.side / "none"), config.queue_segment_bytes)
        delays = parse_level_delays(config.level_delays)
        self._delays, self._delay_count = ffi.new("int64_t[]", delays), len(delays)
        self._units = np.empty(_BATCH * UNIT_BYTES, np.uint8)
        self._indexes = np.empty(_BATCH, np.int32)
        self._offsets = np.empty(_BATCH, np.int64)

    def of(self, piece: Records, limit: int = 2**62) -> Iterator[Run]:
        """Give the units of a stretch's records below a log offset, a record's edge; queue by queue
        in each part of it.
        """
        if not len(piece.rows):
            return
        data = address(piece.data)
        segments = ffi.new("const uint8_t *[]", [data])
        view = ffi.new("ts_view *")
        view.segments = segments
        view.segment_bytes = self._files.segment_bytes
        view.first_segment = piece.begin // self._files.segment_bytes
        view.segment_count = 1
        last = int(piece.rows["log_offset"][-1] + piece.rows["size"][-1])
        view.end = min(last, limit)
        following = ffi.new("int64_t *", piece.begin)
        try:
            while following[0] < view.end:
                count = lib.ts_dispatch(
                    view, self.routes.native, self._delays, self._delay_count, following[0],
                    following, _BATCH, address(self._units),
                    ffi.from_buffer("int32_t[]", self._indexes),
                    ffi.from_buffer("int64_t[]", self._offsets), ffi.NULL, ffi.NULL, ffi.NULL,
                )  # fmt: skip
                if count == lib.TS_NEED_ROUTE:
                    self._make_routes(view, piece)
                elif count < 0:
                    break  # it read before: somebody writes to the file
                else:
                    yield from self._runs(int(count))
        finally:
            ffi.release(data)

    def _make_routes(self, view: Any, piece: Records) -> None:
        out, sizes = ffi.new("int64_t[2]"), ffi.new("int32_t[4]")
        need = int(view.need)
        lib.ts_record_at(view, need, out, sizes, out + 1, sizes + 1, sizes + 2, sizes + 3)
        at = need % self._files.segment_bytes
        record = bytes(piece.data[at : at + sizes[3]])
        topic, text = record[out[0] : out[0] + sizes[0]], record[out[1] : out[1] + sizes[1]]
        before = len(self.routes.by_index)
        for name, number in queues_named(topic, int(sizes[2]), text):
            if can_have_queue(name, number):
                self.routes.make(name, number, 0, persist=False)
        if len(self.routes.by_index) == before:
            raise CorruptError(
                "a record names no queue that can be made",
                where=f"{self._files.path(need)} offset {at}",
                wanted="a topic's name, and a number",
                got=f"{topic[:80]!r}, {sizes[2]}",
            )

    def _runs(self, count: int) -> Iterator[Run]:
        units = self._units[: count * UNIT_BYTES].reshape(count, UNIT_BYTES)
        for index in np.unique(self._indexes[:count]).tolist():
            rows = np.flatnonzero(self._indexes[:count] == index)
            offsets = self._offsets[rows]
            edges = np.flatnonzero(np.diff(offsets) != 1) + 1
            for part in np.split(np.arange(len(rows)), edges):
                route = self.routes.by_index[index]
                yield Run(route, int(offsets[part[0]]), units[rows[part]])
