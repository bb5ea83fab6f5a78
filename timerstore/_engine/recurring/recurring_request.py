"""The request of `put_every`: the arguments of one call, as a value.

The public API makes it (api.py). Its fields are as the caller gave them; `define` validates them
before anything is stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from timerstore._engine.base.priorities import queue_of_priority


@dataclass(frozen=True, slots=True)
class RecurringRequest:
    """A message to put again and again. Fields are those of StoreApi.put_every."""

    topic: str
    body: bytes | bytearray | memoryview
    every: timedelta | float | None = None
    cron: str | None = None
    timezone: str = "UTC"
    start: datetime | None = None
    missed: str = "one"
    name: str | None = None
    tags: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] | None = None
    queue_id: int | None = None
    priority: int | None = None

    def with_queue_of_priority(self) -> "RecurringRequest":
        """Return the request with the queue of its priority; raise MessageError if it is wrong."""
        if self.priority is None:
            return self
        return replace(self, queue_id=queue_of_priority(self.priority, self.queue_id))

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `put_every`."""
        return {name: getattr(self, name) for name in _OPTIONS}


_OPTIONS = tuple(one.name for one in fields(RecurringRequest)[2:])
