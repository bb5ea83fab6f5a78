"""Requests of puts: the arguments of one call, as a value.

The public API makes them (api.py), and nothing below it repeats their fields. The fields are as the
caller gave them, except that names are plain text (errors.plain) and iterators of keys are lists,
which can be read twice. `PutCheck` validates those of one message, before anything is created.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from timerstore._engine.base import due_times, message_fields
from timerstore._engine.base.argument_types import check_flag, whole
from timerstore._engine.base.message_fields import queue_of_message_group, queue_of_priority
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import half_topic
from timerstore._engine.write.checked_batch import id_extra_bytes
from timerstore.errors import MessageError, plain, quoted
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig
from timerstore.types.messages import EXPIRES_PROPERTY

# --- put requests ---


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
    check_after: timedelta | float | None = None
    message_group: str | None = None
    expires_ms: int | None = None
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

    def with_chosen_queue(self) -> "PutRequest":
        """Return the request with the queue of its priority or of its message group.

        Raise MessageError if it is wrong.
        """
        if self.message_group is not None:
            queue_id = queue_of_message_group(self.message_group, self.queue_id, self.priority)
            return replace(self, queue_id=queue_id)
        if self.priority is None:
            return self
        return replace(self, queue_id=queue_of_priority(self.priority, self.queue_id))

    def with_checked_flags(self) -> "PutRequest":
        """Return the request with `replace` and `unique` as bools; MessageError if one is not."""
        flags = {name: check_flag(name, getattr(self, name)) for name in ("replace", "unique")}
        return replace(self, **flags)  # type: ignore[arg-type]

    def as_half(self, delay_ms_max: int) -> "PutRequest":
        """Return the put of a half message: one to the topic of these, due at its check."""
        message_fields.check_topic(self.topic)
        problems = [
            f"check_after: does not go with {name}, got {quoted(value)}"
            for name, value in self.options().items()
            if name not in _OF_HALF
        ]
        if problems:
            raise MessageError(problems)
        due_times.span_ms("check_after", self.check_after, delay_ms_max)
        topic, delay = half_topic(self.topic), self.check_after
        return replace(self, topic=topic, delay=delay, check_after=None)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `put` that differ from their defaults."""
        return {
            name: value
            for name, default in _OPTIONS
            if (value := getattr(self, name)) is not default
        }


@dataclass(slots=True)  # a field of a named tuple takes seven times as long to read
class CheckedPut:
    """A put whose arguments were checked."""

    request: PutRequest
    name: bytes
    """The topic as in records."""
    body: message_fields.Body
    due_ms: int
    """Epoch ms; 0: now."""
    now_ms: int
    text: bytes
    """Encoded tags, keys, properties, and priority or message group."""
    raw_id: bytes
    """Empty: the store makes the id."""
    is_sync: bool


class PutCheck:
    """Checks the arguments that all puts of one message have; keyed_put.py checks those of keys."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._is_sync = config.flush == "sync"
        self._sizes = {
            "properties_bytes_max": config.properties_bytes_max,
            "record_bytes_max": config.record_bytes_max,
        }
        self._surely_fits_bytes = message_fields.surely_fits_bytes(**self._sizes)

    def check(
        self, request: PutRequest, now_ms: int, *, keys: Any = None, more_bytes: int = 0
    ) -> CheckedPut:
        """Check all arguments, at the time `now_ms`.

        keys: instead of those of the request. more_bytes: of properties that the caller adds.
        """
        config, due_ms = self._config, 0
        if request.level is not None:
            message_fields.check_level(
                request.level, request.delay, request.deliver_at, request.deliver_ms
            )
        else:
            due_ms = due_times.due_ms_of(
                now_ms, request.delay, request.deliver_at, request.deliver_ms, config
            )
        name, queue_id = message_fields.check_topic(request.topic), request.queue_id
        text = message_fields.encode_properties(
            request.tags, request.keys if keys is None else keys, request.properties, queue_id
        )
        if request.expires_ms is not None:
            text += _expiry(request, due_ms or now_ms)
        raw_id, own_bytes = b"", len(text) + more_bytes
        if request.message_id is not None:
            raw_id = message_fields.check_message_id(request.message_id)
            own_bytes += id_extra_bytes(len(raw_id), is_remembered=config.dedupe_window_ms > 0)
        body = message_fields.check_body(request.body, config.message_bytes_max)
        if len(body) + own_bytes > self._surely_fits_bytes:
            message_fields.check_sizes(len(body), own_bytes, name, **self._sizes)
        if queue_id is not None:
            message_fields.check_queue_id(queue_id)
        flush = request.flush
        is_sync = self._is_sync if flush is None else wants_sync(flush, config)
        return CheckedPut(request, name, body, due_ms, now_ms, text, raw_id, is_sync)


def _expiry(request: PutRequest, due_ms: int) -> bytes:
    """Return the property of a message that expires; MessageError if it is not after its due time.

    The due time of a level, or from a window of `spread`, is not that of the caller. A unique
    message that expires is not done, and would keep its key for ever.
    """
    expires_ms = whole(request.expires_ms)
    for name, is_given in (
        ("level", request.level is not None),
        ("spread", request.is_derived),
        ("unique", request.unique),
    ):
        if is_given:
            raise MessageError(f"expires_ms: does not go with {name}")
    if expires_ms is None or not due_ms < expires_ms < 2**63:
        raise MessageError(
            f"expires_ms: wanted ms since 1970 after the due time, {due_ms}, got "
            f"{quoted(request.expires_ms)}"
        )
    return b"%b\x01%d\x02" % (EXPIRES_PROPERTY.encode(), expires_ms)


def wants_sync(flush: object, config: StoreConfig) -> bool:
    """Return whether a put with this `flush` argument must be durable when it returns."""
    if flush is None:
        return config.flush == "sync"
    if not isinstance(flush, str) or flush not in ("sync", "async"):
        raise MessageError(f"flush: wanted 'sync' or 'async', got {quoted(flush)}")
    return flush == "sync"


_OF_HALF = frozenset({"check_after", "tags", "keys", "properties", "message_id", "flush"})
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


# --- spread ---
# Draw due times from a window, so that messages put together are not delivered together.
#
#     put(delay=60, spread=30)              due at a random time from 60 s to 90 s from now
#     put_many(1000 bodies, spread=10)      one message every 10 ms from now on, in their order
#
# The numbers are random, or determined by `spread_seed` if it is set.
#
# Thread safety: any thread.
# Locking: `_lock`, for one draw.
# Invariants:
#     1. No message is due before the time that the caller gave. The receipt has the drawn time.
# Raises: MessageError for invalid arguments, and if the window ends more than `delay_ms_max` ahead.


class Spreader(NotCopyable):
    """Draws due times for one store."""

    def __init__(self, config: StoreConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._random = random.Random(config.spread_seed or None)  # noqa: S311 - no secret
        self._lock = Lock()

    def one(self, request: PutRequest) -> PutRequest:
        """Return the request with a due time drawn from the window of its `spread`."""
        now_ms = self._clock.now_ms
        window_ms = self._window_ms(request.spread, request.level)
        due_ms = due_times.due_ms_of(
            now_ms, request.delay, request.deliver_at, request.deliver_ms, self._config
        )
        begin_ms = due_ms or now_ms
        self._check_end(now_ms, begin_ms + window_ms)
        drawn_ms = begin_ms + int(self._draw() * window_ms)
        return replace(
            request, deliver_ms=drawn_ms, delay=None, deliver_at=None, spread=None, is_derived=True
        )

    def many(self, request: BatchRequest, count: int) -> BatchRequest:
        """Return the request with due times at equal distances, from a random first one."""
        now_ms = self._clock.now_ms
        window_ms = self._window_ms(request.spread, request.level)
        due_ms = due_times.resolve_due_array(
            now_ms, count, request.delay, request.deliver_ms, self._config.delay_ms_max
        )
        begin_ms = np.where(due_ms > 0, due_ms, now_ms)
        self._check_end(now_ms, int(begin_ms.max(initial=now_ms)) + window_ms)
        places = (np.arange(count) + self._draw()) / max(1, count)
        spread_ms = begin_ms + (places * window_ms).astype(np.int64)
        return replace(request, deliver_ms=spread_ms, delay=None, spread=None, is_derived=True)

    def _draw(self) -> float:
        with self._lock:
            return self._random.random()

    def _window_ms(self, spread: object, level: object) -> int:
        if level is not None:
            raise MessageError("spread: a fixed level has its own time; wanted either of them")
        return due_times.check_spread(spread)

    def _check_end(self, now_ms: int, end_ms: int) -> None:
        if not self._config.timer_enabled and end_ms > now_ms:
            raise due_times.timers_off()
        if end_ms - now_ms > self._config.delay_ms_max:
            raise MessageError(
                f"spread: wanted an end at most {self._config.delay_ms_max} ms from now "
                f"(delay_ms_max), got {quoted(end_ms - now_ms)}"
            )
