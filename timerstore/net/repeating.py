"""Calls that are sent again after the connection was lost, so that they happen once.

A put without an id gets one from the client. The store remembers ids, also over its restarts
(`StoreConfig.dedupe_window_ms`), so a put that comes twice is stored once. What a call asks for
relative to now is reduced by the time that has passed since the call was made.

Thread safety: any thread.
See also: docs/decisions/0018-server-and-client.md.
"""

import dataclasses
import itertools
import secrets
import time
from typing import Any

import numpy as np
from msgspec.msgpack import Ext

from timerstore._engine.base.owner import Owner
from timerstore._engine.recurring import draw_name
from timerstore.errors import BusyError, ConnectionLostError, FlowControlError, TimerStoreError
from timerstore.net.attempt_limits import RetryLimit
from timerstore.net.call_table import CallSpec, Repeat
from timerstore.net.channel import NotSentError
from timerstore.net.wire_values import FLOAT64_COLUMN, INT64_COLUMN, SPANS, spans_extension
from timerstore.receipts import CallerIds, PutBatch, PutReceipt, unique_key

_ID_BYTES = 32
_SINGLE = {"key", "replace", "wait_at_most"}  # a put with one of these takes no message id
_ELAPSED_S_MIN = 0.05  # less than this is not subtracted


class ClientIds(Owner):
    """Makes message ids: 20 random digits of this client, then a number in 12."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Take other digits: a forked child must not repeat its parent's ids."""
        self._prefix = secrets.token_hex(10).upper()
        self._numbers = itertools.count(1)

    def one(self) -> str:
        """Return a new id."""
        return unique_key(self._prefix, next(self._numbers))

    def many(self, count: int) -> Ext:
        """Return new ids as a column."""
        data = "".join(self.one() for _ in range(count)).encode()
        return spans_extension(data, np.arange(count + 1) * _ID_BYTES)


class CallAttempt(Owner):
    """One call of a client, sent once or several times."""

    def __init__(
        self,
        spec: CallSpec,
        args: list[Any],
        options: dict[str, Any],
        ids: ClientIds | None,
        dedupe_window_ms: int,
    ) -> None:
        """`ids`: None if the client must not add ids, because nothing is repeated."""
        self.spec = spec
        self.args = args
        self._options = options
        self._begin_s = time.monotonic()
        self._has_own_ids = False
        self._is_repeatable = spec.repeat is Repeat.ALWAYS
        self._last_s: float | None = None
        if spec.repeat is Repeat.WITH_ID:
            self._last_s = self._begin_s + dedupe_window_ms / 1000
            if ids is not None and dedupe_window_ms > 0:
                self._add_ids(ids)
        if spec.name == "put_every" and options.get("name") is None:
            self._options = {**options, "name": draw_name()}

    def _add_ids(self, ids: ClientIds) -> None:
        given = self._options
        if not _SINGLE.isdisjoint(given):
            return
        if self.spec.name == "put":
            if given.get("message_id") is None:
                self._options = {**given, "message_id": ids.one()}
                self._has_own_ids = True
            self._is_repeatable = True
            return
        count = _count(self.args[1])
        mine = given.get("message_ids")
        if mine is None and count:
            self._options = {**given, "message_ids": ids.many(count)}
            self._has_own_ids = self._is_repeatable = True
        elif isinstance(mine, list) and mine:
            self._options = {**given, "message_ids": [one or ids.one() for one in mine]}
            self._is_repeatable = True
        # A column of the caller may have empty ids: then it is not repeated.

    @property
    def can_repeat(self) -> bool:
        """Whether the call may be sent again."""
        in_time = self._last_s is None or time.monotonic() < self._last_s
        return self._is_repeatable and in_time

    @property
    def options(self) -> dict[str, Any]:
        """The options to send now. Delays and waits are counted from the beginning of the call."""
        elapsed = time.monotonic() - self._begin_s
        if elapsed < _ELAPSED_S_MIN:
            return self._options
        changed = dict(self._options)
        for name in ("delay", "wait"):
            if name in changed:
                changed[name] = _reduced(changed[name], elapsed)
        return changed

    def pause_s(self, error: NotSentError | TimerStoreError, limit: RetryLimit) -> float | None:
        """Return the seconds to wait after an error, before the call is sent again. Return None if
        it is not sent again: then the caller raises the error.

        Raises:
            ConnectionLostError: the call was not sent, and calls are not repeated.
            UnavailableError: the time of the limit is over.
        """
        if isinstance(error, NotSentError):
            if limit.is_none:
                raise ConnectionLostError("the connection was lost") from error
            return limit.pause_s(error)
        if isinstance(error, ConnectionLostError):
            return None if limit.is_none or not self.can_repeat else limit.pause_s(error)
        return 0.0 if self._without_ids(error) else None

    def _without_ids(self, error: TimerStoreError) -> bool:
        """Return whether the call can be sent without the client's ids after an error. Do so if the
        store has no space for more ids: then the call is not repeated if the connection is lost.
        """
        if not isinstance(error, BusyError) or isinstance(error, FlowControlError):
            return False
        if not self._has_own_ids or error.stored_count:
            return False
        names = ("message_id", "message_ids")
        self._options = {k: v for k, v in self._options.items() if k not in names}
        self._has_own_ids = self._is_repeatable = False
        return True

    def result(self, found: Any) -> Any:
        """Return the result without the effects of the client's ids. With the caller's own ids, a
        repeated put may return `duplicate=True` for its own first attempt.
        """
        if not self._has_own_ids:
            return found
        if isinstance(found, PutReceipt):
            return found._replace(duplicate=False) if found.duplicate else found
        if isinstance(found, PutBatch) and (given := found.given) is not None:
            none = np.zeros(len(given.ids), np.bool_)
            ids = CallerIds(given.ids, given.queue_ids, none, given.cancelled)
            return dataclasses.replace(found, given=ids)
        return found


def _count(bodies: object) -> int:
    if isinstance(bodies, Ext):
        return int.from_bytes(bytes(bodies.data)[:8], "little") if bodies.code == SPANS else 0
    return len(bodies) if isinstance(bodies, list | tuple) else 0


def _reduced(value: Any, elapsed_s: float) -> Any:
    """Return seconds, or columns of seconds, less the elapsed ones, and not below 0."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return max(value - elapsed_s, 0.0) if value > 0 else value
    if isinstance(value, list):
        return [_reduced(one, elapsed_s) for one in value]
    if isinstance(value, np.ndarray):
        return np.where(value > 0, np.maximum(value - elapsed_s, 0.0), value)
    if isinstance(value, Ext) and value.code in (INT64_COLUMN, FLOAT64_COLUMN):
        dtype = "<i8" if value.code == INT64_COLUMN else "<f8"
        return _reduced(np.frombuffer(bytes(value.data), dtype), elapsed_s)
    return value
