"""Read the pending messages from the wheel, the far wheel and the records that are not linked yet.

The cost grows with the number of pending messages, not with the size of the log.

Thread safety: any thread may call it.
Locking: takes the wheel's lock while it reads slots.
Invariants:
    1. Every message that was pending when a call began, and still is, is returned once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import queue_unit
from timerstore._engine.format.handle import Handle, encode
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.log.timer_states import TimerStates, which_wait
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch, DispatchedQueues, dispatch_all
from timerstore._engine.queues.record_lookup import (
    is_of_topic,
    real_routes,
    record_fields,
    scan_into,
)
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.fair_queue import FairQueue
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import (
    CHAINED,
    DUE,
    REQUEST,
    Int64Array,
    Records,
    due_within,
    slots_of,
)
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import NO_SLOT, Wheel
from timerstore.errors import GoneError
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig
from timerstore.types.messages import parse_properties
from timerstore.types.reports import PendingTimer

# --- pending ---


_BATCH = 16_384
_FEW = 64
_NO_ROLL = 2**62  # a `loaded_slot` so high that no entry counts as one that rolls


class PendingReader(ABC):
    """Reads the pending messages of one store."""

    def __init__(
        self,
        config: StoreConfig,
        log: LogReader,
        states: TimerStates,
        routes: Routes,
        dispatch: DispatchedQueues,
        timer_route: Route,
        store_id: int,
    ) -> None:
        self._config = config
        self._timer_route = timer_route
        self._store_id = store_id
        self._log = log
        self._states = states
        self._routes = routes
        self._dispatch = dispatch

    def read(
        self, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Yield messages that are due in [begin_ms, end_ms), in order of (due time, put order)."""
        entries = due_within(self.entries(), begin_ms, end_ms)
        if topic is not None:
            entries = self._of_topic(entries, topic)
        for entry in entries:
            one = self._describe_surely(entry)
            if one is not None and (topic is None or one.topic == topic):
                yield one

    def _of_topic(self, entries: Records, topic: str) -> Records:
        """Return the entries of a topic, or all entries if retention moved one of them."""
        try:
            found = real_routes(
                self._log,
                self._routes,
                entries["log_offset"],
                entries["size"],
                is_level=False,
            )
        except GoneError:
            return entries
        return entries[is_of_topic(self._routes, found, topic)]

    def _describe_surely(self, entry: Records) -> PendingTimer | None:
        """Describe an entry, from its present copy if retention has moved it."""
        while True:
            try:
                return self.describe(entry)
            except GoneError:
                now = self.entries()
                found = now[now["id"] == entry["id"]]
                if not len(found):
                    return None
                entry = found[0]

    @abstractmethod
    def parts(self) -> Iterator[Records]:
        """Yield every pending message as a due entry, in parts, unordered.

        A message that rolls during the call may occur twice.
        """

    def entries(self) -> Records:
        """Return every pending message as a due entry, in order of (due time, id)."""
        parts = list(self.parts())
        entries: Records = np.concatenate(parts) if parts else np.empty(0, DUE)
        # A message that is rolling may be in its old slot and in its new one.
        entries = entries[np.lexsort((entries["log_offset"], entries["id"]))]
        newest = np.append(np.diff(entries["id"]) != 0, True)[: len(entries)]
        entries = entries[newest]
        in_order: Records = entries[np.lexsort((entries["id"], entries["due_ms"]))]
        return in_order

    def _backlog(self, begin: int) -> Iterator[Records]:
        """Yield pending records of the timer topic from a queue offset on, as due entries."""
        dispatch_all(self._log, self._dispatch)
        queue = self._timer_route.queue
        while begin < queue.count:
            units = queue.read(begin, _BATCH)
            count = len(units) // 20
            requests = np.empty(count, REQUEST)
            done = 0
            with self._log.segments.view(self._log.written) as view:
                while done < count:
                    done += self._log.segments.call(
                        view,
                        "pending",
                        lib.ts_timer_requests,
                        ffi.from_buffer("uint8_t[]", units) + 20 * done,
                        count - done,
                        begin + done,
                        self._states.native,
                        self._store_id,
                        self._config.precision_ms,
                        ffi.from_buffer("ts_request[]", requests) + done,
                    )
            begin += count
            waits = which_wait(self._states.native, requests["id"])
            yield _as_due(requests[waits & (requests["flags"] == 0)])

    def describe(self, entry: Records) -> PendingTimer:
        """Describe a due entry.

        Raises:
            GoneError: retention has removed its record.
        """
        log = self._log
        with log.segments.view(log.written) as view:
            _, _, text = record_fields(log.segments, view, int(entry["log_offset"]))
        properties = parse_properties(text)
        topic, key = properties.get("REAL_TOPIC", ""), properties.get("UNIQ_KEY", "")
        timer_id = int(entry["id"])
        out_ms = int(properties.get("TIMER_OUT_MS", "0"))
        handle = encode(Handle(topic, self._config.broker_name, out_ms + 1, key, timer_id))
        return PendingTimer(
            message_id=key,
            topic=topic,
            queue_id=int(properties.get("REAL_QID", "0")),
            due_ms=int(entry["due_ms"]),
            timer_id=timer_id,
            log_offset=int(entry["log_offset"]),
            handle=handle,
        )


class WheelPending(PendingReader):
    """Reads the pending messages of an open store, most of them from its wheel."""

    def __init__(
        self,
        core: Core,
        dispatch: DispatchedQueues,
        wheel: Wheel,
        timer_log: TimerLog,
        far: FarWheel,
        open_slot: OpenSlot,
    ) -> None:
        super().__init__(
            core.config,
            core.log,
            core.states,
            core.routes,
            dispatch,
            core.timer_route,
            core.store_id,
        )
        self._open_slot = open_slot
        self._timer_log = timer_log
        self._wheel = wheel
        self._far = far

    def parts(self) -> Iterator[Records]:
        """Yield every pending message as a due entry, in parts, unordered.

        A message that rolls during the call may occur twice.
        """
        linked_offset = yield from self._linked(NO_SLOT)
        yield from self._backlog(linked_offset)

    def unloaded(self, last_slot: int) -> Iterator[Records]:
        """Yield the pending messages of slots that are not completely loaded, as due entries.

        These are slots up to `last_slot` and slots that are being read. The messages of all other
        slots up to there are in memory.
        """
        last_slot = max(last_slot, self._open_slot.highest_slot(last_slot))
        yield from self._linked(last_slot + 1, has_loaded=False)

    def _linked(self, end: int, *, has_loaded: bool = True) -> Generator[Records, None, int]:
        """Yield the pending messages of slots below `end`, as due entries; return `linked_offset`.

        All are of the same point in time; the far wheel's units are read later. If not
        `has_loaded`, slots that are completely loaded are left out.
        """
        chained: list[Records] = []
        with ExitStack() as held:
            with self._wheel.lock:
                linked_offset = self._timer_log.linked_offset
                at = self._open_slot.replay_slot(self._wheel.read_slot)
                if not has_loaded:
                    at = max(at, self._open_slot.loaded_slot)
                while (slot := self._wheel.next_used(at, end)) is not None:
                    chained.extend(self.chain(slot))
                    at = slot + 1
                far = self._far.table().rows
                far = far[far["slot"] * self._far.width < end]
                view = held.enter_context(self._far.view())
            for part in _gathered(chained):
                yield self._due(part)
            for slot, newest, *_ in far.tolist():
                for part in self._far.walk(view, slot, newest):
                    yield self._due_far(part)
        return linked_offset

    def _due_far(self, units: Records) -> Records:
        count = lib.ts_far_pending(
            self._states.native,
            self._log.segments.begin,
            ffi.from_buffer("ts_far_unit[]", units),
            len(units),
        )
        return _as_due(units[:count])

    def chain(self, slot: int) -> Iterator[Records]:
        """Yield a slot's units, newest first, in parts."""
        timer_log = self._timer_log
        pos = ffi.new("int64_t *", -1)
        size = _FEW  # most chains are short, and there may be a million of them
        with timer_log.segments.view(timer_log.end) as view:
            while True:
                part = np.empty(size, CHAINED)
                count = timer_log.segments.call(
                    view,
                    "timer log",
                    lib.ts_wheel_load,
                    self._wheel.native,
                    slot,
                    pos,
                    size,
                    ffi.from_buffer("ts_chained[]", part),
                )
                yield part[:count]
                size = _BATCH
                if pos[0] < 0:
                    return

    def at_slot(self, slot: int) -> Iterator[Records]:
        """Yield the units of a slot's chain, pending or not, and pending records not linked yet."""
        with self._wheel.lock:
            linked = self._timer_log.linked_offset
            chained = list(self.chain(slot))
        yield from chained
        for part in self._backlog(linked):
            units = np.zeros(len(part), CHAINED)
            units["log_offset"], units["size"] = part["log_offset"], part["size"]
            yield units

    def _due(self, chained: Records) -> Records:
        log = self._log
        due = np.empty(len(chained), DUE)
        kept = done = 0
        with log.segments.view(log.write_out()) as view:
            while done < len(chained):
                done += log.segments.call(
                    view,
                    "pending",
                    lib.ts_due_load,
                    self._states.native,
                    self._store_id,
                    self._config.precision_ms,
                    _NO_ROLL,
                    ffi.from_buffer("ts_chained[]", chained) + done,
                    len(chained) - done,
                    ffi.from_buffer("ts_due[]", due) + kept,
                )
                kept += int(view.need)
        return due[:kept]


def _gathered(parts: list[Records]) -> Iterator[Records]:
    """Yield the same units in larger parts, because most slots have only a few."""
    begin = count = 0
    for end, part in enumerate(parts, 1):
        count += len(part)
        if count >= _BATCH or end == len(parts):
            yield np.concatenate(parts[begin:end])
            begin, count = end, 0


def _as_due(requests: Records) -> Records:
    due = np.zeros(len(requests), DUE)
    for name in ("id", "due_ms", "log_offset", "size"):
        due[name] = requests[name]
    return due


# --- backlog ---
# Measure how far the timer lags, and count pending messages by due time.
#
# Every number is exact while no message moves. A message that moves during a call is counted either
# before or after its move. The counters in wheel slots are not used, because they do not account
# for rolled messages. The cost of `dequeue` grows with the number of late messages. The cost of
# `distribution` and `congestion` grows with the number of pending messages.
#
# Thread safety: any thread may call it.
# Locking: takes the wheel's lock while it reads slots.


BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Upper bounds of the timing distribution, in seconds from now; the same as RocketMQ's."""


class Lag(NamedTuple):
    """The lag of one side of the timer: how many messages, and the age of the oldest."""

    messages: int
    ms: int


class PendingCounts:
    """Counts the pending messages of one store by due time."""

    def __init__(
        self,
        clock: Clock,
        precision_ms: int,
        pending: PendingReader,
        on_levels: Callable[[], Int64Array],
    ) -> None:
        """`on_levels` returns the due times of pending messages on delay levels."""
        self._clock = clock
        self._precision_ms = precision_ms
        self._pending = pending
        self._on_levels = on_levels

    def distribution(self) -> dict[int | None, int]:
        """Return how many messages are due in each interval of BOUNDS_S.

        The key is the upper bound in seconds, or None for messages that are due later. Messages on
        delay levels are included.
        """
        due_ms = np.concatenate([self._pending.entries()["due_ms"], self._on_levels()])
        ahead_ms = due_ms - self._clock.now_ms
        places = np.searchsorted(np.array(BOUNDS_S) * 1000, ahead_ms, side="left")
        counts = np.bincount(places, minlength=len(BOUNDS_S) + 1).tolist()
        return dict(zip((*BOUNDS_S, None), counts, strict=True))

    def congestion(self) -> dict[int, int]:
        """Return the number of pending messages by the start of their slot in ms, ascending.

        Slots without pending messages are left out. Messages on delay levels have no slot.
        """
        due_ms = np.ascontiguousarray(self._pending.entries()["due_ms"])
        slots, counts = np.unique(slots_of(due_ms, self._precision_ms), return_counts=True)
        return dict(zip((slots * self._precision_ms).tolist(), counts.tolist(), strict=True))


class Backlog:
    """Measures the timer of one store."""

    def __init__(
        self,
        core: Core,
        dispatch: Dispatch,
        timer_log: TimerLog,
        open_slot: OpenSlot,
        pending: WheelPending,
        fair_queue: FairQueue,
    ) -> None:
        self._precision_ms = core.config.precision_ms
        self._clock = core.clock
        self._timer_route = core.timer_route
        self._states = core.states
        self._log = core.log
        self._routes = core.routes
        self._pending = pending
        self._fair_queue = fair_queue
        self._open_slot = open_slot
        self._timer_log = timer_log
        self._dispatch = dispatch

    def enqueue(self) -> Lag:
        """Return the lag of linking: records of the timer topic that are not linked yet.

        If the oldest of them has not been dispatched either, the age is that of the oldest record
        that has not been dispatched.
        """
        queue = self._timer_route.queue
        linked = self._timer_log.linked_offset
        count = int(self._timer_route.native.next_offset) - linked
        if count <= 0:
            return Lag(0, 0)
        offset = self._dispatch.dispatched
        if linked < queue.count:
            offset = int(queue_unit.read(queue.read(linked, 1))["log_offset"][0])
        return Lag(count, max(0, self._clock.now_ms - self.store_ms(offset)))

    def store_ms(self, offset: int) -> int:
        """Return when the record at a log offset was stored, or now if there is no record yet."""
        segments = self._log.segments
        row = np.empty(1, SCAN_DTYPE)
        with segments.view(self._log.write_out()) as view:
            found, _ = scan_into(
                row, segments, view, self._routes, self._clock, self._precision_ms, offset, "stats"
            )
        return int(found["store_ms"][0]) if len(found) else self._clock.now_ms

    def dequeue(self) -> Lag:
        """Return the lag of delivery: linked messages that are due and not delivered yet.

        The places are read in the order in which a message passes them. A message that moves on
        during the call is therefore found twice, and counted once. A message that rolls back onto
        the wheel during the call may be missed.
        """
        now_ms = self._clock.now_ms
        ids, first_ms = [np.empty(0, np.int64)], now_ms
        for entries in self._loading(now_ms):
            late = entries[entries["due_ms"] <= now_ms]
            late = late[which_wait(self._states.native, late["id"])]
            ids.append(late["id"])
            first_ms = min(first_ms, int(late["due_ms"].min(initial=first_ms)))
        return Lag(len(np.unique(np.concatenate(ids))), now_ms - first_ms)

    def _loading(self, now_ms: int) -> Iterator[Records]:
        """Yield messages that may be due, from slots, the open slot and the fair queue."""
        yield from self._pending.unloaded(now_ms // self._precision_ms)
        yield from self._open_slot.by(now_ms)
        yield from self._fair_queue.held()
