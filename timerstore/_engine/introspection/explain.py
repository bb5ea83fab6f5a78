"""Explain one message: where it is, why it is not delivered yet, and what happened to it.

The history is read from the message's records in the log. Its current place follows from the state
of its timer id and the wheel, or from the cursor of its delay level.

Thread safety: any thread. A message that moves during the call is described before or after.
Locking: the wheel's lock, for one slot at a time.
Raises: GoneError if the message keeps moving, or retention removes its records.
"""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.introspection.message_name import Name
from timerstore._engine.introspection.message_records import DELIVERED_KINDS, MessageRecords
from timerstore._engine.introspection.timer_location import TimerLocator
from timerstore._engine.levels.level_pending import LevelPending
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.routes import Routes
from timerstore._engine.timer.timer_arrays import Records, slots_of
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import GoneError
from timerstore.reports import Explanation, HistoryEntry

_TRIES = 100


class Explainer:
    """Explains messages of one store."""

    def __init__(
        self,
        *,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        routes: Routes,
        records: MessageRecords,
        levels: LevelCursors,
        level_pending: LevelPending,
        timers: TimerLocator,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._routes = routes
        self._records = records
        self._levels = levels
        self._level_pending = level_pending
        self._timers = timers

    def explain(self, name: Name) -> Explanation:
        """Return where a message is, why it is not delivered yet, and its history."""
        for _ in range(_TRIES):
            try:
                return self._explain(name)
            except GoneError as error:
                gone = error  # it was moved or delivered during the call: look again
        raise gone

    def _explain(self, name: Name) -> Explanation:
        rows = self._records.find(name)
        if not len(rows):
            why = "the log has no record of it: never put, or removed by retention"
            return Explanation(*name, "unknown", "nowhere", why)
        history = self._records.history(rows)
        last = rows[-1]
        kind = int(last["kind"])
        if kind == lib.TS_KIND_DELETE:
            why = f"cancelled {self._at(last['store_ms'])}"
            found = self._made(name, rows, history, "cancelled", "nowhere", why)
        elif kind in DELIVERED_KINDS:
            found = self._delivered(name, rows, history)
        elif kind == lib.TS_KIND_LEVEL:
            found = self._on_level(name, rows, history)
        else:
            found = self._pending(name, rows, history)
        return found

    # --- where it is ---

    def _made(
        self,
        name: Name,
        rows: Records,
        history: tuple[HistoryEntry, ...],
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
            "timer_id": self._records.timer_id(timers[-1]) if len(timers) else -1,
            "level": int(rows["delay_level"].max(initial=0)) if not len(timers) else 0,
            "log_offset": int(last["log_offset"]),
            "history": history,
        }
        return Explanation(*name, state, where, why, **{**given, **more})

    def _delivered(
        self, name: Name, rows: Records, history: tuple[HistoryEntry, ...]
    ) -> Explanation:
        last = rows[-1]
        log = self._log
        why = f"it came into its topic {self._at(last['store_ms'])}"
        is_durable = int(last["log_offset"] + last["size"]) <= log.durable
        if not is_durable and self._config.visibility == "durable":
            why += f"; a pull sees it once the log is durable up to there ({log.durable} now)"
        return self._made(
            name,
            rows,
            history,
            "delivered",
            "queue",
            why,
            queue_id=int(last["queue_id"]),
            queue_offset=int(last["queue_offset"]),
        )

    def _on_level(
        self, name: Name, rows: Records, history: tuple[HistoryEntry, ...]
    ) -> Explanation:
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
            history,
            "pending",
            "level",
            why,
            due_ms=due_ms,
            queue_offset=offset,
        )

    def _pending(self, name: Name, rows: Records, history: tuple[HistoryEntry, ...]) -> Explanation:
        row, timers = rows[-1], self._timers
        timer_id, due_ms = self._records.timer_id(row), int(row["due_ms"])
        state = self._records.states.get(timer_id)
        if state != lib.TS_PENDING:
            raise GoneError("its state changed during the call", wanted="pending", got=state)
        linked = timers.timer_log.linked_offset
        if int(row["queue_offset"]) >= linked:
            ahead = int(row["queue_offset"]) - linked
            why = f"{self._when(due_ms)}; it is not on the wheel yet, {ahead} are before it"
            if self._config.stop_enqueue:
                why += " (stop_enqueue is on)"
            return self._made(name, rows, history, "pending", "timer topic", why)
        far_slot = timers.on_far_wheel(int(row["log_offset"]), due_ms)
        if far_slot is not None and far_slot >= 0:
            slot = far_slot * timers.far.width
            slot_ms = slot * self._config.precision_ms
            down_ms = slot_ms - self._config.roll_slots * self._config.precision_ms
            why = f"{self._when(due_ms)}; it gets its slot on the wheel {self._at(down_ms)}"
            return self._made(
                name, rows, history, "pending", "far wheel", why, slot=slot, slot_ms=slot_ms
            )
        found = timers.on_wheel(int(row["log_offset"]), due_ms)
        if found is None:
            why = f"{self._when(due_ms)}; it was read from its slot"
            if far_slot is not None:
                why = f"{self._when(due_ms)}; no slot was free: it waits in memory"
            return self._made(name, rows, history, "pending", "open slot", why)
        slot, place, length = found
        read_slot, precision_ms = timers.wheel.read_slot, self._config.precision_ms
        is_read = slot < read_slot
        why = self._when(due_ms)
        if is_read:
            why += self._held_back(name.topic, timer_id)
        elif slot < int(slots_of(np.array([due_ms]), precision_ms)[0]):
            why += (
                f"; until {self._at(slot * precision_ms)} it is in an earlier slot, then it rolls"
            )
        else:
            why += f"; its slot is read {self._at(slot * precision_ms)}"
        if self._config.stop_dequeue:
            why += " (stop_dequeue is on: nothing is delivered)"
        return self._made(
            name,
            rows,
            history,
            "pending",
            "open slot" if is_read else "wheel",
            why,
            slot=slot,
            slot_ms=slot * precision_ms,
            chain_place=place,
            chain_length=length,
        )

    def _held_back(self, topic: str, timer_id: int) -> str:
        """Say why a message in the open slot is not delivered yet."""
        found = self._timers.in_fair_queue(topic, timer_id)
        if found is None:
            return "; its slot is read, it waits to be handed over"
        before, rate = found
        if rate is None:
            return f"; its topics take turns, {before} of its own go before it"
        return f"; its topic has {rate:g} a second, {before} go before it"

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
