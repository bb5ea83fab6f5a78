"""Read the pending messages from the wheel, the far wheel and the records that are not linked yet.

The cost grows with the number of pending messages, not with the size of the log.

Thread safety: any thread may call it.
Locking: takes the wheel's lock while it reads slots.
Invariants:
    1. Every message that was pending when a call began, and still is, is returned once.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.handle import Handle, encode
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import is_of_topic, real_routes, record_fields
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import CHAINED, DUE, REQUEST, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates, which_wait
from timerstore._engine.timer.wheel import NO_SLOT, Wheel
from timerstore.config import StoreConfig
from timerstore.errors import GoneError
from timerstore.messages import parse_properties
from timerstore.reports import PendingTimer

_BATCH = 16_384
_FEW = 64
_NO_ROLL = 2**62  # a `loaded_slot` so high that no entry counts as one that rolls


class PendingReader:
    """Reads the pending messages of one store."""

    def __init__(
        self,
        config: StoreConfig,
        open_slot: OpenSlot,
        timer_log: TimerLog,
        wheel: Wheel,
        log: CommitLog,
        states: TimerStates,
        routes: Routes,
        far: FarWheel,
        dispatch: Dispatch,
        timer_route: Route,
        store_id: int,
    ) -> None:
        self._config = config
        self._timer_route = timer_route
        self._store_id = store_id
        self._open_slot = open_slot
        self._timer_log = timer_log
        self._wheel = wheel
        self._log = log
        self._states = states
        self._routes = routes
        self._far = far
        self._dispatch = dispatch

    def read(
        self, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Yield messages that are due in [begin_ms, end_ms), in order of (due time, put order)."""
        entries = self.entries()
        if begin_ms is not None:
            entries = entries[entries["due_ms"] >= begin_ms]
        if end_ms is not None:
            entries = entries[entries["due_ms"] < end_ms]
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

    def parts(self) -> Iterator[Records]:
        """Yield every pending message as a due entry, in parts, unordered.

        A message that rolls during the call may occur twice.
        """
        with ExitStack() as held:
            chained, far, linked_offset = self._chained(NO_SLOT, held)
            for part in _gathered(chained):
                yield self._due(part)
            for part in far:
                yield self._due_far(part)
        yield from self._backlog(linked_offset)

    def unloaded(self, last_slot: int) -> Iterator[Records]:
        """Yield the pending messages of slots that are not completely loaded, as due entries.

        These are slots up to `last_slot` and slots that are being read. The messages of all other
        slots up to there are in memory.
        """
        last_slot = max(last_slot, self._open_slot.highest_slot(last_slot))
        with ExitStack() as held:
            chained, far, _ = self._chained(last_slot + 1, held, has_loaded=False)
            for part in _gathered(chained):
                yield self._due(part)
            for part in far:
                yield self._due_far(part)

    def _chained(
        self, end: int, held: ExitStack, *, has_loaded: bool = True
    ) -> tuple[list[Records], Iterator[Records], int]:
        """Return the units of all slots below `end`, those of the far wheel, and `linked_offset`.

        All three are of the same point in time; the far wheel's units are read later. If not
        `has_loaded`, slots that are completely loaded are left out.
        """
        found: list[Records] = []
        with self._wheel.lock:
            linked_offset = self._timer_log.linked_offset
            at = self._open_slot.replay_slot(self._wheel.read_slot)
            if not has_loaded:
                at = max(at, self._open_slot.loaded_slot)
            while (slot := self._wheel.next_used(at, end)) is not None:
                found.extend(self.chain(slot))
                at = slot + 1
            chains = self._far.table().rows
            chains = chains[chains["slot"] * self._far.width < end]
            view = held.enter_context(self._far.view())
        far = (
            part
            for slot, newest, *_ in chains.tolist()
            for part in self._far.walk(view, slot, newest)
        )
        return found, far, linked_offset

    def _due_far(self, units: Records) -> Records:
        count = lib.ts_far_pending(
            self._states.native,
            self._log.segments.begin,
            ffi.from_buffer("ts_far_unit[]", units),
            len(units),
        )
        return _as_due(units[:count])

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

    def chain(self, slot: int) -> Iterator[Records]:
        """Yield a slot's units, newest first, in parts."""
        timer_log = self._timer_log
        pos = ffi.new("int64_t *", -1)
        size = _FEW  # most chains are short, and there may be a million of them
        with timer_log.segments.view(timer_log.end) as view:
            while True:
                part = np.empty(size, CHAINED)
                got = lib.ts_wheel_load(
                    view,
                    self._wheel.native,
                    slot,
                    pos,
                    size,
                    ffi.from_buffer("ts_chained[]", part),
                )
                if got < 0:
                    timer_log.segments.serve(view, got, "timer log")
                    continue
                yield part[:got]
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
                got = lib.ts_due_load(
                    view,
                    self._states.native,
                    self._store_id,
                    self._config.precision_ms,
                    _NO_ROLL,
                    ffi.from_buffer("ts_chained[]", chained) + done,
                    len(chained) - done,
                    ffi.from_buffer("ts_due[]", due) + kept,
                )
                if got < 0:
                    log.segments.serve(view, got, "pending")
                else:
                    done += got
                    kept += int(view.need)
        return due[:kept]

    def _backlog(self, begin: int) -> Iterator[Records]:
        """Yield pending records of the timer topic from a queue offset on, as due entries."""
        with self._log.lock:
            end = self._log.end
        self._dispatch.through(end)
        queue = self._timer_route.queue
        while begin < queue.count:
            units = queue.read(begin, _BATCH)
            count = len(units) // 20
            requests = np.empty(count, REQUEST)
            done = 0
            with self._log.segments.view(self._log.written) as view:
                while done < count:
                    got = lib.ts_timer_requests(
                        view,
                        ffi.from_buffer("uint8_t[]", units) + 20 * done,
                        count - done,
                        begin + done,
                        self._states.native,
                        self._store_id,
                        self._config.precision_ms,
                        ffi.from_buffer("ts_request[]", requests) + done,
                    )
                    if got < 0:
                        self._log.segments.serve(view, got, "pending")
                    else:
                        done += got
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
