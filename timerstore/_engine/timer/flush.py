"""flush: makes durable what was appended, and completes checkpoints.

Threads:  flush.
Holds:    what asks for a sync gets one at once; else nothing appended stays unsynced longer than
          the flush interval, also amid a checkpoint, between its files; a checkpoint follows when
          its interval has passed, or the log has grown: then it comes after one sync more, however
          many are asked for meanwhile.
Fails:    FullError in a checkpoint is retried; the first failed sync is final.
"""

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.service import Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore.clock import Clock
from timerstore.config import StoreConfig

_MS = 1_000_000
_SHARE = 10  # of its time that flush may spend on checkpoints


class Flush(Service):
    """Syncs and checkpoints."""

    name = "flush"

    def __init__(
        self,
        metrics: Metrics,
        signals: Signals,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        checkpoint: Checkpoint,
        *,
        at_once: bool,
    ) -> None:
        super().__init__(metrics, signals)
        self._config = config
        self._clock = clock
        self._log = log
        self._checkpoint = checkpoint
        self._at_once = at_once  # stepped by hand: every step syncs what there is
        self._wanted = False
        self._is_checkpoint_wanted = False
        self._has_synced = False  # since the last checkpoint began
        self._is_coming = False  # by itself, before long
        self._synced_ns = clock.monotonic_ns
        self._checkpoint_ns = clock.monotonic_ns

    def request(self) -> None:
        """Somebody waits for what was appended so far."""
        self._wanted = True
        self.wake()

    def request_checkpoint(self) -> None:
        """Somebody waits for what only a completed checkpoint lets go."""
        self._is_checkpoint_wanted = True
        self.wake()

    def note(self) -> None:
        """Something was appended that nobody waits for."""
        if not self._log.native.flush_armed:
            self.wake()

    def note_synced(self) -> None:
        """Somebody synced: there is something for the next checkpoint."""
        if not self._is_coming or self._checkpoint.has_grown:
            self.wake()

    def step(self) -> bool:
        """Sync, or complete a checkpoint, where one of them is due."""
        self._log.native.flush_armed = 0
        self._is_coming = False
        wanted, self._wanted = self._wanted, False
        is_put_off = self._has_synced and self._checkpoint.has_grown
        is_due = wanted or self._is_sync_due()
        if self._log.durable < self._log.end and is_due and not is_put_off:
            self._sync()
            return True
        if self._is_checkpoint_due():
            self._run_checkpoint()
            self._checkpoint_ns = self._clock.monotonic_ns
            self.metrics.add("flush_checkpoints", 1)
            return True
        return False

    def _sync(self) -> None:
        self._has_synced = True
        self._log.sync_through(self._log.end)
        self._synced_ns = self._clock.monotonic_ns
        self.metrics.add("flush_syncs", 1)

    def _sync_meanwhile(self) -> None:
        """Between two files of a checkpoint: who waits for a sync does not wait for all of them."""
        wanted, self._wanted = self._wanted, False
        if self._log.durable < self._log.end and (wanted or self._is_sync_due()):
            self._sync()

    def _run_checkpoint(self) -> None:
        was_wanted = self._is_checkpoint_wanted
        self._is_checkpoint_wanted = self._has_synced = False
        try:
            self._checkpoint.run(pause=self._sync_meanwhile)
        except BaseException:
            self._is_checkpoint_wanted |= was_wanted  # who waits for it asks once only
            raise

    def _is_sync_due(self) -> bool:
        passed_ns = self._clock.monotonic_ns - self._synced_ns
        return self._at_once or passed_ns >= self._config.flush_interval_ms * _MS

    def _is_checkpoint_due(self) -> bool:
        if self._checkpoint.has_grown:
            return True
        if self._is_checkpoint_wanted:
            return True  # even where nothing happened since the last one: it is waited for
        if self._clock.monotonic_ns < self._next_checkpoint_ns():
            return False
        return self._checkpoint.is_behind

    def _next_checkpoint_ns(self) -> int:
        interval_ns = self._config.checkpoint_interval_ms * _MS
        return self._checkpoint_ns + max(interval_ns, _SHARE * self._checkpoint.took_ns)

    def idle_s(self) -> float | None:
        """Until the interval that runs first is over; without work, until woken."""
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
