"""Reading: the messages between two queue offsets, all of them or those that a filter lets through.

Threads:  any.
Holds:    (1) what is read is visible; (2) the next offset is behind every unit that was looked at
          and not given, and one call looks at a bounded number of them.
Fails:    CorruptError where a unit or record does not check. Of damage behind the first message
          that is given only the next call speaks.
Source:   statuses and next offsets are RocketMQ's.
"""

from typing import Any

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.queue_unit import read as read_units
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.old_units import check_tags, wrong_tags
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.page import Page
from timerstore._engine.read.page_buffers import Buffers
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError
from timerstore.messages import Int32Array, Int64Array, MessageBatch, PullStatus

_BUFFER_BYTES_MAX = 64 << 20
_STEP_UNITS_MAX = 16_384  # 320 KiB of units read at a time
_NONE = Buffers()  # of pages without rows


class Reader(Owner):
    """Reads the messages of one store's queues."""

    def __init__(self, config: StoreConfig, log: CommitLog) -> None:
        self._config = config
        self._log = log
        self.buffers = Buffers()

    @property
    def visible_end(self) -> int:
        """Log offset below which messages may be seen."""
        if self._config.visibility == "written":
            return self._log.written
        return self._log.durable

    def read(
        self,
        route: Route,
        offset: int,
        max_count: int,
        min_offset: int,
        max_offset: int,
        wanted: Filter | None = None,
    ) -> MessageBatch:
        """Give up to `max_count` messages from `offset`, below `max_offset`, on.

        Without any that `wanted` lets through: NO_MATCHED_MESSAGE, and where to go on.
        """
        count = min(max_count, max_offset - offset)
        work = _Reading(self, self._log, self._config, route, offset, count)
        if wanted is None:
            work.all_of(count)
        else:
            units_max = max(max_count, wanted.units_max)
            work.matching(wanted, count, min(max_offset, offset + units_max))
        status = PullStatus.FOUND
        if wanted is not None and not work.page.count:
            status = PullStatus.NO_MATCHED_MESSAGE
        return MessageBatch(
            topic=route.topic,
            queue_id=route.queue_id,
            status=status,
            next_offset=work.next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
            body_bytes_max=self._config.message_bytes_max,
            **work.page.columns(),
        )

    def store_times(self, route: Route, begin: int, end: int) -> Int64Array:
        """Give when the messages [begin, end) of a queue were stored, epoch ms."""
        units = route.queue.read(begin, end - begin)
        count, done = len(units) // UNIT_BYTES, 0
        times = np.empty(count, np.int64)
        native_units = ffi.from_buffer("uint8_t[]", units)
        native_times = ffi.from_buffer("int64_t[]", times)
        with self._log.segments.view(self._log.written) as view:
            while done < count:
                got = lib.ts_units_store_ms(
                    view,
                    route.native,
                    native_units + done * UNIT_BYTES,
                    count - done,
                    begin + done,
                    native_times + done,
                )
                if got > 0:
                    done += got
                else:
                    self._log.segments.serve(view, got, "offset_at")
        return times


class _Reading:
    """One read: a page, and how far it has come."""

    def __init__(
        self,
        reader: Reader,
        log: CommitLog,
        config: StoreConfig,
        route: Route,
        offset: int,
        rows_max: int,
    ) -> None:
        self._reader = reader
        self._log = log
        self._config = config
        self._route = route
        self.page = Page(rows_max, reader.buffers)
        self.next_offset = offset

    def all_of(self, count: int) -> None:
        """Read the next `count` messages."""
        units = self._route.queue.read(self.next_offset, count)
        with self._log.segments.view(self._log.written) as view:
            self.next_offset += self._take(view, units, None, None)

    def matching(self, wanted: Filter, step: int, end: int) -> None:
        """Look at the units below `end`, first at `step` of them, until the page is full."""
        step = min(step, _STEP_UNITS_MAX)
        with self._log.segments.view(self._log.written) as view:
            while self.next_offset < end and self.page.free_rows:
                units = self._units(view, wanted, min(step, end - self.next_offset))
                if not units:
                    break
                positions = wanted.candidates(units)
                done = self._take(view, units, positions, wanted)
                if done < len(positions):  # the page is full, or damage comes
                    self.next_offset += int(positions[done])
                    break
                self.next_offset += len(units) // UNIT_BYTES
                step = min(4 * step, _STEP_UNITS_MAX)

    def _units(self, view: Any, wanted: Filter, count: int) -> bytes:
        """Give the next units whose tags may be believed; none: damage comes, behind what is
        given.
        """
        offset = self.next_offset
        units = self._route.queue.read(offset, count)
        if not wanted.believes_units:
            return units
        try:
            count = check_tags(self._log, view, self._route, units, offset)
        except CorruptError:
            if not self.page.count:
                raise
            return b""
        if not count and not self.page.count:
            raise wrong_tags(self._route, offset)
        return units[: count * UNIT_BYTES]

    def _take(
        self, view: Any, units: bytes, positions: Int32Array | None, wanted: Filter | None
    ) -> int:
        """Read the messages at some positions, all where it is None, as far as there is room for
        them, and keep what matches; how many were looked at.
        """
        count = len(units) // UNIT_BYTES if positions is None else len(positions)
        likely = _record_bytes(units, positions, self.page.free_rows)
        if not self.page.reserve(likely, _BUFFER_BYTES_MAX):
            self.page.reserve(_BUFFER_BYTES_MAX - self.page.used, _BUFFER_BYTES_MAX)
        done = 0
        while done < count and self.page.free_rows:
            got = self._add(view, units, positions, done, min(count - done, self.page.free_rows))
            if got > 0:
                done += got
                if wanted is not None:
                    self.page.thin(wanted.keep(*self.page.texts(got)))
            elif got == lib.TS_NEED_SPACE and self._makes_room(int(view.need)):
                continue
            elif self.page.count and got in {0, lib.TS_NEED_SPACE, lib.TS_CORRUPT}:
                break  # the next call begins with what did not go well
            elif got == 0:  # only units below one that is visible are read
                at = done if positions is None else int(positions[done])
                raise CorruptError(
                    "a queue unit points beyond the messages that are there",
                    where=self._route.queue.where(self.next_offset + at),
                )
            else:
                self._log.segments.serve(view, got, "pull")
        return done

    def _makes_room(self, need: int) -> bool:
        if self.page.reserve(need, _BUFFER_BYTES_MAX):
            return True
        return not self.page.count and self.page.reserve(need, need)  # one alone always fits

    def _add(
        self, view: Any, units: bytes, positions: Int32Array | None, begin: int, count: int
    ) -> int:
        offset = self.next_offset
        if positions is None:
            units, offset = units[begin * UNIT_BYTES :], offset + begin
            chosen = ffi.NULL
        else:
            chosen = ffi.from_buffer("int32_t[]", positions[begin:])
        return self.page.add(
            view,
            self._route.native,
            units,
            chosen,
            count,
            offset,
            self._reader.visible_end,
            self._config.precision_ms,
        )


def _record_bytes(units: bytes, positions: Int32Array | None, count: int) -> int:
    """Give how many bytes the first `count` records have, by what their units say."""
    sizes = read_units(units)["size"]
    chosen = sizes if positions is None else sizes[positions]
    return max(0, int(chosen[:count].sum(dtype=np.int64)))  # a damaged one may be negative


def empty_batch(
    route: Route, status: PullStatus, next_offset: int, min_offset: int, max_offset: int
) -> MessageBatch:
    """Give the answer of a pull that found nothing to read."""
    return MessageBatch(
        topic=route.topic,
        queue_id=route.queue_id,
        status=status,
        next_offset=next_offset,
        min_offset=min_offset,
        max_offset=max_offset,
        **Page(0, _NONE).columns(),
    )
