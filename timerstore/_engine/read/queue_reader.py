"""Read the messages between two queue offsets, all of them or those that pass a filter.

Statuses and next offsets are those of RocketMQ.

Thread safety: any thread.
Invariants:
    1. Only visible messages are read.
    2. The next offset is after every unit that was checked and excluded; one call checks a bounded
       number of units.
Raises: CorruptError if a unit or record fails its check. If a message before the damage was found,
it is returned, and the next call raises.
"""

from typing import Any

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.queues.routes import Route, check_tags, wrong_tags
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.page import Buffers, Page
from timerstore.errors import CorruptError
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Int32Array, Int64Array, MessageBatch, PullStatus

# --- queue reader ---


_BUFFER_BYTES_MAX = 64 << 20
_STEP_UNITS_MAX = 16_384  # 320 KiB of units read at a time
_NO_BUFFERS = Buffers()  # for pages without rows


class QueueReader(NotCopyable):
    """Reads the messages in the queues of one store."""

    def __init__(self, config: StoreConfig, log: LogReader) -> None:
        self.config = config
        self.log = log
        self.buffers = Buffers()

    @property
    def visible_end(self) -> int:
        """Return the log offset below which messages are visible."""
        if self.config.visibility == "written":
            return self.log.written
        return self.log.durable

    def read(
        self,
        route: Route,
        offset: int,
        max_count: int,
        min_offset: int,
        max_offset: int,
        message_filter: Filter | None = None,
        bytes_max: int | None = None,
    ) -> MessageBatch:
        """Return up to `max_count` messages of [offset, max_offset).

        `bytes_max`: of their bodies, and of their properties; a first message is read in any case.

        If none passes the filter, the status is NO_MATCHED_MESSAGE and the next offset is after the
        units that were checked.
        """
        count = min(max_count, max_offset - offset)
        reading = _Reading(self, route, offset, count, bytes_max)
        if message_filter is None:
            reading.all_of(count)
        else:
            units_max = max(max_count, message_filter.units_max)
            reading.matching(message_filter, count, min(max_offset, offset + units_max))
        status = PullStatus.FOUND
        if message_filter is not None and not reading.page.count:
            status = PullStatus.NO_MATCHED_MESSAGE
        return MessageBatch(
            topic=route.topic,
            queue_id=route.queue_id,
            status=status,
            next_offset=reading.next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
            body_bytes_max=self.config.message_bytes_max,
            **reading.page.columns(),
        )

    def store_times(self, route: Route, begin: int, end: int) -> Int64Array:
        """Return the store times of the messages [begin, end) of a queue, in ms since 1970."""
        units = route.queue.read(begin, end - begin)
        count, done = len(units) // UNIT_BYTES, 0
        times = np.empty(count, np.int64)
        native_units = ffi.from_buffer("uint8_t[]", units)
        native_times = ffi.from_buffer("int64_t[]", times)
        with self.log.segments.view(self.log.written) as view:
            while done < count:
                done += self.log.segments.call(
                    view,
                    "offset_at",
                    lib.ts_units_store_ms,
                    route.native,
                    native_units + done * UNIT_BYTES,
                    count - done,
                    begin + done,
                    native_times + done,
                    at_least=1,
                )
        return times


class _Reading(NotCopyable):
    """One read: its page and its next offset."""

    def __init__(
        self,
        reader: QueueReader,
        route: Route,
        offset: int,
        rows_max: int,
        bytes_max: int | None,
    ) -> None:
        limit = _BUFFER_BYTES_MAX
        self._bytes_max = limit if bytes_max is None else min(bytes_max, limit)
        self._reader = reader
        self._log = reader.log
        self._route = route
        self.page = Page(rows_max, reader.buffers)
        self.next_offset = offset

    def all_of(self, count: int) -> None:
        """Read the next `count` messages."""
        units = self._route.queue.read(self.next_offset, count)
        with self._log.segments.view(self._log.written) as view:
            self.next_offset += self._take(view, units, None, None)

    def matching(self, message_filter: Filter, step: int, end: int) -> None:
        """Check the units below `end`, `step` of them first, until the page is full."""
        step = min(step, _STEP_UNITS_MAX)
        with self._log.segments.view(self._log.written) as view:
            while self.next_offset < end and self.page.count < self.page.rows_max:
                units = self._units(view, message_filter, min(step, end - self.next_offset))
                if not units:
                    break
                positions = message_filter.candidates(units)
                done = self._take(view, units, positions, message_filter)
                if done < len(positions):  # the page is full, or the next message is damaged
                    self.next_offset += int(positions[done])
                    break
                self.next_offset += len(units) // UNIT_BYTES
                step = min(4 * step, _STEP_UNITS_MAX)

    def _units(self, view: Any, message_filter: Filter, count: int) -> bytes:
        """Return the next units whose tags codes are known to be right.

        Return none if the next unit is damaged and the page already has messages.
        """
        offset = self.next_offset
        units = self._route.queue.read(offset, count)
        if not message_filter.believes_units:
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
        self, view: Any, units: bytes, positions: Int32Array | None, message_filter: Filter | None
    ) -> int:
        """Read messages into the page while there is room, and keep those that match.

        Return how many units were read.

        positions: which of the units to read; None: all.
        """
        count = len(units) // UNIT_BYTES if positions is None else len(positions)
        native_units = ffi.from_buffer("uint8_t[]", units)
        chosen = ffi.NULL if positions is None else ffi.from_buffer("int32_t[]", positions)
        page, done = self.page, 0
        free_rows = page.rows_max - page.count
        likely = int(lib.ts_units_bytes(native_units, chosen, min(count, free_rows)))
        if not page.reserve(likely, self._bytes_max):
            page.reserve(self._bytes_max - page.used, self._bytes_max)
        while done < count and page.count < page.rows_max:
            first = done if positions is None else 0
            count_read = page.add(
                view,
                self._route.native,
                native_units + first * UNIT_BYTES,
                chosen if positions is None else chosen + done,
                min(count - done, page.rows_max - page.count),
                self.next_offset + first,
                self._reader.visible_end,
                self._reader.config.precision_ms,
            )
            if count_read > 0:
                done += count_read
                if message_filter is not None:
                    page.thin(message_filter.keep(*page.last_properties(count_read)))
            elif count_read == lib.TS_NEED_SPACE and self._makes_room(int(view.need)):
                continue
            elif page.count and count_read in {0, lib.TS_NEED_SPACE, lib.TS_CORRUPT}:
                break  # the next call begins with the message that could not be read
            elif count_read == 0:  # impossible without damage: only visible units are read
                at = done if positions is None else int(positions[done])
                raise CorruptError(
                    "a queue unit points past the end of the log",
                    where=self._route.queue.where(self.next_offset + at),
                )
            else:
                self._log.segments.provide(view, count_read, "pull")
        return done

    def _makes_room(self, need: int) -> bool:
        if self.page.reserve(need, self._bytes_max):
            return True
        return not self.page.count and self.page.reserve(need, need)  # a single message always fits


def empty_batch(
    route: Route, status: PullStatus, next_offset: int, min_offset: int, max_offset: int
) -> MessageBatch:
    """Return the answer of a pull without messages."""
    return MessageBatch(
        topic=route.topic,
        queue_id=route.queue_id,
        status=status,
        next_offset=next_offset,
        min_offset=min_offset,
        max_offset=max_offset,
        **Page(0, _NO_BUFFERS).columns(),
    )


# --- time seek ---
# Find the first queue offset that was stored at or after a time.
#
# Invariants:
#     1. The answer is the first message that was stored at the time or later; no message before it
#        was. This also holds where the wall clock was set back: store times then do not ascend, and
#        a binary search would pass over messages.
#     2. On store times that ascend it is the answer of a RocketMQ broker (its lower boundary),
#        compared with a 5.3.3 broker on its own store.
# Thread safety: any thread; two searches of one queue at once may both read a block.


PAST_END = 2**62
"""An offset without a message: a pull from it returns the bounds of the queue and reads nothing."""

BLOCK_UNITS = 16_384
"""Messages for which one latest store time is kept in memory: 8 bytes for some MB of log."""

_INT64_MAX = 2**63 - 1


def first_stored(reader: QueueReader, route: Route, low: int, high: int, time_ms: int) -> int:
    """Return the first offset in [low, high) stored at `time_ms` or later, or `high`.

    The first search of a queue reads the store time of each message before its answer. The latest
    store time of each block that was read to its end stays in memory, so a later search reads the
    block of its answer, and the messages that no search has read yet.
    """
    wanted_ms = max(-_INT64_MAX, min(time_ms, _INT64_MAX))
    latest_ms = route.queue.latest_store_ms
    first_block = low // BLOCK_UNITS
    for block in [one for one in tuple(latest_ms) if one < first_block]:
        latest_ms.pop(block, None)
    while low < high:
        block = low // BLOCK_UNITS
        block_end = (block + 1) * BLOCK_UNITS
        if latest_ms.get(block, _INT64_MAX) >= wanted_ms:
            end = min(high, block_end)
            times = reader.store_times(route, low, end)
            if end == block_end:
                latest_ms[block] = int(times.max())
            found = np.flatnonzero(times >= wanted_ms)
            if len(found):
                return low + int(found[0])
        low = min(high, block_end)
    return low
