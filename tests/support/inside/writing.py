"""Puts."""

from typing import Any

from tests.support.inside.attribute import Attribute
from timerstore._engine.write.append import Appender

APPEND_OWN = Attribute(Appender, "append_own")
"""The method that appends a lease, a requeued dead letter or a run."""


def append_of_many(putting: Any) -> Attribute:
    """The method that appends the records of a put of many."""
    return Attribute(putting, "append_many")


def add_id(ids: Any, entry: Any) -> None:
    """Remember a message id, by its row in the table of ids."""
    ids._add(entry)


def encode_replacement(replacing: Any) -> Attribute:
    """The method that encodes the record of a put that replaces."""
    return Attribute(replacing, "_encode")


def known_keys(replacing: Any) -> Any:
    """The keys whose pending message is known in memory."""
    return replacing._known


def counts_by_slot(slot_counts: Any) -> dict[int, int]:
    """How many messages flow control counts in each slot."""
    found: dict[int, int] = slot_counts._counts
    return found


def counted_slots(slot_counts: Any) -> Any:
    """The slots that flow control counts, as a queue by time."""
    return slot_counts._slots


def recount(slot_counts: Any) -> Attribute:
    """What gives flow control the due times of all that waits."""
    return Attribute(slot_counts, "_waiting")


def putting_of(recurring: Any) -> Any:
    """What puts the runs of recurring messages."""
    return recurring._appender


def planner_is_started(recurring: Any) -> bool:
    """Whether the planner of recurring messages has a thread."""
    return bool(recurring._is_started)


def doubt_header(ingester: Any, source: str) -> None:
    """Have the log hold a header of a source that may not be noted in memory."""
    ingester._doubted.add(source)


def end_half_message(store: Any) -> Any:
    """What commits a half message or rolls it back, with a sync of the caller."""
    return store._half_messages.end
