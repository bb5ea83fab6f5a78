"""A consume queue that its owner goes on writing: read as far as its units count.

    units in files, below `covered` of the log │ units in memory, read from the log behind it

Threads:  one at a time.
Holds:    `count` is behind the last unit that counts; no unit beyond it is given.
Fails:    CorruptError where its files do not reach as far as is known.
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
        """Nothing is looked at before it is asked for."""

    def unsettle(self) -> None:
        """Have the files looked at again before they are read."""
        self.is_settled = False

    def believe(self) -> None:
        """Read all units without comparing them with the log."""
        self.old_count = 0

    def settle(self, covered: int, log_begin: int, wanted: int | None) -> None:
        """Count the units that point below `covered`; those of messages below log_begin are gone.

        CorruptError where that is not behind offset `wanted`.
        """
        self._files.load()
        if covered <= log_begin:  # the files are not asked
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
        """Where the record of the last unit in files ends, by what they say; 0 without any."""
        self._files.load()
        return self.last_record_end()

    def add(self, offset: int, units: bytes | memoryview) -> None:
        """Have units behind those in files, from a queue offset on. Those of a queue that begins
        later are all there is.
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
        """Give `offset`, or where its file is missing, the first offset of the next file."""
        begin = self._files.tail_begin
        if begin is not None and offset * UNIT_BYTES >= begin:
            return offset
        return super().after_gap(offset)

    def visible(self, log_end: int) -> int:  # noqa: ARG002 - only what lies below it is here
        """Queue offset behind the last unit."""
        return max(self.min_offset, self.count)

    def forget(self) -> None:
        """Let go of the files; it is to be settled anew."""
        self.is_settled = False
        self._files.start_over()
