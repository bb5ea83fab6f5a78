"""Public types of `ingest`: column batches of rows, and its results.

Batches are not checked here, because they may come from another process.
"""

import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from timerstore.errors import quoted


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RowBatch:
    """Rows for one topic, as columns.

    Text k of a column is `texts[offsets[k]:offsets[k + 1]]`, in UTF-8. Offsets are int64; there is
    one more than there are rows.

    due_ms: int64 for each row, in ms since 1970. A time that is 0, negative or past means now. For
        a time above 0 and before the year 2000 `ingest` raises MessageError, because such values
        are mostly seconds.
    keys: keys of one row are separated by one space.
    tags: as for `put`.
    properties: the properties of every row.

    A row with an empty key or tag has none. A row with an empty message id gets a new id.
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StagedBatch(RowBatch):
    """Rows of a committed version, whose due times were checked when they were staged.

    property_texts: the properties of each row, in addition to those of every row. Text k is name
        0x01 value 0x02, repeated.

    `ingest` does not check them again, neither against `delay_ms_max` nor `timer_enabled`. The
    clock may have been set back since, or the owner's clock may be slower than the writer's. A
    rejected row of a committed version would block its source.
    """

    property_texts: Any = None
    property_offsets: Any = None


class IngestReceipt(NamedTuple):
    """The result of `ingest`, durable. `is_replay`: all rows existed, and none was appended."""

    source: str
    version: int
    row_count: int
    is_replay: bool


@dataclass(frozen=True, slots=True)
class IngestedVersions:
    """The versions of a source that are complete and durable: `version in ingested`."""

    source: str
    ranges: tuple[range, ...] = ()
    """Ascending; no two ranges are adjacent."""
    partial: Mapping[int, int] | None = None
    """Row count of each incomplete version."""

    def __contains__(self, version: object) -> bool:
        try:
            number = operator.index(version)  # type: ignore[arg-type]  # raises for other types
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
        """The last version of the first range, None without a version."""
        return self.ranges[0][-1] if self.ranges else None
