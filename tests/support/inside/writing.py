"""Puts."""

from typing import Any

from tests.support.inside.attribute import Attribute


def append_of_many(putting: Any) -> Attribute:
    """Return the method that appends the records of a put of many."""
    return Attribute(putting, "_append_many")


def add_id(ids: Any, entry: Any) -> None:
    """Remember a message id, by its row in the table of ids."""
    ids._add(entry)


def encode_replacement(replacing: Any) -> Attribute:
    """Return the method that encodes the record of a put that replaces."""
    return Attribute(replacing, "_encode")


def known_keys(replacing: Any) -> Any:
    """Return the keys whose pending message is known in memory."""
    return replacing._known


def counts_by_slot(slot_counts: Any) -> dict[int, int]:
    """Return how many messages flow control counts in each slot."""
    found: dict[int, int] = slot_counts._counts
    return found


def counted_slots(slot_counts: Any) -> Any:
    """Return the slots that flow control counts, as a queue by time."""
    return slot_counts._slots


def recount(slot_counts: Any) -> Attribute:
    """Return the method that gives flow control the due times of all pending messages."""
    return Attribute(slot_counts, "_waiting")


def putting_of(recurring: Any) -> Any:
    """Return the component that puts the runs of recurring messages."""
    return recurring._putting


def planner_is_started(recurring: Any) -> bool:
    """Return whether the planner of recurring messages has a thread."""
    return bool(recurring._is_started)


def doubt_header(ingester: Any, source: str) -> None:
    """Mark a source as having a header in the log that memory may not know."""
    ingester._doubted.add(source)
