"""Requests of puts: the arguments of one call, as a value.

The public API makes them (api.py), and nothing below it repeats their fields. The fields are as the
caller gave them, except that names are plain text (errors.plain) and iterators of keys are lists,
which can be read twice. They are validated where they are used, before anything is appended.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from timerstore._engine.base.argument_types import check_flag
from timerstore._engine.base.priorities import queue_of_priority
from timerstore.errors import plain

REPEATABLE = frozenset({str, tuple, list})
"""Types of keys that can be read twice."""


@dataclass(slots=True)  # not frozen: creating a frozen one takes three times as long
class PutRequest:
    """One message. Fields are those of StoreApi.put."""

    topic: str
    body: bytes | bytearray | memoryview
    delay: timedelta | float | None = None
    deliver_at: datetime | None = None
    deliver_ms: int | None = None
    level: int | None = None
    spread: timedelta | float | None = None
    tags: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] | None = None
    queue_id: int | None = None
    message_id: str | None = None
    flush: str | None = None
    key: str | None = None
    replace: bool = False
    wait_at_most: timedelta | float | None = None
    priority: int | None = None
    unique: bool = False
    is_derived: bool = field(default=False, kw_only=True)
    """Whether `deliver_ms` was derived from other arguments; a repeated put has another then."""

    def __post_init__(self) -> None:
        if type(self.topic) is not str:
            self.topic = plain(self.topic)
        if type(self.keys) not in REPEATABLE:
            self.keys = _repeatable(self.keys)
        if self.message_id is not None and type(self.message_id) is not str:
            self.message_id = plain(self.message_id)
        if self.key is not None and type(self.key) is not str:
            self.key = plain(self.key)

    @property
    def is_fixed(self) -> bool:
        """Whether the caller gave the due time itself, so that a repeated put has the same."""
        return not self.is_derived and (self.deliver_ms is not None or self.deliver_at is not None)

    def with_queue_of_priority(self) -> "PutRequest":
        """Return the request with the queue of its priority; raise MessageError if it is wrong."""
        if self.priority is None:
            return self
        return replace(self, queue_id=queue_of_priority(self.priority, self.queue_id))

    def with_checked_flags(self) -> "PutRequest":
        """Return the request with `replace` and `unique` as bools; MessageError if one is not."""
        if self.replace is False and self.unique is False:
            return self
        flags = {name: check_flag(name, getattr(self, name)) for name in ("replace", "unique")}
        return replace(self, **flags)  # type: ignore[arg-type]

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `put` that differ from their defaults."""
        return {
            name: value
            for name, default in _OPTIONS
            if (value := getattr(self, name)) is not default
        }


_OPTIONS = tuple((one.name, one.default) for one in fields(PutRequest)[2:])


def _repeatable(keys: Any) -> Any:
    return list(keys) if isinstance(keys, Iterator) else plain(keys)


@dataclass(slots=True)
class BatchRequest:
    """Many messages of one topic. Fields are those of StoreApi.put_many."""

    topic: str
    bodies: Any
    deliver_ms: Any = None
    delay: Any = None
    spread: timedelta | float | None = None
    tags: str | None = None
    keys: Sequence[Any] | None = None
    message_ids: Any = None
    queue_id: int | None = None
    atomic: bool = False
    flush: str | None = None
    level: int | None = None
    priority: Any = None
    is_derived: bool = field(default=False, kw_only=True)
    """As in PutRequest."""

    def __post_init__(self) -> None:
        if type(self.topic) is not str:
            self.topic = plain(self.topic)
        if type(self.keys) in REPEATABLE and not REPEATABLE.issuperset(map(type, self.keys or ())):
            self.keys = [_repeatable(one) for one in self.keys or ()]

    @property
    def is_fixed(self) -> bool:
        """As in PutRequest."""
        return not self.is_derived and self.deliver_ms is not None
