"""`Damage`: the behaviour of a scan at bytes of the log that are not a record.

| on_corrupt | behaviour                                                                          |
|------------|------------------------------------------------------------------------------------|
| fail       | raise CorruptError with shard, file, offset and the options                        |
| skip       | log a warning; go on at the next record that a queue or a segment's start shows    |
| stop       | log a warning; end this part of the table                                          |
"""

import logging
from typing import Final, Literal, get_args

from timerstore._engine.snapshot.columns.record_starts import RecordStarts
from timerstore._engine.snapshot.file_limits import Snapshot
from timerstore._engine.snapshot.log_windows import Windows
from timerstore.errors import CorruptError

OnCorrupt = Literal["fail", "skip", "stop"]
ON_CORRUPT: Final = get_args(OnCorrupt)

_log = logging.getLogger("timerstore.tables")


class Damage:
    """The policy, for one part of one store."""

    def __init__(self, on_corrupt: OnCorrupt, shard: int, store: Snapshot) -> None:
        self._on_corrupt = on_corrupt
        self._shard = shard
        self._store = store
        self.skipped: list[tuple[int, int]] = []

    def in_records(self, windows: Windows, error: CorruptError) -> int:
        """Return the log offset to go on from, or the windows' end to stop."""
        offset = self._met(windows, error)
        if self._on_corrupt == "stop":
            return windows.end
        starts = RecordStarts(self._store.tree, self._store.queue_segment_bytes, windows)
        following = starts.first_from(offset + 1, self._store.log_segment_bytes)
        return self._skip(offset, following)

    def in_units(self, windows: Windows, error: CorruptError, unit_bytes: int) -> int:
        """Return the timer log position to go on from."""
        pos = self._met(windows, error)
        if self._on_corrupt == "stop":
            return windows.end
        size = self._store.timer_log_segment_bytes
        in_segment = pos % size // unit_bytes * unit_bytes + unit_bytes
        following = pos - pos % size + (size if in_segment + unit_bytes > size else in_segment)
        return self._skip(pos, min(following, windows.end))

    def _met(self, windows: Windows, error: CorruptError) -> int:
        if self._on_corrupt == "fail":
            raise CorruptError(
                f"shard {self._shard}: {error}; on_corrupt=skip goes on after it, "
                "on_corrupt=stop ends this part there"
            ) from error
        offset = int(windows.native.fault_offset)
        _log.warning(
            "damage shard=%d file=%s offset=%d on_corrupt=%s reason=%s",
            self._shard, windows.path(offset), offset, self._on_corrupt, error,
        )  # fmt: skip
        return offset

    def _skip(self, offset: int, following: int) -> int:
        self.skipped.append((offset, following))
        _log.warning("skipped shard=%d offset=%d bytes=%d", self._shard, offset, following - offset)
        return following
