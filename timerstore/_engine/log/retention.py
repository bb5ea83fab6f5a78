"""Retention: the commit log's oldest files go, by age or by disk use, once nothing needs them.

    first file may go ─► its waiting messages are moved ─► durable, linked, checkpointed
      ─► retired: nobody begins to read it ─► the watermark says so ─► its last reader leaves
      ─► unlinked ─► queues and index: what lies below

Threads:  retention; any may keep it still, several at once: a backup takes long.
Locks:    `_lock` over a step, then what the handed-in calls take.
Holds:    (1) a file goes whole, the oldest first, never the last; (2) nothing that waits is in it:
          what did was moved, and that is durable; (3) the watermark speaks of the new beginning
          before a file is unlinked, so that recovery removes what a power cut brings back; (4) the
          log is not gone through again and again when what waits is larger than its limit.
Fails:    FullError is tried again; damage where something may wait stops retention, not the store.
Source:   docs/exactly-once.md, docs/file-format.md;
          docs/decisions/0012-snapshots-and-retention.md.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.service import Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.storage.disk import Disk
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError, MessageError

_CHECK_S = 10.0  # between two looks at the clock and at the disk, as in the ancestor
NOTHING = 2**62
"""A guard's answer where it needs nothing of the log."""


class Dependents(Protocol):
    """What is built on the log and must follow when its oldest files go (timer/timer_retention.py).

    Steps are bounded. Where one returns bool, it is called again after True.
    """

    def move(self, begin: int, end: int) -> bool:
        """Copy some of the pending messages in [begin, end) of the log to its end."""

    def is_past(self, end: int) -> bool:
        """Return whether neither a running service nor a recovery from the last checkpoint reads
        the log below `end`; see to it that this becomes true.
        """

    def raise_begins(self) -> None:
        """Write to the watermark where the files begin now; durable on return."""

    def lowest_needed(self) -> int:
        """Return the lowest log offset that is needed whatever the limits say."""

    def drop_derived(self, log_begin: int) -> bool:
        """Drop some of what is derived from the log below."""

    def send_notices(self) -> None:
        """Notify subscribers of what was dropped; called under no lock."""

    def retire_timer_log(self) -> bool:
        """Retire a timer log file of which every slot has been read."""

    def unlink_timer_log(self) -> bool:
        """Remove a retired timer log file."""


class Retention(Service):
    """Removes what is old."""

    name = "retention"

    def __init__(
        self,
        metrics: Metrics,
        signals: Signals,
        config: StoreConfig,
        clock: Clock,
        disk: Disk,
        log: CommitLog,
        dependents: Dependents,
        lowest_unread: Callable[[], int],
        carriers: Sequence[Callable[[int], bool]],
    ) -> None:
        """`lowest_unread`: the lowest log offset that a known group has not read; kept while the
        disk allows. `carriers` are called with the end of a file that goes: each appends what of it
        must stay, and returns whether that is done.
        """
        super().__init__(metrics, signals)
        self._config = config
        self._clock = clock
        self._disk = disk
        self._log = log
        self._segments = log.segments
        self._dependents = dependents
        self._lowest_unread = lowest_unread
        self._carriers = carriers
        self._lock = Lock()
        self._keeping: set[object] = set()  # who keeps it still; entered under `_lock`
        self._is_derived_behind = True  # an opening does not know what was dropped
        self._begun_end = 0  # of the file that is being emptied
        self._is_for_space = False  # why it is
        self._pass_end: int | None = None  # of the log, when it was found too large
        self._resume_bytes = 0  # how large it has to be before it is gone through once more
        self._store_ms = ffi.new("int64_t *")
        self._expiry: tuple[int, int] | None = None  # end of a file, store time of what follows it
        self._said = ""
        self._warnings: deque[Callable[[], None]] = deque()
        """Log lines of a step, written under no lock: a handler of logging may call the store."""

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing is removed while this is held, by any number at once; steps do nothing."""
        mine = object()
        try:
            with self._lock:  # behind a step that runs
                self._keeping.add(mine)
            yield
        finally:
            self._keeping.discard(mine)
            self.wake()

    def step(self) -> bool:
        """Move, retire, drop or unlink a bounded amount."""
        self._log.check_alive()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not self._keeping and (self._drop() or self._retire())
        finally:
            self._lock.release()
            self._tell()

    def idle_s(self) -> float | None:
        """Until the next look, where anything may ever go."""
        config = self._config
        limits = config.retention_ms, config.retention_log_bytes, config.retention_disk_percent
        return _CHECK_S if any(limits) else None

    # --- what is retired ---

    def _drop(self) -> bool:
        """Let go of one file more of what is retired already."""
        if self._dependents.retire_timer_log():
            self._dependents.raise_begins()
            return True
        if self._dependents.unlink_timer_log():
            reach("retention_timer_log_unlinked")
            return True
        if self._segments.has_retired:
            self._dependents.raise_begins()
        if self._segments.unlink_retired():
            self.metrics.add("retention_log_files", 1)
            reach("retention_log_unlinked")
            return True
        if self._is_derived_behind:
            self._is_derived_behind = self._dependents.drop_derived(self._segments.begin)
            return True
        return False

    def finish(self) -> None:
        """Let go of all that is retired: nobody reads any more."""
        while self._drop():
            pass
        self._tell()

    def _tell(self) -> None:
        self._dependents.send_notices()
        while self._warnings:
            self._warnings.popleft()()

    # --- which file may go ---

    def _retire(self) -> bool:
        """Come nearer to retiring the first file; whether anything was done."""
        segments = self._segments
        end = segments.begin + segments.segment_bytes
        if len(segments.numbers) < 2 or end >= self._log.durable or not self._may_go(end):
            return False  # at the end there is always a file with a record
        try:
            if self._dependents.move(segments.begin, end):
                return True
            if not all(carry(end) for carry in self._carriers):
                return False
        except (CorruptError, MessageError) as error:
            self._say("stopped", error)
            return False
        if not self._dependents.is_past(end) or not self._may_go(end):  # what guards saw was older
            return False
        with self._log.lock:
            log_end = self._log.end  # nothing in the file waits at this moment
        self._log.sync_through(log_end)
        reach("retention_emptied")
        segments.retire(end)
        self._begun_end = 0
        self._is_derived_behind = True
        reach("retention_retired")
        self._dependents.raise_begins()  # before a checkpoint of its own does: it needs no space
        reach("retention_begin_raised")
        return True

    def _may_go(self, end: int) -> bool:
        """Whether the file that ends there is to go, and nobody needs it."""
        if self._dependents.lowest_needed() < end:
            return False
        if self._begun_end != end:  # else it has become expired or too much: that stays
            self._is_for_space = self._is_too_large()
            if not self._is_for_space and not self._is_expired(end):
                return False
            self._begun_end = end
        return self._is_for_space or self._is_read(end) or self._is_too_large()

    def _is_read(self, end: int) -> bool:
        if self._lowest_unread() >= end:
            return True
        self._say("held by groups that have not read", end)
        return False

    def _is_expired(self, end: int) -> bool:
        """Whether what follows the file was stored long ago, and so was all in it."""
        if not self._config.retention_ms:
            return False
        if self._expiry is None or self._expiry[0] != end:
            with self._segments.view(self._log.written) as view:
                while (got := lib.ts_record_store_ms(view, end, self._store_ms)) < 0:
                    self._segments.serve(view, got, self.name)
            self._expiry = end, int(self._store_ms[0])
        return self._expiry[1] + self._config.retention_ms <= self._clock.now_ms

    def _is_too_large(self) -> bool:
        """Whether the oldest is to go for want of space.

        Worked example, limit 10: 9 wait and 3 more are appended. All files are gone through once:
        then the log holds the 9, moved, and what came since, say 1. It is left alone until it holds
        20; gone through again it is 9 or so: each byte that waits is copied at most as often as a
        byte is appended.
        """
        begin, end = self._segments.begin, self._log.end
        if not self._is_beyond(end - begin):
            self._pass_end, self._resume_bytes = None, 0
            return False
        if end - begin < self._resume_bytes:
            return False
        if self._pass_end is None:
            self._pass_end = end
        if begin + self._segments.segment_bytes > self._pass_end:
            self._pass_end, self._resume_bytes = None, 2 * (end - begin)
            self._say("full of what waits", end)
            return False
        return True

    def _is_beyond(self, size: int) -> bool:
        config = self._config
        if 0 < config.retention_log_bytes < size:
            return True
        limit = config.retention_disk_percent
        return 0 < limit < self._disk.used_percent(self._segments.directory)

    def _say(self, what: str, about: Any) -> None:
        """Have an event logged, once."""
        text = f"{what} {about}"
        if text != self._said:
            self._said = text
            warn = logging.getLogger("timerstore.log").warning
            self._warnings.append(
                partial(warn, "retention=%r begin=%d", text, self._segments.begin)
            )
