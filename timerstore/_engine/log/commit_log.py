"""Commit log: all messages in order of arrival; the truth.

Data:     native/format/record.h; segments in commitlog/, staging.py before that.
Threads:  any may append, under `lock`; one at a time writes out (`_write_lock`) or syncs
          (group_commit.py).
Locks:    _write_lock, then lock; the leader of a sync round takes both. `lock` is held for copying
          only: no system call under it. C takes it, too (critical_section.h): what stands under it
          may not count on the GIL.
          A half that is full is left for dispatch to write out, and appending goes on in the other;
          it waits only where that one is full too.
Holds:    durable <= written <= end; both halves outlive the process; space is reserved, and a
          segment's name durable, before a record is placed; after the first failed sync nothing is
          acknowledged any more.
Fails:    FullError before anything was appended; FailedError for good after a failed sync.
Source:   docs/exactly-once.md; docs/decisions/0002-group-commit.md.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import (
    Lock,
    ffi,
    lib,
    raise_status,
)
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.signals import Signals
from timerstore._engine.log.group_commit import GroupCommit
from timerstore._engine.log.staging import Staging
from timerstore._engine.storage.guarded_map import TruncationWatch
from timerstore._engine.storage.segments import Segments
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import (
    FailedError,
    MessageError,
    TimerStoreError,
    as_failure,
    reentrant_call,
)

_BLANK_BYTES = 16
_NOTES = 1 << 14  # three staging halves of small messages: 1 MiB
_WRITE_BACK_BYTES_MIN = 1 << 18  # smaller pieces are left for the sync to gather


class _Left(NamedTuple):
    """A staging half that appending has left."""

    base: int  # log offset of its first byte
    size: int
    end: int  # log offset behind it, behind the segment where that ends with it
    half: int


class CommitLog(Owner):
    """The log's end: appending, writing out, syncing."""

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
        """`end`: where the log ends. `lock`: an AppendLock."""
        self._config = config
        self._clock = clock
        self.segments = segments
        self._staging = staging
        self.lock = lock
        self._signals = signals
        self._write_lock = Lock()
        self._rounds = GroupCommit()
        self.written = end
        self.durable = end
        self.failed: TimerStoreError | None = None
        self._cuts = TruncationWatch(segments.directory.parent)
        self._left: _Left | None = None  # a half that is full and not written; under _write_lock
        staging.start(end)
        segments.reserve_from(end)
        self.native: Any = ffi.new("ts_log *")
        self.native.lock = ffi.cast("void *", self.lock.address)
        self._point_at(end)
        self._notes = ffi.new("ts_append_hint[]", _NOTES)
        self.notes: Any = ffi.new("ts_append_hints *", {"at": self._notes, "capacity": _NOTES})
        self.native.hints = self.notes  # dispatch takes them
        self._kept = ffi.new("uint8_t[]", lib.ts_template_cache_bytes())
        self.native.templates = self._kept
        self._out = memoryview(ffi.buffer(ffi.addressof(self.native, "out"), 16)).cast("q")
        self.group_bytes_max = min(staging.half_bytes, segments.segment_bytes) - _BLANK_BYTES
        self.native.staging_bytes = min(config.staging_bytes, staging.half_bytes - _BLANK_BYTES)
        self.native.segment_bytes = segments.segment_bytes
        self.native.precision_ms = config.precision_ms
        self.native.property_crc = config.property_crc
        self.native.append_limit = end  # nothing is reserved yet

    @property
    def end(self) -> int:
        """Log offset that the next record gets."""
        return int(self.native.base + self.native.filled)

    def check_alive(self) -> None:
        """Raise what poisoned the log, be it a file of the store that was cut meanwhile."""
        try:
            self._cuts.check()
        except FailedError as error:
            self.fail(error)
        if self.failed is not None:
            raise FailedError(
                f"the store has failed and must be reopened: {self.failed}",
                where=self.segments.directory,
            ) from self.failed

    def _point_at(self, base: int) -> None:
        which = self._staging.active
        self.native.staging = self._staging.half(which)
        self.native.filled_mark = self._staging.mark(which)
        self.native.base = base
        self.native.filled = 0

    def append(self, what: str, call: Callable[..., int], *arguments: Any) -> tuple[int, int, int]:
        """Let C append under the lock, as often as it takes until it has what it lacks; its answer
        and `out[0]`, `out[1]` of the same hold. Bounds the log beyond the last checkpoint.
        """
        native, out = self.native, self._out
        while True:
            with self.lock:
                got = call(native, *arguments)
                if got >= 0:
                    return got, out[0], out[1]
                need = int(native.need)
            self.serve(got, need, what)

    def wait_for_checkpoint(self) -> None:
        """Bound the log past the last checkpoint, holding no lock: may complete a checkpoint."""
        self._signals.appending()

    def serve(self, status: int, need: int, what: str) -> None:
        """Get what an append lacked, so that it can go on; raise what it found otherwise."""
        if status == lib.TS_NEED_SPACE:
            self.wait_for_checkpoint()
        self.serve_hold(status, need, what)

    def serve_hold(self, status: int, need: int, what: str) -> None:
        """The same amid a batch, whose caller has waited for the checkpoint before it."""
        if status == lib.TS_NEED_SPACE:
            self.make_room(need)
        elif status == lib.TS_NEED_STATES:
            self._signals.states_needed(need)
        elif status == lib.TS_NEED_IDS:
            self._signals.ids_needed(need)
        else:
            raise_status(status, what)

    def make_room(self, size: int) -> None:
        """Let `size` more bytes fit: writes out, reserves space, goes on to the next segment."""
        if size > self.group_bytes_max:
            raise MessageError(
                f"record, or group of records: wanted at most {self.group_bytes_max} bytes, "
                f"got {size}"
            )
        self.check_alive()
        with self._write_lock:
            end = self.end  # grows meanwhile, never shrinks: then the caller comes again
            left = self.segments.segment_bytes - end % self.segments.segment_bytes
            if self.native.filled + size > self.native.staging_bytes:
                self._swap(roll=False)
                self._signals.half_left()
            if size + _BLANK_BYTES <= left:
                self._reserve(min(end + size + self._config.staging_bytes, end + left))
                return
            following = end + left
            self.segments.create(following // self.segments.segment_bytes)
            self.segments.reserve(following + size)
            self._swap(roll=True)
            self._write_left()
            self._reserve(following + size)

    def _reserve(self, offset: int) -> None:
        reserved = self.segments.reserve(offset)
        with self.lock:
            end = self.end
            segment_end = end - end % self.segments.segment_bytes + self.segments.segment_bytes
            if self.failed is None:
                self.native.append_limit = min(reserved, segment_end - _BLANK_BYTES)

    def write_out(self) -> int:
        """Write what is staged to the segments; the log offset behind it."""
        if self.native.filled or self._left is not None:
            with self._write_lock:
                self._swap(roll=False)
                self._write_left()
        return self.written

    def written_through(self, offset: int) -> int:
        """Write out what is staged where it holds bytes below `offset`; the end of the written."""
        return self.written if self.written >= offset else self.write_out()

    def write_out_once(self) -> int:
        """Write the half that appending left behind; all that is staged where there is none. For
        the one who is woken for it: so those who append go on in the other half meanwhile.
        """
        if self.native.filled or self._left is not None:
            with self._write_lock:
                if self._left is None:
                    self._swap(roll=False)
                self._write_left()
        return self.written

    def _swap(self, *, roll: bool) -> None:
        """Go on in the other half, which is written; this one is left."""
        self._write_left()
        self.check_alive()
        try:
            with self.lock:
                if not roll and not self.native.filled:
                    return
                self._leave_half(roll=roll)
        except BaseException as error:  # a half that nobody knows of would never be written
            self.fail(as_failure(error, self.segments.directory))
            raise
        reach("log_rolled" if roll else "log_half_swapped")

    def _leave_half(self, *, roll: bool) -> None:
        base = int(self.native.base)
        if roll:
            status = lib.ts_blank(self.native)
            assert status == 0, "a blank always fits: append_limit keeps its bytes"
        size = int(self.native.filled)
        end = base + size
        if roll:
            end += -end % self.segments.segment_bytes
        self._left = _Left(base, size, end, self._staging.swap(end))
        self._point_at(end)
        if roll:
            self.native.append_limit = end

    def _write_left(self) -> None:
        left = self._left
        if left is None:
            return
        self.check_alive()
        try:
            self.segments.write(left.base, self._staging.bytes_of(left.half, left.size))
            if left.size >= _WRITE_BACK_BYTES_MIN:
                self.segments.start_writing(left.base, left.size)
            self.written = left.end
            self._left = None
        except BaseException as error:
            # The space was reserved: this is no full disk, and the half cannot be taken back.
            self.fail(as_failure(error, self.segments.directory))
            raise
        reach("log_written_out")

    def read_tail(self, offset: int, size: int) -> tuple[int, bytes]:
        """Give bytes that lie behind everything that is written, from `offset` on: where they
        begin, and at most `size` of them; none where only holes are left.
        """
        with self._write_lock:
            return self.segments.read_data(max(offset, self.written), size)

    def sync_through(self, offset: int) -> None:
        """Return when the log is durable below `offset`. One sync serves all waiting threads."""
        if self._rounds.is_led_here or self._write_lock.is_mine():
            raise reentrant_call(self.segments.directory)
        try:
            while self.durable < offset:
                took_ns = self._round(offset)
                if took_ns is not None:
                    self._signals.synced(took_ns)
                    reach("log_synced")
                    self._signals.durable()
        except BaseException:
            self._rounds.leave()
            self._signals.durable()  # Ctrl-C behind the sync: those whom it served count on that
            raise

    def _round(self, offset: int) -> int | None:
        """Lead a round, or sleep through one: how long its sync took, None where it led none."""
        return self._lead_round(offset) if self._rounds.lead(offset) else None

    def _lead_round(self, offset: int) -> int | None:
        self.check_alive()
        if self.durable >= offset:
            self._rounds.end(self.durable)
            return None
        try:
            written = self.write_out()
            start_ns = self._clock.monotonic_ns
            self.segments.sync()
            self.check_alive()  # the staging may have been cut under those who appended
            self._staging.note_durable(written)
            self.durable = written
        except BaseException as error:  # Ctrl-C, too: what was to be synced is forgotten
            self.fail(as_failure(error, self.segments.directory))
            raise
        took_ns = self._clock.monotonic_ns - start_ns
        self._rounds.end(written)
        return took_ns

    def fail(self, error: TimerStoreError) -> None:
        """Poison the log: nothing is acknowledged after this."""
        if self.failed is None:
            self.failed = error
        with self.lock:
            self.native.append_limit = 0  # every append now asks for room, and is told
        self._signals.durable()

    def close(self) -> None:
        """Let go of the files. Everything was written out, or the log has failed."""
        self._staging.close()
        self.segments.close()
