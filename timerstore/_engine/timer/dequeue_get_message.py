"""Read the messages that units point at, and put the pending ones into the open slot.

This is the fourth of the six timer services.

Thread safety: runs on the dequeue-get-message thread only.
Invariants:
    1. The open slot receives a batch's `loaded_slot` together with the batch's last entry.
    2. A batch that raises an error is read again.
Raises: CorruptError if a unit points at something other than a timer.
"""

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.service import Handoff, Service
from timerstore._engine.queues.core import Core
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DUE, Loaded


class DequeueGetMessage(Service):
    """Reads due entries from units."""

    name = "dequeue-get-message"

    def __init__(self, core: Core, open_slot: OpenSlot, source: Handoff[Loaded]) -> None:
        super().__init__(core.metrics, core.signals)
        self._config = core.config
        self._log = core.log
        self._states = core.states
        self._open_slot = open_slot
        self._store_id = core.store_id
        self._source = source

    def step(self) -> bool:
        """Read the messages of one batch of units."""
        loaded = self._source.first()
        if loaded is None:
            return False
        self._load(loaded)
        self._source.take()
        self._signals.units_loaded()
        return True

    def _load(self, loaded: Loaded) -> None:
        chained, loaded_slot, back_count = loaded
        due = np.empty(len(chained), DUE)
        kept = done = 0
        end = 0
        if len(chained):
            last = chained[int(chained["log_offset"].argmax())]
            end = int(last["log_offset"]) + int(last["size"])
        with self._log.segments.view(self._log.written_through(end)) as view:
            while done < len(chained):
                done += self._log.segments.call(
                    view,
                    "dequeue-get-message",
                    lib.ts_due_load,
                    self._states.native,
                    self._store_id,
                    self._config.precision_ms,
                    loaded_slot,
                    ffi.from_buffer("ts_chained[]", chained) + done,
                    len(chained) - done,
                    ffi.from_buffer("ts_due[]", due) + kept,
                )
                kept += int(view.need)
        reach("dequeue_messages_loaded")
        self._open_slot.push(due[:kept], loaded_slot, back_count)
        if kept < len(chained):  # the others are no longer pending
            slots, counts = np.unique(chained["slot"], return_counts=True)
            kept_slots, kept_counts = np.unique(due["slot"][:kept], return_counts=True)
            counts[np.searchsorted(slots, kept_slots)] -= kept_counts
            gone = counts > 0
            self._open_slot.done(zip(slots[gone].tolist(), counts[gone].tolist(), strict=True))
        self.metrics.add("dequeue_put_skipped_messages", len(chained) - kept)
