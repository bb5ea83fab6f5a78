"""Explain one message: where it is, why it is not delivered yet, and what happened to it.

The history is read from the message's records in the log. Its current place follows from the state
of its timer id and the wheel, or from the cursor of its delay level.

Thread safety: any thread. A message that moves during the call is described before or after.
Locking: the wheel's lock, for one slot at a time.
Raises: GoneError if the message keeps moving, or retention removes its records.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.message_fields import is_utf8
from timerstore._engine.base.native import lib
from timerstore._engine.format.handle import check_receipt, decode
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import DispatchedQueues
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.record_lookup import scan_batches, scan_into
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.groups import check_name
from timerstore._engine.timer.fair_queue import FairQueue
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.level_pending import LevelPending
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.pending import WheelPending
from timerstore._engine.timer.timer_arrays import Records, slots_of
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import NO_SLOT, Wheel
from timerstore.errors import CorruptError, GoneError, MessageError, quoted, typed
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Message
from timerstore.types.receipts import PutReceipt
from timerstore.types.reports import Explanation, HistoryEntry, PendingTimer

# --- message name ---
# The name of a message that a caller asks about: its topic and message id.
#
# Raises: MessageError if the argument identifies no message.


class Name(NamedTuple):
    """The topic and message id that identify a message."""

    topic: str
    message_id: str


def name_of(given: object, topic: str | None) -> Name:
    """Return the name in a receipt, a message, a handle, or a message id with its topic."""
    if isinstance(given, PutReceipt):
        check_receipt(given)
    if isinstance(given, Message) and not isinstance(given.properties, Mapping):
        raise MessageError(
            f"message: wanted a mapping as its properties, got {typed(given.properties)}"
        )
    if isinstance(given, Message | PendingTimer | PutReceipt):
        return _name_in(given.topic, given.message_id)
    if not isinstance(given, str) or not given:
        raise MessageError(
            "message: wanted a receipt, a message, a handle, or a message id with topic=, got "
            f"{typed(given)}"
        )
    if topic is not None:
        if not is_utf8(given):
            raise MessageError(f"message: half a surrogate pair in its id, got {quoted(given)}")
        return Name(check_name("topic", topic), given)
    try:
        handle = decode(given)
    except MessageError as error:
        raise MessageError(
            f"message: {quoted(given)} is no handle; with a message id, give topic=, too"
        ) from error
    return Name(handle.topic, handle.message_id)


def _name_in(topic: object, message_id: object) -> Name:
    """Check the fields of an object, which a caller may have constructed."""
    if not isinstance(message_id, str) or not is_utf8(message_id):
        raise MessageError(f"message: wanted text as its message_id, got {typed(message_id)}")
    return Name(check_name("topic", topic), message_id)


# --- explain ---
# The records are found by message id, in the key index, or in the whole log if there is no index.


_logger = logging.getLogger("timerstore.introspection")

_TRIES = 100
_DELIVERED_KINDS = (lib.TS_KIND_DELIVERED, lib.TS_KIND_LEVEL_DELIVERED, lib.TS_KIND_ORDINARY)
_PENDING_KINDS = (lib.TS_KIND_TIMER, lib.TS_KIND_LEVEL)
WAITS_TO_BE_HANDED_OVER = "its slot is read, it waits to be handed over"


class Explainer(ABC):
    """Explains messages of one store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: LogReader,
        routes: Routes,
        dispatch: DispatchedQueues,
        states: TimerStates,
        store_id: int,
        levels: LevelCursors,
        level_pending: LevelPending,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._routes = routes
        self._dispatch = dispatch
        self._states = states
        self._store_id = store_id
        self._levels = levels
        self._level_pending = level_pending

    def explain(self, name: Name) -> Explanation:
        """Return where a message is, why it is not delivered yet, and its history."""
        rows = self._find(name)
        if not len(rows):
            why = "the log has no record of it: never put, or removed by retention"
            return Explanation(*name, "unknown", "nowhere", why)
        last = rows[-1]
        kind = int(last["kind"])
        if kind == lib.TS_KIND_DELETE:
            why = f"cancelled {self._at(last['store_ms'])}"
            return self._made(name, rows, "cancelled", "nowhere", why)
        if kind in _DELIVERED_KINDS:
            return self._delivered(name, rows)
        if kind == lib.TS_KIND_LEVEL:
            return self._on_level(name, rows)
        return self._pending(name, rows)

    # --- its records ---

    def _find(self, name: Name) -> Records:
        """Return all records of a message, in the order of the log."""
        log, index = self._log, self._dispatch.index
        wanted = f"{name.topic}+{name.message_id}".encode()
        identity = int(lib.ts_identity(wanted, len(wanted)))
        with log.lock:
            end = log.end
        self._dispatch.through(end)
        log.write_out()
        rows = None
        if index is not None:
            try:
                rows = self._from_index(index, name, identity, end)
            except GoneError:
                raise
            except CorruptError as error:
                _logger.warning("index=passed error=%r", str(error))
        if rows is None:
            rows = self._from_log(identity)
        kinds = (*_DELIVERED_KINDS, *_PENDING_KINDS, lib.TS_KIND_DELETE)
        return rows[np.isin(rows["kind"], kinds)]

    def _from_index(self, index: Any, name: Name, identity: int, end: int) -> Records:
        key, begin = name.message_id.encode(), self._log.segments.begin
        offsets: set[int] = set()
        for topic in (name.topic, WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC):
            for some in index.find(topic.encode(), key):
                offsets.update(some[(some >= begin) & (some < end)].tolist())
        rows = [self._row(offset) for offset in sorted(offsets)]
        found = np.concatenate(rows) if rows else np.empty(0, SCAN_DTYPE)
        own: Records = found[found["identity"] == np.uint64(identity)]
        return own

    def _row(self, offset: int) -> Records:
        segments = self._log.segments
        row, precision_ms = np.empty(1, SCAN_DTYPE), self._config.precision_ms
        with segments.view(self._log.written) as view:
            found, _ = scan_into(
                row, segments, view, self._routes, self._clock, precision_ms, offset, "explain"
            )
        return found

    def _from_log(self, identity: int) -> Records:
        """Return the records with this hash by reading the whole log."""
        parts = [
            part[part["identity"] == np.uint64(identity)].copy()
            for part, _, _ in scan_batches(
                self._log.segments,
                self._routes,
                self._clock,
                self._config.precision_ms,
                self._log.segments.begin,
                self._log.written,
            )
        ]
        return np.concatenate(parts) if parts else np.empty(0, SCAN_DTYPE)

    def _history(self, rows: Records) -> Iterator[HistoryEntry]:
        """Yield the events that the records tell of, in order."""
        rolls: dict[int, int] = {}  # number of rolls, by timer id
        moved_to = -1  # end of a delete record: a record there replaces the deleted one
        for k, row in enumerate(rows):
            kind, offset = int(row["kind"]), int(row["log_offset"])
            following = rows[k + 1]["log_offset"] if k + 1 < len(rows) else -1
            due_ms = int(row["due_ms"]) if kind in _PENDING_KINDS else 0
            if kind == lib.TS_KIND_DELETE:
                if following == offset + row["size"]:
                    moved_to = int(following)
                    continue
                what = "cancelled"
            elif kind == lib.TS_KIND_LEVEL:
                what, due_ms = "put", 0
            elif offset == moved_to:
                what = "rescheduled"
            elif kind == lib.TS_KIND_TIMER and (timer_id := self._timer_id(row)) in rolls:
                what = "rolled" if int(row["roll_times"]) > rolls[timer_id] else "moved"
            elif kind in (lib.TS_KIND_DELIVERED, lib.TS_KIND_LEVEL_DELIVERED):
                what = "delivered"
            else:
                what = "put"
            if kind == lib.TS_KIND_TIMER:
                rolls[self._timer_id(row)] = int(row["roll_times"])
            yield HistoryEntry(what, int(row["store_ms"]), offset, due_ms)

    def _timer_id(self, row: Records) -> int:
        """Return the timer id of a record."""
        return self._states.id_of(row, self._store_id)

    # --- where it is ---

    def _made(
        self,
        name: Name,
        rows: Records,
        state: str,
        where: str,
        why: str,
        **more: Any,
    ) -> Explanation:
        last = rows[-1]
        timers = rows[rows["kind"] == lib.TS_KIND_TIMER]
        route = self._routes.by_index[int(last["route"])]
        given: dict[str, Any] = {
            "queue_id": route.queue_id if route.topic == name.topic else -1,
            "due_ms": int(rows["due_ms"][rows["due_ms"] > 0][-1:].sum()),
            "timer_id": self._timer_id(timers[-1]) if len(timers) else -1,
            "level": int(rows["delay_level"].max(initial=0)) if not len(timers) else 0,
            "log_offset": int(last["log_offset"]),
            "history": tuple(self._history(rows)),
        }
        return Explanation(*name, state, where, why, **{**given, **more})

    def _delivered(self, name: Name, rows: Records) -> Explanation:
        last = rows[-1]
        log = self._log
        why = f"it came into its topic {self._at(last['store_ms'])}"
        is_durable = int(last["log_offset"] + last["size"]) <= log.durable
        if not is_durable and self._config.visibility == "durable":
            why += f"; a pull sees it once the log is durable up to there ({log.durable} now)"
        return self._made(
            name,
            rows,
            "delivered",
            "queue",
            why,
            queue_id=int(last["queue_id"]),
            queue_offset=int(last["queue_offset"]),
        )

    def _on_level(self, name: Name, rows: Records) -> Explanation:
        last = rows[-1]
        offset, queue_id = int(last["queue_offset"]), int(last["queue_id"])
        entries = self._level_pending.entries()
        own = entries[entries["log_offset"] == last["log_offset"]]
        if not len(own):  # delivered since its records were found
            raise GoneError("it was handed over during the call")
        due_ms = int(own["due_ms"][0])
        cursor = self._levels.cursor(queue_id)
        why = f"{self._when(due_ms)}; {offset - cursor} of its level's queue are before it"
        return self._made(
            name,
            rows,
            "pending",
            "level",
            why,
            due_ms=due_ms,
            queue_offset=offset,
        )

    @abstractmethod
    def _pending(self, name: Name, rows: Records) -> Explanation:
        """Explain a message that waits for its time."""

    # --- in words ---

    def _when(self, due_ms: int) -> str:
        ahead_ms = due_ms - self._clock.now_ms
        if ahead_ms > 0:
            return f"it is due {self._at(due_ms)}, in {ahead_ms / 1000:.3f} s"
        since = self._at(due_ms).removeprefix("at ")
        return f"it has been due for {-ahead_ms / 1000:.3f} s, since {since}"

    def _at(self, time_ms: Any) -> str:
        try:
            at = datetime.fromtimestamp(int(time_ms) / 1000, UTC)
        except (OverflowError, ValueError):
            return f"at {int(time_ms)} ms"
        return f"at {at:%Y-%m-%d %H:%M:%S}.{int(time_ms) % 1000:03d} UTC"

    def _until_read(self, slot: int, due_ms: int, held_back: str | None) -> str:
        """Say why a message in a slot waits. `held_back`: why, although the slot has been read."""
        slot_ms = slot * self._config.precision_ms
        if held_back is not None:
            return f"; {held_back}"
        if slot < int(slots_of(np.array([due_ms]), self._config.precision_ms)[0]):
            return f"; until {self._at(slot_ms)} it is in an earlier slot, then it rolls"
        return f"; its slot is read {self._at(slot_ms)}"


class WheelExplainer(Explainer):
    """Explains messages of an open store, with their places on the wheels."""

    def __init__(
        self,
        core: Core,
        dispatch: DispatchedQueues,
        levels: LevelCursors,
        level_pending: LevelPending,
        timer_log: TimerLog,
        far: FarWheel,
        wheel: Wheel,
        open_slot: OpenSlot,
        pending: WheelPending,
        fair_queue: FairQueue,
    ) -> None:
        super().__init__(
            core.config,
            core.clock,
            core.log,
            core.routes,
            dispatch,
            core.states,
            core.store_id,
            levels,
            level_pending,
        )
        self._timer_log = timer_log
        self._far = far
        self._wheel = wheel
        self._open_slot = open_slot
        self._wheel_pending = pending
        self._fair_queue = fair_queue

    def explain(self, name: Name) -> Explanation:
        """As Explainer. A message that is moved or delivered during the call is looked up again."""
        for _ in range(_TRIES):
            try:
                return super().explain(name)
            except GoneError as error:
                gone = error
        raise gone

    def _pending(self, name: Name, rows: Records) -> Explanation:
        row = rows[-1]
        timer_id, due_ms = self._timer_id(row), int(row["due_ms"])
        state = self._states.get(timer_id)
        if state != lib.TS_PENDING:
            raise GoneError("its state changed during the call", wanted="pending", got=state)
        linked = self._timer_log.linked_offset
        if int(row["queue_offset"]) >= linked:
            ahead = int(row["queue_offset"]) - linked
            why = f"{self._when(due_ms)}; it is not on the wheel yet, {ahead} are before it"
            if self._config.stop_enqueue:
                why += " (stop_enqueue is on)"
            return self._made(name, rows, "pending", "timer topic", why)
        far_slot = self._on_far_wheel(int(row["log_offset"]), due_ms)
        if far_slot is not None and far_slot >= 0:
            slot = far_slot * self._far.width
            slot_ms = slot * self._config.precision_ms
            down_ms = slot_ms - self._config.roll_slots * self._config.precision_ms
            why = f"{self._when(due_ms)}; it gets its slot on the wheel {self._at(down_ms)}"
            return self._made(name, rows, "pending", "far wheel", why, slot=slot, slot_ms=slot_ms)
        found = self._on_wheel(int(row["log_offset"]), due_ms)
        if found is None:
            why = f"{self._when(due_ms)}; it was read from its slot"
            if far_slot is not None:
                why = f"{self._when(due_ms)}; no slot was free: it waits in memory"
            return self._made(name, rows, "pending", "open slot", why)
        slot, place, length = found
        held_back = None
        if slot < self._wheel.read_slot:
            held_back = self._held_back(name.topic, timer_id)
        why = self._when(due_ms) + self._until_read(slot, due_ms, held_back)
        if self._config.stop_dequeue:
            why += " (stop_dequeue is on: nothing is delivered)"
        return self._made(
            name,
            rows,
            "pending",
            "wheel" if held_back is None else "open slot",
            why,
            slot=slot,
            slot_ms=slot * self._config.precision_ms,
            chain_place=place,
            chain_length=length,
        )

    def _held_back(self, topic: str, timer_id: int) -> str:
        """Say why a message in the open slot is not delivered yet."""
        found = self._fair_queue.place(topic, timer_id)
        if found is None:
            return WAITS_TO_BE_HANDED_OVER
        before, rate = found
        if rate is None:
            return f"its topics take turns, {before} of its own go before it"
        return f"its topic has {rate:g} a second, {before} go before it"

    # --- its place ---
    # A timer that moves during the call is found before or after its move, or not at all.

    def _on_far_wheel(self, log_offset: int, due_ms: int) -> int | None:
        """Return the slot of the far wheel that has the timer; None if it is not there.

        This is the slot of its due time, or the last slot in use. A negative number means the
        overflow chain.
        """
        far, wheel = self._far, self._wheel
        with ExitStack() as stack:
            with wheel.lock:
                rows = far.table().rows
                own = int(slots_of(np.array([due_ms]), self._config.precision_ms)[0]) // far.width
                view = stack.enter_context(far.view())
            last = rows["slot"].max(initial=own)
            rows = rows[(rows["slot"] == own) | (rows["slot"] == last) | (rows["slot"] < 0)]
            for slot, newest, *_ in rows.tolist():
                for part in far.walk(view, slot, newest):
                    if (part["log_offset"] == log_offset).any():
                        return int(slot)
        return None

    def _on_wheel(self, log_offset: int, due_ms: int) -> tuple[int, int, int] | None:
        """Return the slot, the place in its chain and the chain's length; None if it is in no slot.

        The slot of the due time is searched first, then every other one.
        """
        own = int(slots_of(np.array([due_ms]), self._config.precision_ms)[0])
        for slot in self._slots(own):
            with self._wheel.lock:
                chain = list(self._wheel_pending.chain(slot))
            offsets = np.concatenate([part["log_offset"] for part in chain])
            places = np.flatnonzero(offsets == log_offset)
            if len(places):
                return slot, int(places[0]) + 1, len(offsets)
        return None

    def _slots(self, own: int) -> Iterator[int]:
        wheel, open_slot = self._wheel, self._open_slot
        yield own
        at = open_slot.replay_slot(wheel.read_slot)
        while True:
            with wheel.lock:
                slot = wheel.next_used(at, NO_SLOT)
            if slot is None:
                return
            if slot != own:
                yield slot
            at = slot + 1
