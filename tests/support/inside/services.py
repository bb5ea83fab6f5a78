"""Services, events and locks of a store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.inside.attribute import Attribute
from timerstore._engine.base import message_fields
from timerstore._engine.maintenance.backup import Copier
from timerstore._engine.storage import directory, guarded_map


def service_event(service: Any) -> Any:
    """Return the event that wakes a service."""
    return service._event


def dispatch_batch(dispatch: Any) -> Attribute:
    """Return the method by which dispatch handles one batch."""
    return Attribute(dispatch, "_dispatch")


def flush_is_requested(flush: Any) -> bool:
    """Return whether a sync was requested since the last step of flush."""
    return bool(flush._wanted)


def forget_flush_request(flush: Any) -> None:
    """Forget that a sync was requested."""
    flush._wanted = False


def flush_at_once(flush: Any) -> Attribute:
    """Return whether each step of flush syncs, as when a test steps the services."""
    return Attribute(flush, "_at_once")


def set_unlinked_requests(enqueue_put: Any, requests: Any) -> None:
    """Set the requests that enqueue-put took and has not linked yet, or None."""
    enqueue_put._rest = requests


def timer_records_read(enqueue_get: Any) -> Attribute:
    """Return the method by which enqueue-get reads requests that dispatch did not pass on."""
    return Attribute(enqueue_get, "_read")


def slots_in_reading(dequeue_get: Any) -> list[int]:
    """Return the wheel's slots that dequeue-get reads now."""
    found: list[int] = list(dequeue_get._slots)
    return found


def sync_of_cancels(store: Any) -> Attribute:
    """Return the method by which a cancel waits for its sync."""
    return Attribute(store, "_sync_cancels")


def is_error_of(store: Any, error: BaseException) -> bool:
    """Return whether an error concerns the store's own files and so ends the store."""
    return bool(store._is_ours(error))


COPIER_CONFIG_TEXTS = Attribute(Copier, "_config_texts")
"""The method by which a backup reads the files of the config folder."""


def topics_checked_max() -> int:
    """Return how many topics the cache of valid topics holds, at most."""
    return message_fields._TOPICS_CHECKED_MAX


def topics_checked_count() -> int:
    """Return how many topics the cache of valid topics holds."""
    return len(message_fields._topics_checked)


def log_write_lock(log: Any) -> Any:
    """Return the lock under which the staged end of the log is written to its file."""
    return log._write_lock


def offsets_write_lock(offsets: Any) -> Any:
    """Return the lock under which the committed offsets are written to their file."""
    return offsets._write_lock


def checkpoint_lock(checkpoint: Any) -> Any:
    """Return the lock under which a checkpoint is made."""
    return checkpoint._lock


def lock_of_key(replacing: Any, topic: str, key: str) -> Any:
    """Return the lock of one topic and key, over a put that replaces."""
    return replacing._locks.of(topic, key)


def calendar_grow_lock(calendar: Any) -> Any:
    """Return the lock under which the calendar grows."""
    return calendar._grow_lock


DIRECTORY_HELD_LOCK = Attribute(directory, "_held_lock")
"""The lock of the table of directories that this process has locked."""

GUARD_LOCK = Attribute(guarded_map, "_lock")
"""The lock of the table of mapped files that are watched."""


def keep_log_from(retention: Any, lowest: Callable[[], int]) -> None:
    """Make retention also keep the log from an offset on."""
    dependents = retention._dependents
    original = dependents.lowest_needed
    dependents.lowest_needed = lambda: min(original(), lowest())


@contextmanager
def replaced_subscribers(signal: Any, *subscribers: Callable[..., Any]) -> Iterator[None]:
    """Make a signal call only these inside the context."""
    before = signal._subscribers
    signal._subscribers = subscribers
    try:
        yield
    finally:
        signal._subscribers = before


def subscribe_first(signal: Any, subscriber: Callable[..., Any]) -> None:
    """Make a signal call this before all others."""
    signal._subscribers = (subscriber, *signal._subscribers)
