"""Exceptions as messages: the class's name and its fields. A client raises the same class."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from timerstore import errors
from timerstore._engine.leases import AckResult
from timerstore.errors import ConfigError, MessageError, TimerStoreError
from timerstore.net.wire_messages import Failure
from timerstore.types.reports import CancelResult

CLASSES: Mapping[str, type[TimerStoreError]] = MappingProxyType(
    {
        name: one
        for name, one in vars(errors).items()
        if isinstance(one, type)
        and issubclass(one, TimerStoreError)
        and one is not TimerStoreError
        and not name.startswith("_")
    }
)
"""The classes that travel, by name."""


def failure_of(call_id: int, error: TimerStoreError) -> Failure:
    """Return the message for an exception."""
    found: object = getattr(error, "problems", None)
    result = getattr(error, "result", None)
    return Failure(
        call_id,
        type(error).__name__,
        error.what,
        _text(error.where),
        _text(error.wanted),
        _text(error.got),
        list(found) if isinstance(found, tuple) else None,
        bool(error.retryable),
        None if result is None else str(result),
        int(getattr(error, "stored_count", 0)),
        [error.topic, error.message_id, *error.differs]
        if isinstance(error, errors.ConflictError)
        else None,
    )


def error_of(failure: Failure) -> TimerStoreError:
    """Return the exception in a message. An unknown class becomes ServerError."""
    kind = CLASSES.get(failure.kind)
    fields: dict[str, Any] = {
        "where": failure.where,
        "wanted": failure.wanted,
        "got": failure.got,
        "retryable": failure.retryable,
    }
    if kind is None:
        return errors.ServerError(f"{failure.kind}: {failure.what}", **fields)
    if issubclass(kind, ConfigError | MessageError):
        return kind(failure.problems or failure.what, **fields)
    if issubclass(kind, errors.NotPendingError | errors.LeaseLostError):
        results = CancelResult if kind is errors.NotPendingError else AckResult
        result = failure.result or "UNKNOWN"
        known = results(result) if result in results.__members__ else result
        return kind(failure.what, result=known, **fields)
    if issubclass(kind, errors.ConflictError):
        topic, message_id, *differs = failure.conflict or ["", ""]
        fields.update(topic=topic, message_id=message_id, differs=differs)
    error = kind(failure.what, **fields)
    if isinstance(error, errors.FullError | errors.BusyError | errors.ConflictError):
        error.stored_count = failure.stored_count
    return error


def _text(value: object) -> str | None:
    return None if value is None else str(value)
