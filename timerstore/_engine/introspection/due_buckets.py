"""The time arguments of `histogram`, and the buckets that they span."""

from datetime import datetime
from typing import NamedTuple

from timerstore._engine.base.argument_types import whole
from timerstore._engine.base.due_times import moment_ms
from timerstore.errors import MessageError, quoted

UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
BUCKETS_MAX = 1_000_000
_DAY_MS = 86_400_000
_MS_MAX = 253_402_300_800_000  # the year 10000


class Buckets(NamedTuple):
    """Consecutive seconds, minutes, hours or days of UTC.

    first: number of the first bucket since 1970. size: number of buckets.
    """

    unit_s: int
    first: int
    size: int


def buckets_of(now_ms: int, begin: object, end: object, by: object) -> Buckets:
    """Return the buckets that [begin, end) touches. Default: the 24 hours from now on.

    Raises:
        MessageError: with all problems of the arguments.
    """
    problems: list[str] = []
    begin_ms = now_ms if begin is None else _epoch_ms("begin", begin, problems)
    end_ms = begin_ms + _DAY_MS if end is None else _epoch_ms("end", end, problems)
    unit_s = UNIT_S.get(by) if isinstance(by, str) else None
    if unit_s is None:
        problems.append(f"by: wanted one of {', '.join(UNIT_S)}, got {quoted(by)}")
    if not problems and end_ms < begin_ms:
        problems.append(f"end: wanted a time not before begin ({begin_ms}), got {end_ms}")
    if problems or unit_s is None:
        raise MessageError(problems)
    unit_ms = 1000 * unit_s
    first, last = begin_ms // unit_ms, -(-end_ms // unit_ms)
    count = last - first if end_ms > begin_ms else 0
    if count > BUCKETS_MAX:
        raise MessageError(f"by: wanted at most {BUCKETS_MAX} buckets, got {count} by {by}")
    return Buckets(unit_s, first, count)


def _epoch_ms(name: str, given: object, problems: list[str]) -> int:
    if isinstance(given, datetime):
        try:
            number: int | None = moment_ms(name, given)
        except MessageError as error:
            problems.extend(error.problems)
            return 0
    else:
        number = whole(given)
    if number is None or not 0 <= number <= _MS_MAX:
        problems.append(f"{name}: wanted ms since 1970 or an aware datetime, got {quoted(given)}")
        return 0
    return number
