"""Plant bugs against the remaining promises: the order in which data must become durable."""

from typing import Any

from tests.sim.files import SimFile
from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import (
    CommitLog,
    ConsumeQueue,
    DequeueGet,
    Directory,
    Index,
    Offsets,
    Segments,
    Staging,
    TimerStates,
    Wheel,
    log_checks,
)
from tests.support.inside.methods import OFFSETS_WRITE, OPENING_REWRITE_MARK


@mutant("P-1", "a failed sync is repeated, and the store continues")
def _sync_retried() -> Patches:
    yield swap(CommitLog, "fail", nothing)


@mutant("P-2", "staged bytes overwrite the log without a comparison",
        "the staging file is emptied at opening: P-45")  # fmt: skip
def _staged_not_compared() -> Patches:
    def restore_staged(segments: Any, base: int, data: bytes, log_end: int) -> bool:
        end = base + len(data)
        size = segments.segment_bytes
        if end <= log_end or {base // size, (end - 1) // size} - set(segments.numbers):
            return False
        segments.write(base, data)
        return True

    yield swap(log_checks, "restore_staged", restore_staged)


@mutant("P-3", "staged bytes are not restored after a kill")
def _staging_lost() -> Patches:
    yield swap(log_checks, "restore_staged", lambda *_args: False)


@mutant("P-4", "a segment's name is not durable")
def _name_not_durable() -> Patches:
    original = Segments.create

    def create(self: Any, number: int) -> None:
        with swap(type(self._disk), "sync_directory", nothing):
            original(self, number)

    yield swap(Segments, "create", create)


@mutant("P-6", "committed offsets are not synced")
def _commit_not_durable() -> Patches:
    def write(self: Any, changes: Any) -> None:
        new = self._file.with_offsets(changes, self._clock.now_ms)
        with swap(type(self._disk), "sync_directory", nothing):
            original(self, changes)
        self._file = new

    original = OFFSETS_WRITE.value
    yield swap(*OFFSETS_WRITE, write)


@mutant("P-7", "offsets past a queue's end are kept",
         "offsets are of pulled messages, and pulls return only durable ones")  # fmt: skip
def _not_clamped() -> Patches:
    yield swap(Offsets, "clamp", nothing)


@mutant("P-8", "states are not synced before the watermark")
def _states_not_synced() -> Patches:
    original = TimerStates.write

    def write(self: Any, *given: Any) -> Any:
        with swap(type(self._file), "sync", nothing):
            return original(self, *given)

    yield swap(TimerStates, "write", write)


@mutant("P-9", "queues are not synced before the watermark")
def _queues_not_synced() -> Patches:
    yield swap(ConsumeQueue, "sync", nothing)


@mutant("P-10", "the wheel is not synced before the watermark")
def _wheel_not_synced() -> Patches:
    original = Wheel.write

    def write(self: Any, dirty: Any) -> None:
        with swap(type(self._file), "sync", nothing):
            original(self, dirty)

    yield swap(Wheel, "write", write)


@mutant("P-11", "the mark of an open store is not durable",
         "the watermark also records whether the store was closed")  # fmt: skip
def _abort_not_durable() -> Patches:
    original = Directory.mark_open

    def mark_open(self: Any) -> None:
        with swap(type(self._disk), "sync_directory", nothing):
            original(self)

    yield swap(Directory, "mark_open", mark_open)


@mutant("P-12", "the index drops entries of the last batch at a restart")
def _index_short() -> Patches:
    yield swap(Index, "catch_up", nothing)


@mutant("P-13", "a slot counts as read before all of it is loaded")
def _loaded_slot_early() -> Patches:
    original = DequeueGet.step

    def step(self: Any) -> bool:
        worked = original(self)
        if worked:
            self._open_slot.loaded_slot = self._wheel.read_slot
        return worked

    yield swap(DequeueGet, "step", step)


@mutant("P-43", "bytes past the durable end are synced but not written again")
def _not_rewritten() -> Patches:
    yield swap(Segments, "rewrite", nothing)


@mutant("P-44", "the watermark is synced but not written again after an unclean stop",
        "until an opening completes a checkpoint, nothing needs the newer watermark")  # fmt: skip
def _watermark_not_rewritten() -> Patches:
    def rewrite_mark(self: Any) -> None:
        if self.mark is not None:
            self._disk.open(self._tree.watermark).sync()

    yield swap(*OPENING_REWRITE_MARK, rewrite_mark)


@mutant("P-45", "records of an earlier owner stay in the staging file")
def _staging_not_emptied() -> Patches:
    original = Staging.__init__

    def init(self: Any, disk: Any, path: Any, half_bytes: int) -> None:
        with swap(SimFile, "zero", nothing):
            original(self, disk, path, half_bytes)

    yield swap(Staging, "__init__", init)
