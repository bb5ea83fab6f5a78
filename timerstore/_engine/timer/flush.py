"""Sync the commit log, and complete checkpoints.

This is the sixth of the six timer services.

Thread safety: runs on the flush thread only; any thread may request a sync or a checkpoint.
Invariants:
    1. A requested sync is made at once. Other appended records are synced within the flush
       interval, also between the files of a checkpoint.
    2. A checkpoint is written when its interval has passed, or when the log has grown enough. In
       the latter case it follows after one more sync, however many are requested.
Raises: FullError in a checkpoint is retried. The first failed sync is final.
"""

from timerstore._engine.base.service import Service
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.timer.checkpoint import Checkpoint

_MS = 1_000_000
_SHARE = 10  # the interval between checkpoints is at least this many times their duration


class Flush(Service):
    """Syncs the log and completes checkpoints."""

    name = "flush"

    def __init__(
        self, core: Core, dispatch: Dispatch, checkpoint: Checkpoint, *, at_once: bool
    ) -> None:
        super().__init__(core.metrics, core.signals)
        self._dispatch = dispatch
        self._config = core.config
        self._clock = core.clock
        self._log = core.log
        self._checkpoint = checkpoint
        self._at_once = at_once  # stepped by hand: every step syncs
        self._wanted = False
        self._is_checkpoint_wanted = False
        self._has_synced = False  # since the last checkpoint began
        self._is_coming = False  # the service runs by itself soon
        self._synced_ns = core.clock.monotonic_ns
        self._checkpoint_ns = core.clock.monotonic_ns

    def request(self) -> None:
        """Request a sync of the records appended so far."""
        self._wanted = True
        self.wake()

    def request_checkpoint(self) -> None:
        """Request a checkpoint, even if nothing changed since the last one."""
        self._is_checkpoint_wanted = True
        self.wake()

    def note(self) -> None:
        """Note that records were appended; no thread waits until they are durable."""
        if not self._log.native.flush_armed:
            self.wake()

    def note_change(self) -> None:
        """Note that another thread synced the log or linked messages: a checkpoint may be due."""
        if not self._is_coming or self._checkpoint.has_grown:
            self.wake()

    def step(self) -> bool:
        """Sync the log or complete a checkpoint, if one of them is due."""
        self._log.native.flush_armed = 0
        self._is_coming = False
        wanted, self._wanted = self._wanted, False
        is_put_off = self._has_synced and self._checkpoint.has_grown
        is_due = wanted or self._is_sync_due()
        if self._log.durable < self._log.end and is_due and not is_put_off:
            self._sync(is_wanted=wanted)
            return True
        if self._is_checkpoint_due():
            self._run_checkpoint()
            self._checkpoint_ns = self._clock.monotonic_ns
            self.metrics.add("flush_checkpoints", 1)
            return True
        return False

    def _sync(self, *, is_wanted: bool) -> None:
        self._has_synced = True
        if is_wanted:
            self._dispatch.before_sync()
            self._wanted = False  # this sync is for all requests up to here
        self._log.sync_through(self._log.end)
        self._synced_ns = self._clock.monotonic_ns
        self.metrics.add("flush_syncs", 1)

    def _sync_between_files(self) -> None:
        """Sync between two files of a checkpoint, so that waiters do not wait for all of them."""
        wanted, self._wanted = self._wanted, False
        if self._log.durable < self._log.end and (wanted or self._is_sync_due()):
            self._sync(is_wanted=wanted)

    def _run_checkpoint(self) -> None:
        was_wanted = self._is_checkpoint_wanted
        self._is_checkpoint_wanted = self._has_synced = False
        try:
            self._checkpoint.run(pause=self._sync_between_files)
        except BaseException:
            self._is_checkpoint_wanted |= was_wanted  # a waiter requests it only once
            raise

    def _is_sync_due(self) -> bool:
        passed_ns = self._clock.monotonic_ns - self._synced_ns
        return self._at_once or passed_ns >= self._config.flush_interval_ms * _MS

    def _is_checkpoint_due(self) -> bool:
        if self._checkpoint.has_grown:
            return True
        if self._is_checkpoint_wanted:
            return True  # even if nothing changed since the last one: a thread waits for it
        if self._clock.monotonic_ns < self._next_checkpoint_ns():
            return False
        return self._checkpoint.is_behind

    def _next_checkpoint_ns(self) -> int:
        interval_ns = self._config.checkpoint_interval_ms * _MS
        return self._checkpoint_ns + max(interval_ns, _SHARE * self._checkpoint.took_ns)

    def idle_s(self) -> float | None:
        """Return the time until the next interval ends, or None if there is nothing to do."""
        now_ns = self._clock.monotonic_ns
        at_ns = []
        if self._log.durable < self._log.end:
            at_ns.append(self._synced_ns + self._config.flush_interval_ms * _MS)
            self._log.native.flush_armed = 1
        if self._checkpoint.is_behind:
            at_ns.append(self._next_checkpoint_ns())
        self._is_coming = bool(at_ns)
        if not at_ns:
            return None
        return max((min(at_ns) - now_ns) / 1e9, 0.0)
