"""Compute due times from delays and dates, for one message or many. Times are ms since 1970.

Raises: MessageError, with every problem of one argument.
"""

import math
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.argument_types import Int64Array, refuse_values, whole
from timerstore._engine.base.native import ffi, lib
from timerstore.errors import MessageError, plain, quoted
from timerstore.types.config import RATE_MAX, RATE_MIN, StoreConfig

SANE_MS_MIN = 946_684_800_000
"""The year 2000. Due times before it are most often seconds, passed as milliseconds."""

_SANE = "wanted 0 (now), or a time from 2000-01-01 on in ms since 1970"
MANY_SECONDS = "if these are seconds, multiply them by 1000"


def resolve_due_ms(
    now_ms: int,
    delay: timedelta | float | None,
    deliver_at: datetime | None,
    deliver_ms: int | None,
    delay_ms_max: int,
) -> int | None:
    """Return when a message is due, ms since 1970; None for now.

    Now means: no time was given, or it is 0, negative or in the past. Parts of a millisecond round
    up, so a message is never early.

    Raises:
        MessageError: `delay` is negative, NaN, infinite or of another type; `deliver_at` has no
            time zone; more than one time was given; or the time is more than `delay_ms_max` ahead.
            Also a time before the year 2000, unless the clock is before it too: most such times
            are seconds, passed as milliseconds.
    """
    if delay is None and deliver_at is None:
        if deliver_ms is None:
            return None
        if type(deliver_ms) is int and now_ms < deliver_ms <= now_ms + delay_ms_max:
            return deliver_ms
    name, due_ms = _named_due_ms(now_ms, delay, deliver_at, deliver_ms)
    if due_ms <= now_ms:
        if 0 < due_ms < SANE_MS_MIN <= now_ms:
            raise _too_early(name, due_ms)
        return None
    if due_ms - now_ms > delay_ms_max:
        raise MessageError(
            f"{name}: wanted at most {delay_ms_max} ms from now, got {quoted(due_ms - now_ms)}"
        )
    return due_ms


def _too_early(name: str, due_ms: int) -> MessageError:
    """Return the error for a due time before the year 2000."""
    hint = "0 means now"
    if SANE_MS_MIN <= due_ms * 1000 < 2**43:
        hint = f"it looks like seconds; use {name}={due_ms} * 1000"
        if name == "deliver_at":
            hint = "it looks like seconds that were read as milliseconds"
    return MessageError(f"{name}: {_SANE}, got {quoted(due_ms)} ms since 1970; {hint}")


def is_too_early(due_ms: Int64Array, now_ms: int) -> npt.NDArray[np.bool_] | None:
    """Return which due times are positive and before the year 2000; None if there are no such."""
    if now_ms < SANE_MS_MIN or not len(due_ms) or due_ms.min() >= SANE_MS_MIN:
        return None
    wrong: npt.NDArray[np.bool_] = (due_ms < SANE_MS_MIN) & (due_ms > 0)
    return wrong if wrong.any() else None


def due_ms_of(
    now_ms: int,
    delay: timedelta | float | None,
    deliver_at: datetime | None,
    deliver_ms: int | None,
    config: StoreConfig,
) -> int:
    """Return when a message is due in a store, ms since 1970; 0 for now.

    Raises:
        MessageError: as `resolve_due_ms`, or the time is in the future and the store has no timers.
    """
    due_ms = resolve_due_ms(now_ms, delay, deliver_at, deliver_ms, config.delay_ms_max)
    if due_ms is None:
        return 0
    if not config.timer_enabled:
        raise timers_off()
    return due_ms


def timers_off() -> MessageError:
    """Return the error for a future due time in a store without timers."""
    return MessageError("time: timers are off in this store (timer_enabled), got a due time")


def _named_due_ms(
    now_ms: int, delay: object, deliver_at: object, deliver_ms: object
) -> tuple[str, int]:
    """Return the name of the argument that has the time, and the time, ms since 1970."""
    if (delay is not None) + (deliver_at is not None) + (deliver_ms is not None) != 1:
        given = {"delay": delay, "deliver_at": deliver_at, "deliver_ms": deliver_ms}
        names = ", ".join(name for name, value in given.items() if value is not None)
        raise MessageError(f"time: wanted one of delay, deliver_at, deliver_ms, got {names}")
    if delay is not None:
        return "delay", now_ms + _delay_ms(delay)
    if deliver_at is not None:
        return "deliver_at", moment_ms("deliver_at", deliver_at)
    number = whole(deliver_ms)
    if number is None:
        raise MessageError(
            f"deliver_ms: wanted a whole number of ms since 1970, got {quoted(deliver_ms)}"
        )
    return "deliver_ms", number


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _delay_ms(delay: object) -> int:
    # A float is rounded to the microsecond first: 16.1 * 1000 is a little above 16100.
    if type(delay) is float and 0.0 <= delay < 1e9:
        return -(-int(delay * 1e6 + 0.5) // 1000)
    delay = plain(delay)
    if isinstance(delay, timedelta):
        microseconds = delay // _MICROSECOND
    elif isinstance(delay, float):
        if not math.isfinite(delay):
            raise MessageError(f"delay: wanted a finite number of seconds, got {delay}")
        microseconds = round(delay * 1e6) if abs(delay) < 1e15 else int(delay) * 1_000_000
    else:
        seconds = whole(delay)
        if seconds is None:
            raise MessageError(f"delay: wanted seconds or a timedelta, got {quoted(delay)}")
        microseconds = seconds * 1_000_000
    if microseconds < 0:
        raise MessageError(f"delay: wanted 0 or more, got {quoted(delay)}")
    return -(-microseconds // 1000)


def span_ms(name: str, span: object, longest_ms: int) -> int:
    """Return seconds or a timedelta in ms, rounded up; raise MessageError as for a delay."""
    try:
        found = resolve_due_ms(0, span, None, None, longest_ms)  # type: ignore[arg-type]
    except MessageError as error:
        problems = [one.removeprefix("delay: ") for one in error.problems]
        raise MessageError([f"{name}: {one}" for one in problems]) from error
    return found or 0


def check_spread(spread: object) -> int:
    """Return the window of a spread in ms. Like a delay it is seconds or a timedelta."""
    try:
        return _delay_ms(spread)
    except MessageError as error:
        raise MessageError(f"spread{str(error).removeprefix('delay')}") from error


def check_rate(per_second: object) -> float | None:
    """Return a rate in messages per second; None for no limit."""
    if per_second is None:
        return None
    is_number = isinstance(per_second, int | float) and not isinstance(per_second, bool)
    if not is_number or not RATE_MIN <= per_second <= RATE_MAX:  # type: ignore[operator]
        raise MessageError(
            f"per_second: wanted {RATE_MIN} to {RATE_MAX}, or None, got {quoted(per_second)}"
        )
    return float(per_second)  # type: ignore[arg-type]


def moment_ms(name: str, moment: object) -> int:
    """Return a datetime in ms since 1970, rounded up.

    A local time that occurs twice, when clocks go back, is the first or the second one by its
    `fold`. A local time that a clock change skips is read with the offset before the change, for
    either `fold`, because the other offset would give an earlier time.
    """
    microseconds = (_existing(name, moment) - _EPOCH) // _MICROSECOND
    if type(microseconds) is not int:  # pandas.NaT is a datetime, too
        raise MessageError(f"{name}: wanted a datetime, got {quoted(moment)}")
    return -(-microseconds // 1000)


def fixed_moment(name: str, moment: object) -> datetime:
    """Return a datetime as plain datetime with a fixed offset. MessageError as `moment_ms`."""
    moment_ms(name, moment)
    one = _existing(name, moment)
    zone = timezone(one.utcoffset() or timedelta())
    return datetime(
        one.year, one.month, one.day, one.hour, one.minute, one.second, one.microsecond, zone
    )


def _existing(name: str, moment: object) -> datetime:
    """Return a datetime whose offset, with its fold, is that of its time."""
    if not isinstance(moment, datetime):
        raise MessageError(f"{name}: wanted a datetime, got {quoted(moment)}")
    offset = moment.utcoffset()
    if offset is None:
        raise MessageError(f"{name}: wanted a datetime with its time zone, got {quoted(moment)}")
    if moment.fold:
        before = moment.replace(fold=0)
        if offset > (before.utcoffset() or offset):  # clocks went forward: this time is skipped
            return before
    return moment


def resolve_due_array(
    now_ms: int,
    count: int,
    delay: object,
    deliver_ms: object,
    delay_ms_max: int,
) -> Int64Array:
    """Return when each of `count` messages is due, ms since 1970; 0 for now.

    `deliver_ms` has whole numbers; `delay` has seconds, or is a timedelta. One value is for all.

    Raises:
        MessageError: as `resolve_due_ms`.
    """
    if delay is not None and deliver_ms is not None:
        raise MessageError("time: wanted one of delay, deliver_ms, got both")
    if delay is None and deliver_ms is None:
        return np.zeros(count, np.int64)
    name = "delay" if delay is not None else "deliver_ms"
    if isinstance(delay, timedelta):
        due = np.full(count, min(now_ms + _delay_ms(delay), 2**62), np.int64)
    elif delay is not None:
        due = now_ms + _delays_ms(numbers_of(delay, count, name))
    else:
        numbers = numbers_of(deliver_ms, count, name)
        if numbers.dtype.kind == "f":
            raise MessageError("deliver_ms: wanted whole numbers of ms since 1970, got fractions")
        due = numbers.astype(np.int64)  # a copy: times in the past become 0 in it
        if (wrong := is_too_early(due, now_ms)) is not None:
            refuse_values(wrong, f"{name}: {_SANE}; {MANY_SECONDS}", due)
    latest_ms = now_ms + delay_ms_max
    native_due = ffi.from_buffer("int64_t[]", due)
    if lib.ts_due_settle(native_due, len(due), now_ms, latest_ms) >= 0:
        refuse_values(due > latest_ms, f"{name}: wanted due times of at most {latest_ms} ms", due)
    return due


_BOOLS = frozenset({bool, np.bool_})


def numbers_of(given: object, count: int, name: str) -> npt.NDArray[np.int64 | np.float64]:
    """Return one value for each of `count` messages."""
    if isinstance(given, list | tuple) and not _BOOLS.isdisjoint(map(type, given)):
        raise MessageError(f"{name}: wanted numbers, got a bool in {quoted(given)}")
    try:
        numbers = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise MessageError(f"{name}: wanted numbers, got {quoted(given)}") from error
    if numbers.size == 0 and count == 0:
        return np.zeros(0, np.int64)
    if numbers.dtype.kind not in "iuf":
        raise MessageError(f"{name}: wanted numbers, got {numbers.dtype} from {quoted(given)}")
    if numbers.ndim == 0:
        numbers = np.full(count, numbers)
    if numbers.dtype.kind == "u":
        refuse_values(numbers > 2**62, f"{name}: wanted less than 2^62", numbers)
        numbers = numbers.astype(np.int64)
    if numbers.shape != (count,):
        raise MessageError(
            f"{name}: wanted one value, or one for each of {count} bodies, got {numbers.shape}"
        )
    return numbers


def _delays_ms(seconds: npt.NDArray[np.int64 | np.float64]) -> Int64Array:
    # Convert to 64 bits first: a float32 cannot represent each microsecond of a day, and the bounds
    # do not fit an int32.
    if seconds.dtype.kind == "f":
        refuse_values(~np.isfinite(seconds), "delay: wanted finite numbers of seconds", seconds)
        refuse_values(seconds < 0, "delay: wanted 0 or more", seconds)
        # 9e12 s is far more than delay_ms_max, and fits int64 in microseconds.
        bounded = np.minimum(seconds.astype(np.float64), 9e12)
        microseconds = np.rint(bounded * 1e6).astype(np.int64)
    else:
        refuse_values(seconds < 0, "delay: wanted 0 or more", seconds)
        microseconds = np.minimum(seconds.astype(np.int64), 9_000_000_000_000) * 1_000_000
    return -(-microseconds // 1000)
