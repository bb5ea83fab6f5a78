"""Reports: what calls tell about pending messages, about one message and about a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
ByteRows = npt.NDArray[np.uint8]


class CancelResult(StrEnum):
    """What `cancel` found, and made durable before it answered."""

    CANCELLED = "CANCELLED"
    ALREADY_DELIVERED = "ALREADY_DELIVERED"
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """One message that waits; for a fixed level where `timer_id` is -1 and `handle` is ""."""

    message_id: str
    topic: str
    queue_id: int
    due_ms: int
    timer_id: int
    log_offset: int
    handle: str


class Histogram(NamedTuple):
    """How many messages wait, by when they are due: `counts[k]` in [edges[k], edges[k + 1])."""

    edges: npt.NDArray[np.int64]
    """Epoch ms, one more than counts."""
    counts: npt.NDArray[np.int64]


class HistoryEntry(NamedTuple):
    """One thing that happened to a message: a record of the log."""

    what: str
    """put, rolled, moved (by retention), rescheduled, cancelled, handed (to its topic)."""
    at_ms: int
    log_offset: int
    due_ms: int
    """When it is due from then on; 0 where that is over."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a message is, why it is not out, and what happened to it."""

    topic: str
    message_id: str
    state: str
    """waiting, delivered, cancelled, or unknown: no record of it is in the log."""
    where: str
    """timer topic (not on the wheel yet), wheel, open slot (its slot is read: it waits for its
    millisecond, or to be handed over), level, queue, or nowhere."""
    why: str
    """A sentence: why it is not out, or since when it is."""
    queue_id: int = -1
    due_ms: int = 0
    timer_id: int = -1
    level: int = 0
    slot: int | None = None
    """Of the wheel: the number that its unit is linked in; its time is `slot_ms`."""
    slot_ms: int | None = None
    chain_place: int | None = None
    """1: the slot's newest unit, from which a chain is read."""
    chain_length: int | None = None
    queue_offset: int | None = None
    """In its topic, once it was handed over; of a level's queue, while it waits there."""
    log_offset: int = -1
    history: tuple[HistoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What `backup` or `restore` did: [log_begin, log_end) is in the backup."""

    log_begin: int
    log_end: int
    segment_count: int
    copied_bytes: int
    kept_bytes: int
    """Bytes that were there already."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it must be: what, where (file, offset), wanted and got."""

    what: str
    where: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return f"{self.what} at {self.where}: wanted {self.wanted}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found, and how much it looked at (`counts`, by kind)."""

    problems: tuple[Problem, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """True when there is nothing to complain about."""
        return not self.problems

    def __str__(self) -> str:
        looked = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return "\n".join(
            [
                "clean" if self.clean else f"{len(self.problems)} problems",
                f"looked at: {looked}",
                *map(str, self.problems),
            ]
        )
