"""RowBatch: messages of one topic as columns, to be ingested; and what `ingest` answers.

Holds:    nothing is checked here: a batch may come from another process.
"""

import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from timerstore.errors import quoted


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RowBatch:
    """Rows for one topic. Text k of a column is `texts[offsets[k]:offsets[k + 1]]`, in UTF-8.

    Offsets are int64, row count + 1 of them; `due_ms` is int64 a row: epoch ms; 0, less or past:
    now; of times above 0 and before the year 2000 `ingest` raises MessageError: they are most often
    seconds. In `keys` one space stands between two keys of a row. An empty key, tag or id: the row
    has none, and an id is made. Tags are as for `put`. `properties` are those of every row.
    """

    topic: str
    bodies: Any
    body_offsets: Any
    due_ms: Any
    keys: Any = None
    key_offsets: Any = None
    tags: Any = None
    tag_offsets: Any = None
    message_ids: Any = None
    message_id_offsets: Any = None
    properties: Mapping[str, str] | None = None

    def __len__(self) -> int:
        return len(self.body_offsets) - 1

    def __repr__(self) -> str:
        is_sized = hasattr(self.body_offsets, "__len__")  # nothing is checked here
        rows = len(self.body_offsets) - 1 if is_sized else "?"
        return f"RowBatch(topic={quoted(self.topic)}, <{rows} rows>)"


class StagedBatch(RowBatch):
    """Rows of a committed version: their due times were checked when they were staged.

    `ingest` does not check them again, neither against `delay_ms_max` nor `timer_enabled`. The
    clock may have been set back since, or the owner's be behind the writer's: a committed row that
    was refused would hold up its source.
    """

    __slots__ = ()


class IngestReceipt(NamedTuple):
    """What `ingest` answers; durable. `is_replay`: all rows were there, nothing was appended."""

    source: str
    version: int
    row_count: int
    is_replay: bool


@dataclass(frozen=True, slots=True)
class IngestedVersions:
    """The versions of a source that are complete and durable: `version in ingested`."""

    source: str
    ranges: tuple[range, ...] = ()
    """Ascending, none next to another."""
    partial: Mapping[int, int] | None = None
    """Versions that were begun and are not complete: how many rows are there."""

    def __contains__(self, version: object) -> bool:
        try:
            number = operator.index(version)  # type: ignore[arg-type]  # whether it is one is asked
        except TypeError:
            return False
        at = bisect_right(self.ranges, number, key=lambda one: one.start)
        return at > 0 and number in self.ranges[at - 1]

    def __iter__(self) -> Iterator[int]:
        for one in self.ranges:
            yield from one

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    @property
    def contiguous(self) -> int | None:
        """The last version of the first range; None without any."""
        return self.ranges[0][-1] if self.ranges else None
