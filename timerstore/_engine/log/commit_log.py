"""Append records to the commit log, write them to segment files, and sync them.

The commit log holds all messages in order of arrival. All other files can be rebuilt from it. A
record is appended to a half of the staging file (staging.py). When a half is full, appending
continues in the other half, and the dispatch thread writes the full one to its segment. An append
waits only if both halves are full.

Thread safety: any thread may append. One thread at a time writes out; one at a time syncs
    (GroupCommit).
Locking: `_write_lock`, then `lock`, the append lock. The leader of a sync round takes both. No
    system call is made under the append lock. C takes this lock too, without the GIL, so code under
    it must not rely on the GIL.
Invariants:
    1. durable <= written <= end.
    2. Both staging halves survive a kill of the process.
    3. Before a record is placed, its space is reserved and its segment's name is durable.
    4. After the first failed sync, nothing is acknowledged.
Raises: FullError before anything is appended. After a failed sync, FailedError until the store is
    reopened.
On-disk format: native/format/record.h, in the segments of commitlog/.
See also: docs/exactly-once.md; docs/decisions/0002-group-commit.md.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import (
    Lock,
    NativeGroupCommit,
    ffi,
    lib,
    raise_status,
)
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.signal import Signals
from timerstore._engine.log.staging import Staging
from timerstore._engine.storage.guarded_map import TruncationWatch
from timerstore._engine.storage.segments import Segments
from timerstore.errors import (
    FailedError,
    MessageError,
    TimerStoreError,
    as_failure,
    is_interrupt,
    reentrant_call,
)
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig

# --- group commit ---
# Group commit: one thread syncs the log for all waiting threads.
#
# The first thread becomes the leader of a round and syncs. Threads that arrive during the round
# wait until a sync has covered their records.
#
# Thread safety: any thread.
# Locking: the GIL protects the state, which only C changes. A waiter sleeps without the GIL.
# Invariants:
#     1. At most one thread leads.
#     2. No thread waits unless another one leads. The end of a round wakes all threads that it
#        served, and the first of the others, which leads the next round.
#     3. A thread that leaves with an exception (Ctrl-C) wakes all waiting threads.
# See also: native/fastpath/group_commit.c; docs/decisions/0002-group-commit.md.


class GroupCommit(NotCopyable, NativeGroupCommit):  # type: ignore[misc]
    """Choose the thread that syncs, and let the others wait."""

    __slots__ = ()


# --- commit log ---


_BLANK_BYTES = 16
_HINTS_MAX = 1 << 14  # three staging halves of small messages: 1 MiB
_WRITE_BACK_BYTES_MIN = 1 << 18  # smaller pieces are left to the sync


class _FullHalf(NamedTuple):
    """A staging half that takes no more records and has not been written out."""

    base: int  # log offset of its first byte
    size: int
    end: int  # log offset of the next half: the next segment's begin if this half ends a segment
    half: int


class CommitLog(NotCopyable):
    """The commit log of one store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        segments: Segments,
        staging: Staging,
        end: int,
        lock: Any,
        signals: Signals,
    ) -> None:
        """`end`: the log offset of the next record. `lock`: an AppendLock."""
        self._config = config
        self._clock = clock
        self.segments = segments
        self._staging = staging
        self.lock = lock
        self._signals = signals
        self._write_lock = Lock()
        self.group_commit = GroupCommit(self._write_lock)
        self.written = end
        self.durable = end
        self.failed: TimerStoreError | None = None
        self._cuts = TruncationWatch(segments.directory.parent)
        self._full_half: _FullHalf | None = None  # not written out yet; under _write_lock
        staging.start(end)
        segments.reserve_from(end)
        self._hint_array = ffi.new("ts_append_hint[]", _HINTS_MAX)
        self.append_hints: Any = ffi.new(
            "ts_append_hints *", {"at": self._hint_array, "capacity": _HINTS_MAX}
        )
        self._kept = ffi.new("uint8_t[]", lib.ts_template_cache_bytes())
        self.group_bytes_max = min(staging.half_bytes, segments.segment_bytes) - _BLANK_BYTES
        self.native: Any = ffi.new(
            "ts_log *",
            {
                "lock": ffi.cast("void *", self.lock.address),
                "hints": self.append_hints,  # for dispatch
                "templates": self._kept,
                "staging_bytes": min(config.staging_bytes, staging.half_bytes - _BLANK_BYTES),
                "segment_bytes": segments.segment_bytes,
                "precision_ms": config.precision_ms,
                "property_crc": config.property_crc,
                "mark_crc": not config.property_crc,
                "needed_only": config.delivered_properties == "needed",
                "soon_end": end,  # of the records that are not dispatched yet, some may be due
                "append_limit": end,  # nothing is reserved yet
            },
        )
        self._point_at(end)
        self._out = memoryview(ffi.buffer(ffi.addressof(self.native, "out"), 16)).cast("q")

    @property
    def end(self) -> int:
        """Log offset of the next record."""
        return int(self.native.base + self.native.filled)

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest record, ms since 1970."""
        return int(self.native.last_store_ms)

    def check_alive(self) -> None:
        """Raise FailedError if the log has failed, or if a file of the store was truncated."""
        try:
            self._cuts.check()
        except FailedError as error:
            self.fail(error)
        if self.failed is not None:
            raise self.failure() from self.failed

    def failure(self) -> FailedError:
        """Return the error of every call after the log has failed."""
        return FailedError(
            f"the store has failed and must be reopened: {self.failed}",
            where=self.segments.directory,
        )

    def _point_at(self, base: int) -> None:
        which = self._staging.active
        self.native.staging = self._staging.half(which)
        self.native.filled_mark = self._staging.mark(which)
        self.native.base = base
        self.native.filled = 0

    def append(self, what: str, call: Callable[..., int], *arguments: Any) -> tuple[int, int, int]:
        """Call a C append function under the append lock, and return its result.

        If C needs space, timer states or message ids, provide them without the lock and call again.
        Returns the status, and `out[0]` and `out[1]` as they were in the same critical section. May
        complete a checkpoint, to bound the part of the log after the last one.
        """
        native, out = self.native, self._out
        while True:
            with self.lock:
                got = call(native, *arguments)
                if got >= 0:
                    return got, out[0], out[1]
                need = int(native.need)
            self.provide(got, need, what)

    def append_now(self, call: Callable[..., int], *arguments: Any) -> tuple[int, int, int] | None:
        """Append as `append` does, unless that needs to wait; then append nothing, return None."""
        lock, out = self.lock, self._out
        if not lock.enter_now():
            return None
        try:
            got = call(self.native, *arguments)
            return (got, out[0], out[1]) if got >= 0 else None
        finally:
            lock.__exit__()

    def wait_for_checkpoint(self) -> None:
        """Bound the part of the log after the last checkpoint; may complete a checkpoint.

        The caller must hold no lock.
        """
        self._signals.appending()

    def provide(self, status: int, need: int, what: str) -> None:
        """Provide the resource that an append needs, or raise the error that `status` stands for.

        `need`: bytes, or a number of timer states or message ids. `what`: names the operation in
        an error.
        """
        if status == lib.TS_NEED_SPACE:
            self.wait_for_checkpoint()
        self.provide_in_batch(status, need, what)

    def provide_in_batch(self, status: int, need: int, what: str) -> None:
        """Like `provide`, for a batch whose caller has already called `wait_for_checkpoint`."""
        if status == lib.TS_NEED_SPACE:
            self.make_room(need)
        elif status == lib.TS_NEED_STATES:
            self._signals.states_needed(need)
        elif status == lib.TS_NEED_IDS:
            self._signals.ids_needed(need)
        else:
            raise_status(status, what)

    def make_room(self, size: int) -> None:
        """Make `size` more bytes fit: swap halves, reserve space, or begin the next segment."""
        if size > self.group_bytes_max:
            raise MessageError(
                f"record or atomic group: wanted at most {self.group_bytes_max} bytes, got {size}"
            )
        self.check_alive()
        with self._write_lock:
            end = self.end  # may grow concurrently; if space is still missing, the caller retries
            left = self.segments.segment_bytes - end % self.segments.segment_bytes
            if self.native.filled + size > self.native.staging_bytes:
                self._swap(roll=False)
                self._signals.staging_half_full()
            if size + _BLANK_BYTES <= left:
                self._reserve(min(end + size + self._config.staging_bytes, end + left))
                return
            following = end + left
            self.segments.create(following // self.segments.segment_bytes)
            self.segments.reserve(following + size)
            self._swap(roll=True)
            self._write_full_half()
            self._reserve(following + size)

    def _reserve(self, offset: int) -> None:
        reserved = self.segments.reserve(offset)
        with self.lock:
            end = self.end
            segment_end = end - end % self.segments.segment_bytes + self.segments.segment_bytes
            if self.failed is None:
                self.native.append_limit = min(reserved, segment_end - _BLANK_BYTES)

    def write_out(self) -> int:
        """Write all staged bytes to the segments, and return the log offset of their end."""
        if self.native.filled or self._full_half is not None:
            with self._write_lock:
                self._swap(roll=False)
                self._write_full_half()
        return self.written

    def written_through(self, offset: int) -> int:
        """Write out the staged bytes if any lies below `offset`; return the end of the written."""
        return self.written if self.written >= offset else self.write_out()

    def write_out_once(self) -> int:
        """Write out the full half, or all staged bytes if no half is full; return their end.

        For the dispatch thread: other threads append to the other half concurrently.
        """
        if self.native.filled or self._full_half is not None:
            with self._write_lock:
                if self._full_half is None:
                    self._swap(roll=False)
                self._write_full_half()
        return self.written

    def _swap(self, *, roll: bool) -> None:
        """Continue appending in the other half; `roll`: in the next segment.

        Writes the other half out first, if it is full. The present half is left to be written.
        """
        self._write_full_half()
        self.check_alive()
        try:
            with self.lock:
                if not roll and not self.native.filled:
                    return
                left = self._half_to_leave(roll=roll)
                try:
                    self._leave_half(left, roll=roll)
                except BaseException:  # a signal handler raised in it
                    self._leave_half(left, roll=roll)
                    raise
        except BaseException as error:  # a half that is not recorded would never be written
            self._fail_unless_interrupted(error)
            raise
        reach("log_rolled" if roll else "log_half_swapped")

    def _half_to_leave(self, *, roll: bool) -> _FullHalf:
        base, size = int(self.native.base), int(self.native.filled)
        if roll:
            size += _BLANK_BYTES
        end = base + size
        if roll:
            end += -end % self.segments.segment_bytes
        return _FullHalf(base, size, end, self._staging.active)

    def _leave_half(self, left: _FullHalf, *, roll: bool) -> None:
        """Continue after a half. May be repeated if an exception ended it: each step sets what it
        would set again.
        """
        if roll and self.native.base == left.base and self.native.filled < left.size:
            status = lib.ts_blank(self.native)
            assert status == 0, "a blank always fits: append_limit leaves space for it"
        self._full_half = left
        self._staging.leave(left.half, left.end)
        self._point_at(left.end)
        if roll:
            self.native.append_limit = left.end

    def _write_full_half(self) -> None:
        full = self._full_half
        if full is None:
            return
        self.check_alive()
        try:
            self.segments.write(full.base, self._staging.bytes_of(full.half, full.size))
            if full.size >= _WRITE_BACK_BYTES_MIN:
                self.segments.start_writing(full.base, full.size)
            self.written = full.end
            self._full_half = None
        except BaseException as error:
            # Its space was reserved, so the disk is not merely full. The records cannot be undone.
            self._fail_unless_interrupted(error)
            raise
        reach("log_written_out")

    def read_tail(self, offset: int, size: int) -> tuple[int, bytes]:
        """Read bytes at or after `offset` that lie past everything that was written.

        Returns their log offset and at most `size` bytes; no bytes if only holes follow.
        """
        with self._write_lock:
            return self.segments.read_data(max(offset, self.written), size)

    def sync_through(self, offset: int) -> None:
        """Return when the log is durable below `offset`. One sync serves all waiting threads.

        Raises:
            FailedError: the log has failed.
            ReentrantCallError: a signal handler called this while its thread was syncing.
        """
        if self.group_commit.is_led_here or self._write_lock.is_mine():
            raise reentrant_call(self.segments.directory)
        try:
            while self.durable < offset:
                took_ns = self._lead_round(offset) if self.group_commit.lead(offset) else None
                if took_ns is not None:
                    self._signals.synced(took_ns)
                    reach("log_synced")
                    self._signals.durable()
        except BaseException:
            self.group_commit.abandon()
            self._signals.durable()  # Ctrl-C may come after the sync: other threads await this
            raise

    def _lead_round(self, offset: int) -> int | None:
        """Lead a round; return its sync time in ns, or None if no sync was needed."""
        self.check_alive()
        if self.durable >= offset:
            self.group_commit.end(self.durable)
            return None
        try:
            written = self.write_out()
            start_ns = self._clock.monotonic_ns
            self.segments.sync()
            self.check_alive()  # the staging file may have been truncated during an append
            self._staging.note_durable(written)
            self.durable = written
        except BaseException as error:
            self._fail_unless_interrupted(error)
            raise
        took_ns = self._clock.monotonic_ns - start_ns
        self.group_commit.end(written)
        return took_ns

    def _fail_unless_interrupted(self, error: BaseException) -> None:
        """Mark the log as failed after an error in a step that writes or syncs.

        Not if a signal handler raised in it: each step is repeated from its beginning by the next
        call. The half that was left is still recorded, the file that was not synced counts as
        dirty, and `durable` has its value of before. A failed sync has raised another error.
        """
        if not is_interrupt(error):
            self.fail(as_failure(error, self.segments.directory))

    def fail(self, error: TimerStoreError) -> None:
        """Mark the log as failed: from now on nothing is acknowledged."""
        is_first = self.failed is None
        if is_first:
            self.failed = error
        with self.lock:
            self.native.append_limit = 0  # every append asks for space and raises FailedError
        if is_first:
            self._signals.store_failed()
        self._signals.durable()

    def close(self) -> None:
        """Close the files. Everything must have been written out, or the log has failed."""
        self._staging.close()
        self.segments.close()
