"""The results of calls that report on pending messages, on one message, and on a whole store."""

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
    """The state of a message that `cancel` found. It is durable when `cancel` returns."""

    CANCELLED = "CANCELLED"
    ALREADY_DELIVERED = "ALREADY_DELIVERED"
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """One pending message. If it waits for a delay level, `timer_id` is -1 and `handle` is ""."""

    message_id: str
    topic: str
    queue_id: int
    due_ms: int
    timer_id: int
    log_offset: int
    handle: str


class Histogram(NamedTuple):
    """The number of pending messages by due time: `counts[k]` are due in edges[k] to edges[k + 1] -
    1.
    """

    edges: npt.NDArray[np.int64]
    """Milliseconds since 1970, one more than counts."""
    counts: npt.NDArray[np.int64]


class HistoryEntry(NamedTuple):
    """One event in the life of a message: a record of the log."""

    what: str
    """put, rolled, moved (by retention), rescheduled, cancelled, or delivered (to its
    topic)."""
    at_ms: int
    log_offset: int
    due_ms: int
    """The due time after this event, milliseconds since 1970; 0 if the message is no longer
    pending."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a message is, why it has not been delivered, and its history."""

    topic: str
    message_id: str
    state: str
    """pending, delivered, cancelled, or unknown: no record of the message is in the log."""
    where: str
    """timer topic (not on the wheel yet), wheel, open slot (its slot has been read; it waits for
    its millisecond or for delivery), level, queue, or nowhere."""
    why: str
    """A sentence: why it has not been delivered, or when it was."""
    queue_id: int = -1
    due_ms: int = 0
    timer_id: int = -1
    level: int = 0
    slot: int | None = None
    """The number of the wheel's slot that its unit is linked in; `slot_ms` is the slot's time."""
    slot_ms: int | None = None
    chain_place: int | None = None
    """The position in the slot's chain; 1 is the newest unit, from which a chain is read."""
    chain_length: int | None = None
    queue_offset: int | None = None
    """The offset in its topic after delivery; in the queue of a delay level while it waits there.
    """
    log_offset: int = -1
    history: tuple[HistoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """What a group has to do in a topic. A message is in one of the counts, or acknowledged."""

    ready: int
    """Messages that the group can receive now, retries included. With a filter, also those that it
    will skip. For a group that reads with consumers: messages that it has not committed."""
    leased: int
    """Messages that the group has leased, and leases that ended just now."""
    in_backoff: int
    """Messages that `nack` returned, and that can be received later."""
    dead_letters: int
    """Dead letters that were not requeued."""
    oldest_ms: int
    """Milliseconds that the oldest of the ready messages has been in its queue; 0 without any."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of `backup` or `restore`: [log_begin, log_end) of the log is in the backup."""

    log_begin: int
    log_end: int
    segment_count: int
    copied_bytes: int
    kept_bytes: int
    """Bytes that the backup contained already."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated invariant: description, place (file, offset), expected and found value."""

    what: str
    where: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return f"{self.what} at {self.where}: wanted {self.wanted}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify`: the problems, and how much was checked (`counts`, by kind)."""

    problems: tuple[Problem, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether no problem was found."""
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
