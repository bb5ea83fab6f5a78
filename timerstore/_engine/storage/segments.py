"""Segments: one append-only space whose files C reads through maps, and retention removes.

Thread safety: one writer and any number of readers. A reader keeps a view while C reads the maps.
Invariants:
    1. The maps of a view stay until the view is released.
    2. A retired file is removed only after every view that may have seen it was released.
Raises: CorruptError if a segment is missing. FailedError if a mapped file was truncated.
See also: segment_files.py for names, bytes and durability.
"""

from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.base.native import ffi, lib, raise_fault, raise_status
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.guarded_map import TruncationWatch
from timerstore._engine.storage.segment_files import SegmentFiles
from timerstore.errors import CorruptError, GoneError

# --- epochs ---
# Count readers by epoch, to know when a retired resource has no reader left.
#
#     reader A enters epoch 0    advance: epoch 0 is past    reader B enters epoch 1
#     A leaves: epoch 0 is over, although B still reads
#
# Thread safety: calls are made under the owner's lock.
# Invariants:
#     1. A resource retired before `advance` has no reader once `is_over` returns True for the
#        epoch that `advance` returned. Later readers do not delay this.


class Epochs(NotCopyable):
    """Counts readers by the epoch in which they started."""

    __slots__ = ("_counts", "now")

    def __init__(self) -> None:
        self.now = 0
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def enter(self) -> int:
        """Count a reader; return its epoch, which it passes to `leave`."""
        self._counts[self.now] = self._counts.get(self.now, 0) + 1
        return self.now

    def leave(self, epoch: int) -> None:
        """Remove a reader of an epoch."""
        left = self._counts[epoch] - 1
        if left:
            self._counts[epoch] = left
        else:
            del self._counts[epoch]

    def advance(self) -> int:
        """Begin a new epoch; return the one that ends."""
        self.now += 1
        return self.now - 1

    def is_over(self, epoch: int) -> bool:
        """Return whether every reader of this epoch and of earlier ones has left."""
        return min(self._counts, default=self.now + 1) > epoch


# --- segments ---


_MAPS_MAX = 512


class _Map(NamedTuple):
    memory: mmap
    view: Any


class View(NotCopyable):
    """A view of a space, used with `with`.

    This is a class because a generator would cost a microsecond more for each view.
    """

    __slots__ = ("_segments", "end", "epoch")

    def __init__(self, segments: "Segments", end: int) -> None:
        self._segments = segments
        self.end = end
        self.epoch: int | None = None  # set while the view is in use

    def __enter__(self) -> Any:
        """Begin to use maps: none is unmapped before the end. Return a `ts_view` for C."""
        segments = self._segments
        with segments._lock:
            if segments._table is None:
                segments._grow_table(segments.numbers[0] if segments.numbers else 0, 64)
            native = ffi.new("ts_view *")
            native.segment_bytes = segments.segment_bytes
            segments._set_table(native)
            native.begin, native.end = segments.begin, self.end
            self.epoch = segments._readers.enter()
            return native

    def __exit__(self, *_error: object) -> None:
        """End the use of maps.

        Raises:
            FailedError: a mapped file was truncated, so zeros were read in place of its bytes.
        """
        segments = self._segments
        with segments._lock:
            epoch, self.epoch = self.epoch, None
            assert epoch is not None
            segments._readers.leave(epoch)
        segments._truncations.check()

    def __del__(self) -> None:
        # An asynchronous exception (Ctrl-C, a time limit) came before `with` began or while it
        # ended. This takes no lock, because its thread may already have the lock.
        epoch = getattr(self, "epoch", None)
        if epoch is not None:
            self._segments._abandoned.append(epoch)


class Segments(SegmentFiles):
    """The files of one space, with maps for C. Offsets are bytes from the start of the space."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segment_bytes: int,
        reserve_bytes: int,
        *,
        keeps_reserved: bool = False,
    ) -> None:
        super().__init__(
            disk, directory, segment_bytes, reserve_bytes, keeps_reserved=keeps_reserved
        )
        self._retired: list[tuple[int, int]] = []  # files to be unlinked, ascending: number, epoch
        self._maps: dict[int, _Map] = {}
        self._tables: list[Any] = []  # every table ever made: a reader may still use an old one
        self._table: Any = None
        self._table_first = 0
        self._table_size = 0
        self._readers = Epochs()
        self._abandoned: list[int] = []  # epochs of views that were dropped without a release
        self._truncations = TruncationWatch(directory)

    # --- retention ---

    def retire(self, offset: int) -> bool:
        """Hide whole files below `offset` from new readers; return whether there were any.

        The last file stays. Changes memory only; `unlink_retired` removes the files.
        """
        with self._lock:
            gone = [n for n in self.numbers[:-1] if (n + 1) * self.segment_bytes <= offset]
            if gone:
                epoch = self._readers.advance()
                self._retired += [(number, epoch) for number in gone]
                self.numbers = self.numbers[len(gone) :]
            return bool(gone)

    @property
    def has_retired(self) -> bool:
        """Whether retired files still have to be unlinked."""
        return bool(self._retired)

    def unlink_retired(self) -> bool:
        """Unlink the first retired file, durably; return False if it is in use or absent.

        Files are unlinked one after the other. So a power cut can only bring back the last one,
        and leaves no gap.
        """
        with self._lock:
            self._release_abandoned()
            if not self._retired or not self._readers.is_over(self._retired[0][1]):
                return False
            number = self._retired[0][0]
            self._close_file(number)
        self._disk.remove(self.path(number))
        with self._lock:
            del self._retired[0]
        return True

    def unlink_all_retired(self) -> None:
        """Unlink every retired file that no view uses; durable on return."""
        while self.unlink_retired():
            pass

    def remove_below(self, offset: int) -> None:
        """Retire and unlink files below `offset`: complete a retention that was interrupted.

        No view may be in use.
        """
        self.retire(offset)
        self.unlink_all_retired()

    def remove_all(self) -> None:
        """Remove every file; durable on return."""
        super().remove_all()
        self._table, self._table_first, self._table_size = None, 0, 0  # the space may begin at 0

    def forget_all(self) -> None:
        """Close and forget every file, as SegmentFiles.forget_all, retired ones too."""
        super().forget_all()
        with self._lock:
            for number in list(self._maps):
                self._unmap(number)
            self._retired = []
            self._table, self._table_first, self._table_size = None, 0, 0  # as `remove_all`

    def _close_file(self, number: int) -> None:
        super()._close_file(number)
        self._unmap(number)

    # --- maps ---

    def view(self, end: int) -> View:
        """Return a view of the bytes below `end` for this caller, to be used with `with`.

        `with` yields a `ts_view` for C.
        """
        return View(self, end)

    def _release_abandoned(self) -> None:
        while self._abandoned:
            self._readers.leave(self._abandoned.pop())

    def _set_table(self, native: Any) -> None:
        native.segments = self._table
        native.first_segment = self._table_first
        native.segment_count = self._table_size

    def call(
        self, view: Any, what: str, function: Callable[..., int], *arguments: Any, at_least: int = 0
    ) -> int:
        """Call C, and map the segments that it needs, until it succeeds; return its result.

        what: names the operation in an error.
        at_least: the smallest result of a success. `provide` raises the error of a smaller one.
        """
        while (got := function(view, *arguments)) < at_least:
            self.provide(view, got, what)
        return got

    def provide(self, native: Any, status: int, what: str) -> None:
        """Handle a negative status of a call of C: map the segment it needs, or raise its error.

        After a return the caller repeats the call.
        """
        if status == lib.TS_NEED_SEGMENT:
            self._map(int(native.need))
            with self._lock:
                self._set_table(native)
            return
        if status == lib.TS_CORRUPT:
            raise_fault(native, what, self.path(int(native.fault_offset) // self.segment_bytes))
        raise_status(status, what, self.directory)

    def _map(self, number: int) -> None:
        if number not in self.numbers and all(number != one for one, _ in self._retired):
            raise CorruptError("a segment is missing", where=self.path(number))
        if number in self._maps:  # another thread mapped it
            return
        # Without the lock: a lack of descriptors makes it release those of other spaces, and they
        # those of this one.
        forgotten = self._forgotten
        memory = self._disk.spared(lambda: self._file(number).map_read(self.segment_bytes))
        with self._lock:
            if number in self._maps:
                memory.close()
                return
            if forgotten != self._forgotten:
                memory.close()
                raise GoneError("it was removed", where=self.path(number))
            if len(self._maps) >= _MAPS_MAX:
                self._unmap_unused(1)  # the caller has a view
            if not 0 <= number - self._table_first < self._table_size:
                self._grow_table(min(number, self._table_first), number + 1)
            view = ffi.from_buffer("uint8_t[]", memory)
            self._maps[number] = _Map(memory, view)
            self._table[number - self._table_first] = view

    def _unmap_unused(self, views: int) -> bool:
        """Unmap all, unless more than `views` views are in use; return whether there was a map."""
        self._release_abandoned()
        if len(self._readers) > views or not self._maps:
            return False
        for old in list(self._maps):
            self._unmap(old)
        return True

    def release_descriptors(self) -> bool:
        """Close the open files, and the maps, which have descriptors of their own."""
        has_closed = super().release_descriptors()
        with self._lock:
            return self._unmap_unused(0) or has_closed

    def _grow_table(self, first: int, end: int) -> None:
        size = max(2 * self._table_size, end - first + 64)
        table = ffi.new("const uint8_t *[]", size)
        for number, one in self._maps.items():
            table[number - first] = one.view
        self._tables.append(table)
        self._table, self._table_first, self._table_size = table, first, size

    def _unmap(self, number: int) -> None:
        one = self._maps.pop(number, None)
        if one is not None:
            self._table[number - self._table_first] = ffi.NULL
            ffi.release(one.view)
            one.memory.close()

    def close(self) -> None:
        """Close files and maps. No view may be in use."""
        with self._lock:
            for number in list(self._maps):
                self._unmap(number)
        super().close()
