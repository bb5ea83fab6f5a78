"""Remove the oldest segments of the commit log, by age or by disk use.

A segment is removed in these steps:

    1. It is older than the limit, or the log is too large, and no group still needs it.
    2. Its pending messages are copied to the end of the log.
    3. The copies are linked into the timing wheel. They, and all deliveries from the segment, are
       durable and part of a checkpoint; on a full disk only durable.
    4. It is retired: no new reader opens it. The watermark names the new begin of the log.
    5. After its last reader has closed it, the file is unlinked.
    6. Units and index entries that point below the new begin are dropped.

Thread safety: steps run on the retention thread. Any number of threads may suspend it with `still`.
Locking: `_lock` during a step, then the locks of the dependents and carriers.
Invariants:
    1. Files are removed whole, the oldest first. The last file is never removed.
    2. A removed file has no pending message: each was moved, and the copy is durable.
    3. The watermark names the new begin before a file is unlinked. So recovery removes a file that
       reappears after a power cut.
    4. If the pending messages alone exceed the size limit, the log is not scanned again and again.
Raises: FullError is retried. Damage in a segment that may hold pending messages stops retention,
    but not the store.
See also: docs/exactly-once.md, docs/file-format.md;
    docs/decisions/0012-snapshots-and-retention.md.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.service import Service
from timerstore._engine.queues.core import Core
from timerstore._engine.timer.timer_retention import TimerRetention
from timerstore.errors import CorruptError, MessageError

_CHECK_S = 10.0  # between two checks of the clock and the disk, as in RocketMQ


class Retention(Service):
    """The service that removes old segments."""

    name = "retention"

    def __init__(
        self,
        core: Core,
        dependents: TimerRetention,
        lowest_unread: Callable[[], int],
        carriers: Sequence[Callable[[int], bool]],
    ) -> None:
        """Create the service.

        lowest_unread: returns the lowest log offset that a known group has not read. It is kept
            unless the log is too large.
        carriers: called with the end of a segment before it is removed. Each appends again the
            records that must survive, and returns whether it is done.
        """
        super().__init__(core.metrics, core.signals)
        self._config = core.config
        self._clock = core.clock
        self._disk = core.disk
        self._log = core.log
        self._segments = core.log.segments
        self._dependents = dependents
        self._lowest_unread = lowest_unread
        self._carriers = carriers
        self._lock = Lock()
        self._suspensions: set[object] = set()  # a token for each `still`; added under `_lock`
        self._may_drop_derived = True  # at opening it is unknown how far that was done
        self._emptied_end = 0  # end of the segment that is being emptied
        self._moved_end: int | None = None  # end of the log when it had no pending message any more
        self._is_for_space = False  # whether it is removed because the log is too large
        self._pass_end: int | None = None  # end of the log when it was found too large
        self._resume_bytes = 0  # size of the log that starts the next pass
        self._store_ms = ffi.new("int64_t *")
        self._expiry: tuple[int, int] | None = None  # segment end, store time of the next record
        self._last_warning = ""
        self._warnings: deque[Callable[[], None]] = deque()
        """Log calls of a step, made without a lock: a logging handler may call the store."""

    @contextmanager
    def still(self) -> Iterator[None]:
        """Suspend retention: nothing is removed within the context. Contexts may overlap."""
        token = object()
        try:
            with self._lock:  # wait for a running step
                self._suspensions.add(token)
            yield
        finally:
            self._suspensions.discard(token)
            self.wake()

    def step(self) -> bool:
        """Do a bounded amount of work; return whether there was any."""
        self._log.check_alive()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not self._suspensions and (self._drop() or self._retire())
        finally:
            self._lock.release()
            self._notify()

    def idle_s(self) -> float | None:
        """Return the seconds until the next check, or None if no limit is set."""
        config = self._config
        limits = config.retention_ms, config.retention_log_bytes, config.retention_disk_percent
        return _CHECK_S if any(limits) else None

    # --- retired segments ---

    def _drop(self) -> bool:
        """Drop one retired file, or some derived entries; return whether there was any."""
        if self._dependents.past.retire():
            self._dependents.checkpoint.raise_begins()
            return True
        if self._dependents.unlink_timer_log():
            reach("retention_timer_log_unlinked")
            return True
        if self._segments.has_retired:
            self._dependents.checkpoint.raise_begins()
        if self._segments.unlink_retired():
            self.metrics.add("retention_log_files", 1)
            reach("retention_log_unlinked")
            return True
        if self._may_drop_derived:
            self._may_drop_derived = self._dependents.drop_derived(self._segments.begin)
            return True
        return False

    def finish(self) -> None:
        """Drop everything that is retired. Called at close, when there are no readers."""
        while self._drop():
            pass
        self._notify()

    def _notify(self) -> None:
        self._dependents.send_notices()
        while self._warnings:
            self._warnings.popleft()()

    # --- the first segment ---

    def _retire(self) -> bool:
        """Do a step towards retiring the first segment; return whether anything was done."""
        segments = self._segments
        end = segments.begin + segments.segment_bytes
        if len(segments.numbers) < 2 or end >= self._log.durable or not self._may_remove(end):
            return False  # the last segment stays, and it has a record
        try:
            if self._dependents.move(segments.begin, end):
                return True
            if not all(carry(end) for carry in self._carriers):
                return False
        except (CorruptError, MessageError) as error:
            self._warn("stopped", error)
            return False
        if self._moved_end is None:
            with self._log.lock:
                self._moved_end = self._log.end
        # Check again: a guard may have needed less when it was asked above.
        if not self._dependents.is_past(end, self._moved_end) or not self._may_remove(end):
            return False
        self._log.sync_through(self._moved_end)
        reach("retention_emptied")
        segments.retire(end)
        self._emptied_end, self._moved_end = 0, None
        self._may_drop_derived = True
        reach("retention_retired")
        # Not left to the next checkpoint, because this needs no space.
        self._dependents.checkpoint.raise_begins()
        reach("retention_begin_raised")
        return True

    def _may_remove(self, end: int) -> bool:
        """Return whether the segment that ends at `end` is to be removed and is not needed."""
        if self._dependents.lowest_needed() < end:
            return False
        if self._emptied_end != end:  # once begun, the removal continues
            self._is_for_space = self._is_too_large()
            if not self._is_for_space and not self._is_expired(end):
                return False
            self._emptied_end = end
        return self._is_for_space or self._is_read(end) or self._is_too_large()

    def _is_read(self, end: int) -> bool:
        if self._lowest_unread() >= end:
            return True
        self._warn("kept for groups that have not read up to", end)
        return False

    def _is_expired(self, end: int) -> bool:
        """Return whether the record after the segment is old enough; then all records in it are."""
        if not self._config.retention_ms:
            return False
        if self._expiry is None or self._expiry[0] != end:
            with self._segments.view(self._log.written) as view:
                self._segments.call(view, self.name, lib.ts_record_store_ms, end, self._store_ms)
            self._expiry = end, int(self._store_ms[0])
        return self._expiry[1] + self._config.retention_ms <= self._clock.now_ms

    def _is_too_large(self) -> bool:
        """Return whether the oldest segment is to be removed to save space.

        Worked example with a limit of 10: 9 units of data are pending, and 3 more are appended. One
        pass goes through all segments. After it the log holds the 9, moved, and 1 that was appended
        during the pass. The next pass starts when the log holds 20, and leaves about 9 again. So a
        pending byte is copied at most as often as a byte is appended.
        """
        begin, end = self._segments.begin, self._log.end
        if not self._exceeds_limit(end - begin):
            self._pass_end, self._resume_bytes = None, 0
            return False
        if end - begin < self._resume_bytes:
            return False
        if self._pass_end is None:
            self._pass_end = end
        if begin + self._segments.segment_bytes > self._pass_end:
            self._pass_end, self._resume_bytes = None, 2 * (end - begin)
            self._warn("the log is too large, but its messages are pending", end)
            return False
        return True

    def _exceeds_limit(self, size: int) -> bool:
        config = self._config
        if 0 < config.retention_log_bytes < size:
            return True
        limit = config.retention_disk_percent
        return 0 < limit < self._disk.used_percent(self._segments.directory)

    def _warn(self, event: str, detail: Any) -> None:
        """Queue a warning, unless it repeats the last one."""
        text = f"{event} {detail}"
        if text != self._last_warning:
            self._last_warning = text
            warn = logging.getLogger("timerstore.log").warning
            self._warnings.append(
                partial(warn, "retention=%r begin=%d", text, self._segments.begin)
            )
