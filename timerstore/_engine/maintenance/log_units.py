"""The queue units that the records of a log at rest require, without any file of a queue."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.store_paths import Tree, can_have_queue
from timerstore._engine.log.survey import Files, SurveyedRecords
from timerstore._engine.maintenance.store_view import UnitRun
from timerstore._engine.queues.record_lookup import queues_named
from timerstore._engine.queues.record_units import RecordUnits, UnitRows
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.storage.disk import Disk
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError


def runs_of(route: Route, offsets: Int64Array, units: UnitRows) -> Iterator[UnitRun]:
    """Split the units of one queue into runs of consecutive queue offsets."""
    edges = np.flatnonzero(np.diff(offsets) != 1) + 1
    for rows in np.split(np.arange(len(offsets)), edges):
        yield UnitRun(route, int(offsets[rows[0]]), units[rows])


class LogUnits(Owner):
    """Makes the units that dispatch would write."""

    def __init__(self, tree: Tree, files: Files, config: StoreConfig) -> None:
        self._files = files
        # Routes of a folder that does not exist: they find no file and make none.
        self.routes = Routes(Disk(), Tree(tree.side / "none"), config.queue_segment_bytes)
        self._units = RecordUnits(self.routes, config.level_delays)

    def of(self, piece: SurveyedRecords, limit: int = 2**62) -> Iterator[UnitRun]:
        """Return the units of records below a log offset, which is the edge of a record. They come
        batch by batch, and in each batch queue by queue.
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
        begin = piece.begin
        try:
            while begin < view.end:
                count = self._units.make(view, begin)
                if count == lib.TS_NEED_ROUTE:
                    self._make_routes(view, piece)
                    begin = self._units.reached
                elif count < 0:
                    break  # these records were read before: another process writes to the file
                else:
                    for index, offsets, units in self._units.by_queue(count):
                        yield from runs_of(self.routes.by_index[index], offsets, units)
                    begin = self._units.reached
        finally:
            ffi.release(data)

    def _make_routes(self, view: Any, piece: SurveyedRecords) -> None:
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
