"""Write checkpoints: the side files and the watermark that recovery starts from.

Thread safety: the flush thread, closing, and a put that finds too much log after the last
    checkpoint call it. `_lock` admits one at a time.
Locking: `_lock`, then the wheel's lock and the append lock, one after the other.
Invariants:
    1. Under the wheel's lock it notes `timer_log_end`, `timer_queue_offset` and `replay_slot`, and
       copies the wheel's dirty pages.
    2. In one critical section it notes `log_end` and copies the dirty states.
    3. It then makes durable, in this order: the log, the queues and the timer log, the states and
       the wheel, the watermark.
Raises: FullError is retryable: no data is lost, and the copies count as dirty again. FailedError is
    final.
On-disk format: format/watermark.py, and the files that a watermark describes.
See also: docs/exactly-once.md
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.counts_json import Pending
from timerstore._engine.format.far_table import FarTable
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.timer_states import DirtyChunks
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.message_ids import Ids, IdsCopy
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.storage.disk import File
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import Int64Array
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import DirtyPages, Wheel
from timerstore.errors import FailedError, TimerStoreError, as_failure

# --- checkpoint counts ---
# Copy the counts of all queues for a checkpoint.
#
# Locking: `copy_counts` is called in the critical section that notes the log's end.


Counted = list[tuple[Route, tuple[int, int, int]]]
"""Of each queue: its pending timers, next offset, and pending messages on delay levels."""


def copy_counts(routes: Routes) -> Counted:
    """Copy the counts of every queue. The caller holds the append lock."""
    return [
        (
            route,
            (
                int(route.native.pending),
                int(route.native.next_offset),
                int(route.native.level_pending),
            ),
        )
        for route in list(routes.by_index)
    ]


def counts_by_topic(counted: Counted) -> tuple[Pending, Pending, Pending]:
    """Return the three counts, each by topic and queue number. Counts of 0 are left out."""
    tables: tuple[Pending, Pending, Pending] = ({}, {}, {})
    for route, counts in counted:
        for table, count in zip(tables, counts, strict=True):
            if count:
                table.setdefault(route.topic, {})[route.queue_id] = count
    return tables


# --- checkpoint ---


_PAUSE_S = 0.005  # between two calls of `pause` while another thread completes a checkpoint


def _go_on() -> None:
    return None


class _Snapshot(NamedTuple):
    timer_log_end: int
    timer_queue_offset: int
    replay_slot: int
    log_begin: int
    log_end: int
    timer_id_end: int
    pages: DirtyPages
    far: FarTable | None
    chunks: DirtyChunks
    past: Int64Array
    counts: counts_json.Counts
    ids: IdsCopy
    recurring: list[Definition]


class Checkpoint(NotCopyable):
    """Writes checkpoints of one store."""

    def __init__(
        self,
        core: Core,
        tree: Tree,
        far: FarWheel,
        timer_log: TimerLog,
        open_slot: OpenSlot,
        wheel: Wheel,
        levels: LevelCursors,
        ids: Ids,
        dispatch: Dispatch,
        copy_recurring: Callable[[], list[Definition]],
        last: Watermark | None,
    ) -> None:
        """Open the watermark's file.

        `copy_recurring` is called in the critical section that notes the log's end. It returns the
        recurring definitions of that point. `last` is the watermark that recovery started from.
        """
        self._config = core.config
        self._clock = core.clock
        self._disk = core.disk
        self._tree = tree
        self._store_id = core.store_id
        self._signals = core.signals
        self._lock = Lock()
        self._file: File | None = core.disk.open(tree.watermark, create=True)
        core.disk.sync_directory(tree.side)
        self._sequence = last.sequence if last is not None else 0
        self._entries: list[counts_json.Counts] = []
        if last is not None:
            old = counts_json.read_counts(
                core.disk.read_small(tree.counts), last.log_end, last.sequence
            )
            self._entries = [] if old is None else [old]
        self.completed: Watermark | None = None
        self.begun = self.completed_number = 0  # since opening
        self._copy_recurring = copy_recurring
        self.recurring: list[Definition] = []  # as of the last completed checkpoint
        self.completed_log_end = last.log_end if last is not None else 0
        self.took_ns = 0
        self._log = core.log
        self._far = far
        self._timer_log = timer_log
        self._open_slot = open_slot
        self._wheel = wheel
        self._states = core.states
        self._routes = core.routes
        self._timer_route = core.timer_route
        self._levels = levels
        self._ids = ids
        self._dispatch = dispatch

    @property
    def has_grown(self) -> bool:
        """Whether the log has grown by so much that a checkpoint is due."""
        grown = self._log.end - self.completed_log_end
        return grown >= self._config.checkpoint_log_bytes

    @property
    def _is_over_limit(self) -> bool:
        grown = self._log.end - self.completed_log_end
        return grown > self._config.checkpoint_log_bytes_max

    @property
    def has_no_space(self) -> bool:
        """Whether an attempt has failed since the last completed one: the disk is full."""
        return self.begun > self.completed_number + 1  # the last attempt may be running

    def wait(self) -> None:
        """Keep the log since the last checkpoint within its limit. The caller holds no lock.

        Appending requests a checkpoint well before that limit, so that the calling thread rarely
        has to complete one itself.
        """
        if self._is_over_limit:
            self.run(only_if_over_limit=True)
        elif self.has_grown:
            self._signals.checkpoint_due()

    @property
    def is_behind(self) -> bool:
        """Whether anything changed since the last checkpoint."""
        last = self.completed
        return (
            last is None
            or last.is_clean == 1
            or self._far.is_dirty
            or (last.log_end, last.timer_log_end, last.timer_queue_offset, last.replay_slot)
            != (
                self._log.end,
                self._timer_log.end,
                self._timer_log.linked_offset,
                self._open_slot.replay_slot(self._wheel.read_slot),
            )
        )

    def run(
        self,
        *,
        is_clean: bool = False,
        only_if_over_limit: bool = False,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Complete one checkpoint; it is durable on return.

        is_clean: the store is closing: no service runs and nothing is appended afterwards.
        only_if_over_limit: return at once if the log is within its limit by now.
        pause: called between the files, each of which is synced, and while another thread completes
            a checkpoint. It may sync the log.

        Raises:
            FullError: the disk is full; nothing was lost.
            FailedError: the store has failed for good.
        """
        if pause is None:
            with self._lock:
                if only_if_over_limit and not self._is_over_limit:
                    return
                self._run(_go_on, is_clean=is_clean)
        else:
            while not self._lock.acquire(timeout=_PAUSE_S):
                pause()
            try:
                self._run(pause, is_clean=is_clean)
            finally:
                self._lock.release()
        self._signals.checkpoint_completed()

    def _run(self, pause: Callable[[], None], *, is_clean: bool) -> None:
        start_ns = self._clock.monotonic_ns
        self._log.check_alive()
        self.begun += 1
        try:
            taken, mark = self._taken_and_written(pause, is_clean=is_clean)
        except TimerStoreError:
            raise
        except BaseException as error:
            # After MemoryError or KeyboardInterrupt the copies would count as clean.
            self._log.fail(as_failure(error, self._tree.watermark))
            raise
        self.completed, self.recurring = mark, taken.recurring
        self.completed_number = self.begun
        self.completed_log_end = mark.log_end
        self._wheel.checkpoint_completed(mark.replay_slot)
        self._far.completed(taken.far, mark.far_number)
        self.took_ns = self._clock.monotonic_ns - start_ns

    def _taken_and_written(
        self, pause: Callable[[], None], *, is_clean: bool
    ) -> tuple[_Snapshot, Watermark]:
        try:
            taken = self._take()
        except BaseException as error:  # the parts copied so far would count as clean
            self._log.fail(as_failure(error, self._tree.watermark))
            raise
        reach("checkpoint_taken")
        try:
            return taken, self._write(taken, pause, is_clean=is_clean)
        except TimerStoreError as error:
            with self._wheel.lock:
                self._wheel.mark_dirty(taken.pages)
                self._far.give_back(taken.far)
            with self._log.lock:
                self._states.mark_dirty(taken.chunks)
            if isinstance(error, FailedError):
                self._log.fail(error)
            raise

    @contextmanager
    def still(self) -> Iterator[None]:
        """Prevent checkpoints from being written inside the `with` block."""
        with self._lock:
            yield

    def _take(self) -> _Snapshot:
        with self._wheel.lock:
            timer_log_end = self._timer_log.end
            timer_queue_offset = self._timer_log.linked_offset
            replay_slot = self._open_slot.replay_slot(self._wheel.read_slot)
            pages = self._wheel.copy_dirty()
            self._wheel.checkpoint_begins(self._open_slot.outstanding())
            far = self._far.take()
        with self._log.lock:
            log_begin, log_end = self._log.segments.begin, self._log.end
            timer_id_end = int(self._log.native.timer_route.next_offset)
            chunks = self._states.copy_dirty()
            past = self._states.expired(self._timer_route.queue.min_offset)
            levels = self._levels.copy()
            ids = self._ids.take()
            recurring = self._copy_recurring()
            counted = copy_counts(self._routes)
        pending, ends, level_pending = counts_by_topic(counted)
        return _Snapshot(
            timer_log_end,
            timer_queue_offset,
            replay_slot,
            log_begin,
            log_end,
            timer_id_end,
            pages,
            far,
            chunks,
            past,
            counts_json.Counts(log_end, pending, ends, levels, level_pending),
            ids,
            recurring,
        )

    def _write(self, taken: _Snapshot, pause: Callable[[], None], *, is_clean: bool) -> Watermark:
        self._log.sync_through(taken.log_end)
        self._log.segments.check_files_in_place()
        self._timer_log.segments.check_files_in_place()
        self._far.segments.check_files_in_place()
        reach("checkpoint_log_synced")
        self._signals.checkpoint_marking()
        pause()
        self._dispatch.through(taken.log_end)
        pause()
        self._timer_log.sync()
        for queue in self._routes.queues():
            pause()
            queue.sync()
        reach("checkpoint_queues_synced")
        if self._dispatch.index is not None:
            pause()
            self._dispatch.index.save(self._log, is_clean=is_clean)
        pause()
        chunk_count, digest = self._states.write(taken.chunks, taken.past, taken.log_end)
        reach("checkpoint_states_written")
        pause()
        self._wheel.write(taken.pages)
        reach("checkpoint_wheel_written")
        pause()
        far_number = self._far.write(taken.far)
        reach("checkpoint_far_written")
        pause()
        ids = self._ids.save(taken.ids)
        pause()
        sequence = self._sequence + 1
        counts = taken.counts._replace(ids=ids, past=self._states.expired_ranges, sequence=sequence)
        entries = [*self._entries[-1:], counts]  # the counts of the last completed one stay
        self._disk.write_small(self._tree.counts, counts_json.write(entries))
        reach("checkpoint_counts_written")
        pause()
        mark = Watermark(
            sequence=sequence,
            log_end=taken.log_end,
            timer_log_end=taken.timer_log_end,
            timer_queue_offset=taken.timer_queue_offset,
            replay_slot=taken.replay_slot,
            log_begin=taken.log_begin,
            state_chunk_count=chunk_count,
            state_digest=digest,
            store_id=self._store_id,
            is_clean=int(is_clean),
            precision_ms=self._config.precision_ms,
            wheel_slot_count=self._config.wheel_slot_count,
            timer_id_end=taken.timer_id_end,
            timer_log_begin=self._timer_log.segments.begin,
            far_number=far_number,
            wheel_writes=self._wheel.checks.completed,
        )
        self._put(mark)
        # Set only now: a checkpoint that failed earlier must not replace the one in force.
        self._sequence = mark.sequence
        self._entries = entries
        self._states.completed()
        self._ids.completed(taken.ids, ids)
        reach("checkpoint_watermark_written")
        return mark

    def _put(self, mark: Watermark) -> None:
        assert self._file is not None, "a checkpoint after the last one"
        self._log.check_alive()  # a file that was found cut since must not count as written
        self._file.write(watermark.write(mark), mark.sequence % 2 * watermark.SLOT_BYTES)
        self._file.sync()
        self._file.check_in_place()

    def raise_begins(self) -> None:
        """Record in the last completed watermark where the log and the timer log begin now.

        Durable on return. It needs no disk space, because only two numbers of the watermark change.
        The caller has checked that a recovery from that checkpoint needs nothing below the new
        beginnings.
        """
        with self._lock:
            mark = self.completed
            assert mark is not None, "opening completes one"
            begins = self._log.segments.begin, self._timer_log.segments.begin
            if (mark.log_begin, mark.timer_log_begin) == begins:
                return
            self._put_again(mark._replace(log_begin=begins[0], timer_log_begin=begins[1]))

    def record_wheel_writes(self) -> None:
        """Record in the last watermark that the wheel's writes while closing are complete.

        Later damage to the wheel's file is then detected. Durable on return.
        """
        with self._lock:
            mark, writes = self.completed, self._wheel.checks.completed
            assert mark is not None, "closing completes one"
            if mark.wheel_writes != writes:
                self._put_again(mark._replace(wheel_writes=writes))

    def _put_again(self, mark: Watermark) -> None:
        """Write the last completed watermark again, with changed fields."""
        mark = mark._replace(sequence=self._sequence + 1)
        try:
            self._put(mark)
        except FailedError as error:
            self._log.fail(error)
            raise
        self._sequence, self.completed = mark.sequence, mark

    def close(self) -> None:
        """Release the file."""
        self._file = None
