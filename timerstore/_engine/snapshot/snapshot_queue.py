"""`SnapshotQueue`: a consume queue that its owner goes on writing, read up to the position.

    units in files, of the log below `covered` | units in memory, made from the log after it

Thread safety: one thread at a time.
Invariants: `count` is the offset after the last unit of the position. No unit past it is returned.
Raises: CorruptError if the files end before the known end of the queue.
"""

from pathlib import Path

from timerstore._engine.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from timerstore._engine.snapshot.snapshot_segments import SnapshotUnits
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore.errors import CorruptError


class SnapshotQueue(ConsumeQueue):
    """One queue of one topic."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes)
        self._directory = directory
        self._files = SnapshotUnits(disk, directory, segment_bytes)
        self._segments = self._files
        self.is_settled = False

    def load(self) -> None:
        """Return: files are read when they are needed."""

    def unsettle(self) -> None:
        """Look at the files again before the next read."""
        self.is_settled = False

    def trust(self) -> None:
        """Use all units without comparing them with the log."""
        self.old_count = 0

    def settle(self, covered: int, log_begin: int, wanted: int | None) -> None:
        """Count the units that point below `covered` of the log. Retention removed the messages
        below `log_begin`.

        Raises:
            CorruptError: the queue does not end at offset `wanted`.
        """
        self._files.load()
        if covered <= log_begin:  # all units come from the log
            self._files.show(0, 0)
            self.count = self.min_offset = self.old_count = wanted or 0
        else:
            is_whole = self.is_whole(log_begin)
            if is_whole:
                self.recover(covered, log_begin)
            if not is_whole or (wanted is not None and self.count != wanted):
                raise CorruptError(
                    "a queue does not reach as far as the log",
                    where=self._directory,
                    wanted=f"units up to {wanted}",
                    got=self.count,
                )
        self.is_settled = True

    def end_in_files(self) -> int:
        """Return where the record of the last unit in files ends; 0 without any unit."""
        self._files.load()
        return self.last_record_end()

    def add(self, offset: int, units: bytes | memoryview) -> None:
        """Add units in memory, from a queue offset on. It must follow the units in files, unless
        the queue has no files.
        """
        if offset != self.count:
            if offset < self.count or self._files.numbers or self._files.tail_begin is not None:
                raise CorruptError(
                    "queue offsets in the log have a gap",
                    where=self._directory,
                    wanted=f"{self.count} and on",
                    got=offset,
                )
            self.min_offset = offset
        self._files.go_on(offset * UNIT_BYTES, units)
        self.count = offset + len(units) // UNIT_BYTES

    def after_gap(self, offset: int) -> int:
        """Return `offset`, or if its file is missing the first offset of the next file."""
        begin = self._files.tail_begin
        if begin is not None and offset * UNIT_BYTES >= begin:
            return offset
        return super().after_gap(offset)

    def visible(self, log_end: int) -> int:  # noqa: ARG002 - no unit points past it
        """Return the queue offset after the last unit."""
        return max(self.min_offset, self.count)

    def forget(self) -> None:
        """Close the files; the queue must be settled again."""
        self.is_settled = False
        self._files.start_over()
