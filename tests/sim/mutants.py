"""Planted bugs: the ancestor's weaknesses and others, each switched on in the tested engine.

    with planted("W-D1"): ...      # the engine has the bug in here

Each replaces a method, a rule or a call into C by a wrong one; nothing in the product knows of it.
What the simulator does not kill is a hole in the simulator, or no bug in this design; the table
(MUTANTS.md, made by `python -m tests.sim.kill`) says which.
Ids: W-xx store-format.md 8.5, 9 and 11; L-xx promises.md 3.5; E-xx found in this engine by the
simulator; P-xx a promise that the others leave untouched.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from timerstore import opening, putting
from timerstore.commitlog import commit_log, recover, staging
from timerstore.errors import FullError, TimerStoreError
from timerstore.files import directory, segments
from timerstore.message import CancelResult
from timerstore.native import ffi, lib
from timerstore.pull import offsets
from timerstore.pull import pull as pulling
from timerstore.queues import consume_queue, dispatch, index, level_cursors
from timerstore.schedule import deliver
from timerstore.timer import (
    cancel,
    checkpoint,
    dequeue_get,
    dequeue_get_message,
    dequeue_put,
    enqueue_get,
    enqueue_put,
    named,
    open_slot,
    states,
    timer_log,
    wheel,
)
from timerstore.timer import recover as timer_recover

Patches = Iterator[Any]


class Mutant(NamedTuple):
    """A planted bug."""

    name: str
    says: str
    patches: Callable[[], Patches]
    equivalent: str = ""  # why it is no bug in this design, where it is none


MUTANTS: dict[str, Mutant] = {}


def _mutant(name: str, says: str, equivalent: str = "") -> Callable[[Any], Any]:
    def register(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        MUTANTS[name] = Mutant(name, says, patches, equivalent)
        return patches

    return register


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have the engine with a bug."""
    with ExitStack() as stack:
        for one in MUTANTS[name].patches():
            stack.enter_context(one)
        yield


class _Lib:
    """C, with some calls replaced."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)


def _nothing(*_args: Any, **_given: Any) -> None:
    return None


def _swap(owner: Any, name: str, value: Any) -> Any:
    return patch.object(owner, name, value)


def _set_states(native: Any, ids: Any, state: int) -> None:
    each = np.ascontiguousarray(ids, np.int64)
    lib.ts_states_set_many(native, ffi.from_buffer("int64_t[]", each), len(each), state)


# --- loss ---


@_mutant("W-L1", "a hand-over that fails three times on a full disk is dropped")
def _three_strikes() -> Patches:
    original, strikes = dequeue_put.DequeuePut.step, {"count": 0}

    def step(self: Any) -> bool:
        try:
            return original(self)
        except FullError:
            strikes["count"] += 1
            if strikes["count"] % 3:
                raise
            due, _ = self._open_slot.pop(self._clock.now_ms, 512)
            for slot in due["slot"].tolist():
                self._open_slot.done(slot, 1)
            return False

    yield _swap(dequeue_put.DequeuePut, "step", step)


@_mutant("W-L4", "after a long downtime reading goes on at the present slot")
def _jump_over() -> Patches:
    def start_at(one: Any, opened: Any, read_slot: int) -> None:
        timer_recover_start(one, opened, read_slot + one.slot_count // 2)

    timer_recover_start = timer_recover.start_at
    yield _swap(timer_recover, "start_at", start_at)


@_mutant("W-L6", "a record that cannot be read while indexing is skipped")
def _skip_unreadable() -> Patches:
    original = enqueue_get.EnqueueGet.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except TimerStoreError:
            self.queue_offset += 1
            return True

    yield _swap(enqueue_get.EnqueueGet, "step", step)


@_mutant("W-L7", "the read time is made durable, the delivered copies are not")
def _copies_not_synced() -> Patches:
    original = checkpoint.Checkpoint._write

    def write(self: Any, taken: Any, *, is_clean: bool) -> Any:
        with _swap(commit_log.CommitLog, "sync_through", lambda log, _end: log.write_out()):
            return original(self, taken, is_clean=is_clean)

    yield _swap(checkpoint.Checkpoint, "_write", write)


@_mutant("W-L8", "the read time moves past what is still in flight")
def _read_time_early() -> Patches:
    yield _swap(open_slot.OpenSlot, "lowest_slot", lambda _self, frontier: frontier)


@_mutant("W-L9", "an unexpected exception drops the rest of a slot")
def _drop_rest() -> Patches:
    original = dequeue_get_message.DequeueGetMessage.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except MemoryError:
            return True

    yield _swap(dequeue_get_message.DequeueGetMessage, "step", step)


@_mutant("W-L10", "a timer log that is gone is not noticed")
def _timer_log_gone() -> Patches:
    yield _swap(timer_log.TimerLog, "is_whole", property(lambda _self: True))


@_mutant("W-L11", "a wheel that is gone is taken for an empty one")
def _wheel_gone() -> Patches:
    original = opening._Opening._forget_mark

    def forget_mark(self: Any) -> None:
        if hasattr(self, "_wheel"):
            original(self)

    yield _swap(opening._Opening, "_forget_mark", forget_mark)


@_mutant("W-L12", "a message for a slot that was read already is put there, and never read")
def _late_is_lost() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        count = lib.ts_timer_link(one, link, *rest)
        link.late_count = 0
        return int(count)

    yield _swap(enqueue_put, "lib", _Lib(ts_timer_link=link))


# --- duplicates ---


@_mutant("W-D1", "what was delivered after the last checkpoint is not known after a crash")
def _no_fold() -> Patches:
    def fold_forward(one: Any, routes: Any, scanned: Any, store_id: int) -> None:
        handed = scanned["kind"] == lib.TS_KIND_DELIVERED
        original(one, routes, scanned[~handed], store_id)

    original = timer_recover.fold_forward
    yield _swap(timer_recover, "fold_forward", fold_forward)


@_mutant("W-D2", "what was indexed last is indexed once more after a restart")
def _indexed_twice() -> Patches:
    original = timer_recover.Start

    def start(timer_queue_offset: int, read_slot: int) -> Any:
        return original(max(0, timer_queue_offset - 2), read_slot)

    yield _swap(timer_recover, "Start", start)


@_mutant("W-D4", "one failure inside a group has all of it indexed again")
def _group_again() -> Patches:
    original = enqueue_put.EnqueuePut.step

    def step(self: Any) -> bool:
        whole = self._rest
        worked = original(self)
        if whole is not None and self._rest is not None and len(self._rest) < len(whole):
            self._rest = whole
        return worked

    yield _swap(enqueue_put.EnqueuePut, "step", step)


@_mutant("W-D6", "side files lost: nothing is known to be delivered")
def _anew_knows_nothing() -> Patches:
    def fold_anew(one: Any, routes: Any, scanned: Any, found: Any) -> None:
        original(one, routes, scanned, found)
        _set_states(one.native, found.ids_handed, lib.TS_WAITING)

    original = timer_recover.fold_anew
    yield _swap(timer_recover, "fold_anew", fold_anew)


@_mutant("W-D8", "what lies behind a cut is not zeroed")
def _cut_without_zeros() -> Patches:
    original = segments.Segments.cut

    def cut(self: Any, offset: int) -> None:
        number, at = divmod(offset, self.segment_bytes)
        if number in self.numbers and at:
            file = self._file(number)
            with _swap(type(file), "zero", _nothing):
                original(self, offset)
        else:
            original(self, offset)

    yield _swap(segments.Segments, "cut", cut)


# --- early, stuck, mislinked ---


@_mutant("W-S1", "the wheel is made durable before the timer log")
def _timer_log_not_synced() -> Patches:
    yield _swap(timer_log.TimerLog, "sync", _nothing)


@_mutant("W-S3", "a cut of the log is not passed on to the queues")
def _queues_not_cut() -> Patches:
    original = consume_queue.ConsumeQueue.recover

    def recovered(self: Any, _log_end: int, log_begin: int) -> None:
        original(self, 2**62, log_begin)

    yield _swap(consume_queue.ConsumeQueue, "recover", recovered)


@_mutant("W-S6", "pages of the wheel changed since its copy was taken are not written again")
def _dirty_pages_forgotten() -> Patches:
    original = wheel.Wheel.copy_dirty

    def copy_dirty(self: Any) -> Any:
        found = original(self)
        keep = len(found.pages) // 2
        return wheel.DirtyPages(found.pages[:keep], found.data[:keep])

    yield _swap(wheel.Wheel, "copy_dirty", copy_dirty)


@_mutant("W-S7", "the clock goes forward and back: what was due in between is delivered at once")
def _latest_time_counts() -> Patches:
    latest = {"ms": 0}

    class Peak:
        def __init__(self, clock: Any) -> None:
            self._clock = clock

        @property
        def now_ms(self) -> int:
            latest["ms"] = max(latest["ms"], self._clock.now_ms)
            return latest["ms"]

    original = dequeue_put.DequeuePut.step

    def step(self: Any) -> bool:
        if not isinstance(self._clock, Peak):
            latest["ms"] = 0
            self._clock = Peak(self._clock)
        return original(self)

    yield _swap(dequeue_put.DequeuePut, "step", step)


@_mutant("W-S8", "messages of one slot come in any order")
def _no_order() -> Patches:
    original = open_slot.OpenSlot.pop

    def pop(self: Any, now_ms: int, capacity: int) -> Any:
        due, frontier = original(self, now_ms, capacity)
        return due[::-1].copy(), frontier

    yield _swap(open_slot.OpenSlot, "pop", pop)


@_mutant("W-S9", "counts of what waits drift")
def _counts_drift() -> Patches:
    original = timer_recover.set_pending

    def set_pending(routes: Any, pending: Any, now_ms: int) -> None:
        original(
            routes, {t: {q: n + 1 for q, n in of.items()} for t, of in pending.items()}, now_ms
        )

    yield _swap(timer_recover, "set_pending", set_pending)


# --- fixed levels ---


@_mutant("W-F1", "levels: what was delivered since the checkpoint comes again after a crash")
def _levels_not_folded() -> Patches:
    yield _swap(opening, "level_places", lambda *_args: np.empty(0, np.int64))


@_mutant("W-F2", "levels: what cannot be handed over now is skipped")
def _level_skipped() -> Patches:
    original = deliver.ScheduleDeliver.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except FullError:
            for queue in self._queues:
                for run in list(queue.runs)[:1]:
                    queue.advance(run, 1)
            raise

    yield _swap(deliver.ScheduleDeliver, "step", step)


@_mutant("W-F3", "levels: an exception inside the loop takes a batch for done")
def _level_batch_done() -> Patches:
    original = deliver.ScheduleDeliver._place

    def place(self: Any, entries: Any, runs: Any, now_ms: int) -> None:
        try:
            original(self, entries, runs, now_ms)
        except FullError:
            self._cursors.done(entries["place"])
            raise

    yield _swap(deliver.ScheduleDeliver, "_place", place)


@_mutant("W-F4", "levels: the offset file is newer than the message")
def _level_cursor_early() -> Patches:
    original = level_cursors.LevelCursors.copy

    def copy(self: Any) -> Any:
        return {queue: (one[0] + 1, *one[1:]) for queue, one in original(self).items()}

    yield _swap(level_cursors.LevelCursors, "copy", copy)


# --- cancels ---


@_mutant("W-R1", "a cancel is answered, and the message comes all the same")
def _cancel_forgotten() -> Patches:
    original = cancel.Canceller.cancel

    def cancelled(self: Any, handle: Any) -> Any:
        answer, end = original(self, handle)
        if answer is CancelResult.CANCELLED:
            found = self._finder.find(handle)
            _set_states(self._finder._states.native, [found[0].timer_id], lib.TS_WAITING)
        return answer, end

    yield _swap(cancel.Canceller, "cancel", cancelled)


@_mutant("W-R3", "a message that rolled cannot be cancelled")
def _rolled_escapes() -> Patches:
    original = named.Finder.find

    def find(self: Any, handle: Any) -> Any:
        found = original(self, handle)
        return [] if any(self._is_rolled(one) for one in found) else found

    def is_rolled(self: Any, one: Any) -> bool:
        return one.timer_id + 1 < self._timer_route.queue.count and bool(one.timer_id % 2)

    yield _swap(named.Finder, "find", find)
    yield patch.object(named.Finder, "_is_rolled", is_rolled, create=True)


@_mutant("W-R4", "a handle names all that has its topic and key, not one message")
def _by_key_only() -> Patches:
    original = named.Finder.find

    def find(self: Any, handle: Any) -> Any:
        waiting = [
            one for one in self._pending.read(None, None, handle.topic)
            if one.message_id == handle.message_id
        ]  # fmt: skip
        if not waiting:
            return original(self, handle)
        route = self._routes.make(handle.topic, waiting[0].queue_id, 0)
        return [
            named.Named(p.timer_id, p.message_id, route, p.due_ms - 1, p.log_offset)
            for p in waiting
        ]  # fmt: skip

    yield _swap(named.Finder, "find", find)


@_mutant("W-R7", "a cancel since the last checkpoint is not known after a crash")
def _cancel_not_folded() -> Patches:
    def fold_forward(one: Any, routes: Any, scanned: Any, store_id: int) -> None:
        deleted = scanned["kind"] == lib.TS_KIND_DELETE
        original(one, routes, scanned[~deleted], store_id)

    original = timer_recover.fold_forward
    yield _swap(timer_recover, "fold_forward", fold_forward)


# --- the lab's twelve ---


@_mutant("L-1", "the checkpoint before the log")
def _checkpoint_first() -> Patches:
    original = checkpoint.Checkpoint._write

    def write(self: Any, taken: Any, *, is_clean: bool) -> Any:
        log = self._rooms.log
        with _swap(type(log.segments), "sync", _nothing):
            log.write_out()
            with _swap(commit_log.CommitLog, "sync_through", _nothing):
                found = original(self, taken, is_clean=is_clean)
        return found

    yield _swap(checkpoint.Checkpoint, "_write", write)


@_mutant("L-2", "no look at the state of an id before it is handed over")
def _no_dedupe() -> Patches:
    def place(log: Any, scratch: Any, drafts: Any, begin: int, end: int, *rest: Any) -> int:
        ids = [drafts[i].id for i in range(begin, end)]
        _set_states(log.states, ids, lib.TS_WAITING)
        return int(lib.ts_deliver_place(log, scratch, drafts, begin, end, *rest))

    yield _swap(dequeue_put, "lib", _Lib(ts_deliver_place=place))


@_mutant("L-3", "a put is acknowledged before it is synced")
def _ack_early() -> Patches:
    yield _swap(putting.Putting, "wants_sync", lambda _self, _flush: False)


@_mutant("L-4", "a slot is used again a lap later whatever it holds")
def _lap() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        link.reuse_below = 2**62
        return int(lib.ts_timer_link(one, link, *rest))

    yield _swap(enqueue_put, "lib", _Lib(ts_timer_link=link))


@_mutant("L-5", "a cancel changes the state and writes no record")
def _cancel_not_logged() -> Patches:
    original = cancel.Canceller.cancel

    def cancelled(self: Any, handle: Any) -> Any:
        found = [one for one in self._finder.find(handle) if handle.timer_id != -1]
        if len(found) == 1 and self._finder._states.get(found[0].timer_id) == lib.TS_WAITING:
            _set_states(self._finder._states.native, [found[0].timer_id], lib.TS_CANCELLED)
            return CancelResult.CANCELLED, 0
        return original(self, handle)

    yield _swap(cancel.Canceller, "cancel", cancelled)


@_mutant("L-6", "a message put into the slot that is being read")
def _slot_in_progress() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        link.frontier -= 1
        return int(lib.ts_timer_link(one, link, *rest))

    yield _swap(enqueue_put, "lib", _Lib(ts_timer_link=link))


@_mutant("L-7", "a pull sees what is not durable")
def _pull_beyond() -> Patches:
    original = pulling.Puller.__init__

    def init(self: Any, metrics: Any, config: Any, clock: Any, log: Any, *rest: Any) -> None:
        from dataclasses import replace

        original(self, metrics, replace(config, visibility="written"), clock, log, *rest)

    yield _swap(pulling.Puller, "__init__", init)


@_mutant("L-8", "a sync covers the own record's range only")
def _ranged_sync() -> Patches:
    def sync(self: Any) -> None:
        dirty = sorted(self._dirty)
        for number in dirty[-1:]:
            self._dirty.pop(number).sync()

    yield _swap(segments.Segments, "sync", sync)


@_mutant("L-9", "the recovered tail is not synced")
def _tail_not_synced() -> Patches:
    def settle_end(one: Any, _trusted: int, end: int) -> None:
        one.cut(end)

    yield _swap(opening, "settle_end", settle_end)


@_mutant("L-11", "the read pointer is taken after the log's end instead of before it")
def _read_pointer_late() -> Patches:
    original = checkpoint.Checkpoint._take

    def take(self: Any) -> Any:
        taken = original(self)
        now_slot = self._clock.now_ms // self._config.precision_ms
        return taken._replace(read_slot=max(taken.read_slot, now_slot + 1))

    yield _swap(checkpoint.Checkpoint, "_take", take)


@_mutant("L-12", "a truncation is not synced")
def _cut_not_synced() -> Patches:
    original = segments.Segments.cut

    def cut(self: Any, offset: int) -> None:
        number, at = divmod(offset, self.segment_bytes)
        if number in self.numbers and at:
            file = self._file(number)
            file.zero(at, self.segment_bytes - at)
            self._remove([n for n in self.numbers if n > number])
            self.reserve_from(offset)
        else:
            original(self, offset)

    yield _swap(segments.Segments, "cut", cut)


# --- found in this engine ---


@_mutant("E-1", "files behind a cut are removed from the front: a death in between leaves a gap")
def _gap() -> Patches:
    def remove(self: Any, numbers: list[int]) -> None:
        for number in sorted(numbers):
            self._forget(number)
            self._disk.unlink(self.path(number))
            self.numbers = [n for n in self.numbers if n != number]
        if self._disk.is_directory(self.directory):
            self._disk.sync_directory(self.directory)

    yield _swap(segments.Segments, "_remove", remove)


@_mutant("E-2", "units that could not be written are linked once more, to themselves")
def _linked_twice() -> Patches:
    def append(self: Any, size: int, end: int) -> None:
        self._timer_log.append(self._units.data[:size], end)

    yield _swap(enqueue_put.EnqueuePut, "_append", append)


@_mutant("E-3", "a sync of a topic's name fails, and the store goes on")
def _sync_failure_not_final() -> Patches:
    original = commit_log.CommitLog.fail

    def fail(self: Any, error: Any) -> None:
        if "config" not in str(error):
            original(self, error)

    yield _swap(commit_log.CommitLog, "fail", fail)


@_mutant("E-4", "a full disk keeps dispatch from telling who waits of what a queue has got")
def _not_told() -> Patches:
    original = dispatch.Dispatch._dispatch

    def dispatched(self: Any, written: int) -> bool:
        listeners, self.listeners = self.listeners, []
        told: list[set[int]] = []
        self.listeners = [told.append]
        try:
            worked = original(self, written)
        finally:
            self.listeners = listeners
        for touched in told:
            for listener in listeners:
                listener(touched)
        return worked

    yield _swap(dispatch.Dispatch, "_dispatch", dispatched)


@_mutant("E-5", "a clock set back: what was read stays read, and fills the slots of the present")
def _frontier_stays() -> Patches:
    yield _swap(wheel.Wheel, "follow_back", _nothing)


# --- promises that the others leave untouched ---


@_mutant("P-1", "a failed sync is tried again, and goes on")
def _sync_retried() -> Patches:
    yield _swap(commit_log.CommitLog, "fail", _nothing)


@_mutant("P-2", "staged bytes of another boot count")
def _any_boot() -> Patches:
    original = staging.leftovers

    def leftovers(disk: Any, path: Any) -> Any:
        if (disk.file_bytes(path) or 0) < 64:
            return []
        written = disk.open(path).read(8, 16)
        with _swap(staging, "boot_id", lambda: written):
            return original(disk, path)

    yield _swap(opening, "leftovers", leftovers)


@_mutant("P-3", "staged bytes are not restored after a kill")
def _staging_lost() -> Patches:
    yield _swap(opening, "restore_staged", lambda *_args: 0)


@_mutant("P-4", "a segment's name is not made durable")
def _name_not_durable() -> Patches:
    original = segments.Segments.create

    def create(self: Any, number: int) -> None:
        with _swap(type(self._disk), "sync_directory", _nothing):
            original(self, number)

    yield _swap(segments.Segments, "create", create)


@_mutant("P-5", "a group cut in two by a power cut counts half")
def _half_group() -> Patches:
    original = recover.scan_batches

    def scan_batches(*args: Any, **_given: Any) -> Any:
        return original(*args)

    yield _swap(recover, "scan_batches", scan_batches)


@_mutant("P-6", "committed offsets are not synced")
def _commit_not_durable() -> Patches:
    def write(self: Any, changes: Any) -> None:
        new = self._file.with_offsets(changes, self._clock.now_ms)
        with _swap(type(self._disk), "sync_directory", _nothing):
            original(self, changes)
        self._file = new

    original = offsets.Offsets._write
    yield _swap(offsets.Offsets, "_write", write)


@_mutant("P-7", "offsets beyond a queue's end are left as they are",
         "offsets are of what was pulled, and pulls see what is durable alone")  # fmt: skip
def _not_clamped() -> Patches:
    yield _swap(offsets.Offsets, "clamp", _nothing)


@_mutant("P-8", "states are not synced before the watermark that speaks of them")
def _states_not_synced() -> Patches:
    original = states.States.write

    def write(self: Any, dirty: Any, log_end: int) -> Any:
        with _swap(type(self._file), "sync", _nothing):
            return original(self, dirty, log_end)

    yield _swap(states.States, "write", write)


@_mutant("P-9", "queues are not synced before the watermark")
def _queues_not_synced() -> Patches:
    yield _swap(consume_queue.ConsumeQueue, "sync", _nothing)


@_mutant("P-10", "the wheel is not synced before the watermark")
def _wheel_not_synced() -> Patches:
    original = wheel.Wheel.write

    def write(self: Any, dirty: Any) -> None:
        with _swap(type(self._file), "sync", _nothing):
            original(self, dirty)

    yield _swap(wheel.Wheel, "write", write)


@_mutant("P-11", "the mark of an open store is not durable",
         "the watermark says whether it was closed, too")  # fmt: skip
def _abort_not_durable() -> Patches:
    original = directory.Directory.mark_open

    def mark_open(self: Any) -> None:
        with _swap(type(self._disk), "sync_directory", _nothing):
            original(self)

    yield _swap(directory.Directory, "mark_open", mark_open)


@_mutant("P-12", "the index drops entries of the last batch at a restart")
def _index_short() -> Patches:
    yield _swap(index.Index, "catch_up", _nothing)


@_mutant("P-13", "a slot is told to be read before all of it is loaded")
def _frontier_early() -> Patches:
    original = dequeue_get.DequeueGet.step

    def step(self: Any) -> bool:
        worked = original(self)
        if worked:
            self._open_slot.frontier = self._wheel.frontier
        return worked

    yield _swap(dequeue_get.DequeueGet, "step", step)
