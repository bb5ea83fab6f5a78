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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.msgpack import Ext

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.recurring import draw_name
from timerstore.errors import (
    BusyError,
    ConnectionLostError,
    FlowControlError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net.attempt_limits import RetryLimit
from timerstore.net.call_table import CallSpec, Repeat
from timerstore.net.channel_parts import NotSentError
from timerstore.net.wire_values import (
    FLOAT64_COLUMN,
    INT64_COLUMN,
    SPANS,
    column_extension,
    decoded_extension,
    spans_extension,
)
from timerstore.types.receipts import CallerIds, PutBatch, PutReceipt, unique_key

_ID_BYTES = 32
_SINGLE = {
    "key",
    "replace",
    "unique",
    "wait_at_most",
}  # a put with one of these takes no message id
_ELAPSED_S_MIN = 0.05  # less than this is not subtracted


class ClientIds(NotCopyable):
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


class CallAttempt(NotCopyable):
    """One call of a client, sent once or several times.

    The server that gets a put decides whether it may be a repetition: each one states its window of
    deduplication, and the shortest one since the first sending counts.
    """

    def __init__(
        self, spec: CallSpec, args: list[Any], options: dict[str, Any], ids: ClientIds | None
    ) -> None:
        """`ids`: None if the client must not add ids, because nothing is repeated."""
        self.spec = spec
        self._args = args
        self._given = options
        if spec.name == "put_every" and options.get("name") is None:
            self._given = {**options, "name": draw_name()}
        self._ids = ids
        self._begin_s = time.monotonic()
        self._lost: ConnectionLostError | None = None  # whether it was made is unknown since then
        self._options = self._given
        self._own: bool | npt.NDArray[np.bool_] = False  # messages whose ids are the client's
        self._can_repeat = spec.repeat is Repeat.ALWAYS
        self._sent_s = self._begin_s
        self._window_ms = 0

    def options_for(self, window_ms: int) -> dict[str, Any]:
        """Return the options to send now, to a server with this window of deduplication. Call this
        just before each sending. Delays and waits are counted from the beginning of the call.

        Raises:
            ConnectionLostError: the call may have been made before, and this server would not
                notice that it is the same.
        """
        now = time.monotonic()
        if self._lost is None:
            self._window_ms = window_ms
            self._sent_s = now
            self._add_ids()
        else:
            self._window_ms = min(self._window_ms, window_ms)
            if self._is_late():
                raise self._unknown() from self._lost
        elapsed_s = now - self._begin_s
        if elapsed_s < _ELAPSED_S_MIN:
            return self._options
        changed = dict(self._options)
        for name in ("delay", "wait", "wait_at_most"):
            if name in changed:
                changed[name] = _reduced(changed[name], elapsed_s)
        return changed

    @property
    def is_late(self) -> Callable[[], bool] | None:
        """Returns whether the call must not be sent any more; None if it may be sent at any time.
        The one that sends it asks, as it may wait for others that send.
        """
        return None if self._lost is None else self._is_late

    def _is_late(self) -> bool:
        if not self._can_repeat or self.spec.repeat is Repeat.ALWAYS:
            return not self._can_repeat
        return time.monotonic() >= self._sent_s + self._window_ms / 1000

    def _unknown(self) -> ConnectionLostError:
        return ConnectionLostError(
            f"{self.spec.name}: the connection was lost during the call, and it cannot be sent "
            "again so that it happens once",
            where=None if self._lost is None else self._lost.where,
            wanted="message ids that every server since the first one remembers",
            got=f"a window of deduplication of {self._window_ms} ms (dedupe_window_ms)",
        )

    # --- ids ---

    def _add_ids(self) -> None:
        """Give each message an id, if the server remembers ids."""
        given = self._given
        self._options, self._own = given, False
        if self.spec.repeat is not Repeat.WITH_ID:
            return
        self._can_repeat = False
        if self._ids is None or not self._window_ms or not _SINGLE.isdisjoint(given):
            return
        if self.spec.name == "put":
            self._can_repeat = True
            if given.get("message_id") is None:
                self._options = {**given, "message_id": self._ids.one()}
                self._own = True
            return
        mine = given.get("message_ids")
        if mine is not None:
            self._fill_gaps(mine, self._ids)
        elif count := _count(self._args[1]):
            self._options = {**given, "message_ids": self._ids.many(count)}
            self._can_repeat = self._own = True

    def _fill_gaps(self, mine: Any, ids: ClientIds) -> None:
        """Give ids to the messages for which the caller gave none. An atomic batch with gaps stays
        as it is: the store compares the caller's ids, which must be all old or all new.
        """
        texts = _ids_of(mine)
        if not texts:
            return  # the server rejects it
        gaps = np.array([not one for one in texts])
        if not gaps.any():
            self._can_repeat = True
        elif not self._given.get("atomic"):
            filled = [one or ids.one() for one in texts]
            self._options = {**self._given, "message_ids": filled}
            self._own = gaps
            self._can_repeat = True

    def _without_ids(self, error: TimerStoreError) -> bool:
        """Return whether the call can be sent without the client's ids after an error. Do so if the
        store has no space for more ids: then the call is not repeated if the connection is lost.
        """
        if not isinstance(error, BusyError) or isinstance(error, FlowControlError):
            return False
        if self._own is False or error.stored_count or self._lost is not None:
            return False
        self._ids = None
        return True

    # --- after a call ---

    def pause_s(self, error: NotSentError | TimerStoreError, limit: RetryLimit) -> float | None:
        """Return the seconds to wait after an error, before the call is sent again. Return None if
        it is not sent again: then the caller raises the error.

        Raises:
            ConnectionLostError: the call was not sent, and calls are not repeated; or the time of
                the limit is over, and the call may have been made.
            UnavailableError: the time of the limit is over, and the call was not sent.
        """
        if isinstance(error, NotSentError):
            if limit.is_none:
                raise ConnectionLostError("the connection was lost") from error
        elif isinstance(error, ConnectionLostError):
            self._lost = error
            if limit.is_none or self._is_late():
                return None
        else:
            return 0.0 if self._without_ids(error) else None
        try:
            return limit.pause_s(error)
        except UnavailableError as late:
            raise self.given_up(late) from error

    def given_up(self, error: UnavailableError) -> TimerStoreError:
        """Return the error for a call for which no server was found any more."""
        if self._lost is None:
            return error
        return ConnectionLostError(
            f"{self.spec.name}: the connection was lost during the call, and then {error.what}",
            where=error.where,
        )

    def result(self, found: Any) -> Any:
        """Return the result without the effects of the client's ids. With the caller's own ids, a
        repeated put may return `duplicate=True` for its own first attempt.
        """
        if self._own is False:
            return found
        if isinstance(found, PutReceipt):
            return found._replace(duplicate=False) if found.duplicate else found
        if isinstance(found, PutBatch) and (given := found.given) is not None:
            duplicate = np.where(self._own, False, given.duplicate)
            ids = CallerIds(given.ids, given.queue_ids, duplicate, given.cancelled)
            return dataclasses.replace(found, given=ids)
        return found


def _count(bodies: object) -> int:
    """Return the number of bodies; 0 for a value of another type, which the server rejects."""
    if isinstance(bodies, Ext):
        return int.from_bytes(memoryview(bodies.data)[:8], "little") if bodies.code == SPANS else 0
    if isinstance(bodies, Sequence) and not isinstance(bodies, str | bytes):
        return len(bodies)
    return 0


def _ids_of(mine: Any) -> list[Any]:
    """Return the ids of a caller, one for each message; none for a value that is no list of ids."""
    if not isinstance(mine, Ext):
        return list(mine) if isinstance(mine, Sequence) and not isinstance(mine, str) else []
    if mine.code != SPANS:
        return []
    data, offsets = decoded_extension(SPANS, memoryview(mine.data))
    is_valid = offsets[0] >= 0 and offsets[-1] <= len(data) and bool((np.diff(offsets) >= 0).all())
    if not is_valid:
        return []
    try:
        return [data[begin:end].decode() for begin, end in itertools.pairwise(offsets.tolist())]
    except UnicodeDecodeError:
        return []


def _reduced(value: Any, elapsed_s: float) -> Any:
    """Return seconds, or columns of seconds, less the elapsed ones, and not below 0."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return max(value - elapsed_s, 0.0) if value > 0 else value
    if isinstance(value, list):
        return [_reduced(one, elapsed_s) for one in value]
    if isinstance(value, Ext) and value.code in (INT64_COLUMN, FLOAT64_COLUMN):
        dtype = "<i8" if value.code == INT64_COLUMN else "<f8"
        seconds = np.frombuffer(bytes(value.data), dtype)
        left_s = np.where(seconds > 0, np.maximum(seconds - elapsed_s, 0.0), seconds)
        return column_extension(left_s)
    return value
