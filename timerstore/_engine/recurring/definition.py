"""Validation of the arguments of `put_every`, and the description that `recurring` returns.

Raises: MessageError for invalid arguments; ConfigError for cron without cronsim. Nothing is stored
then.
"""

import importlib
import re
import secrets
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from timerstore._engine.base import due_times, message_fields
from timerstore._engine.base.message_fields import queue_of_priority
from timerstore._engine.format.recurring_json import Definition
from timerstore.errors import ConfigError, MessageError, quoted
from timerstore.types.config import StoreConfig

# --- recurring request ---
# The request of `put_every`: the arguments of one call, as a value.
#
# The public API makes it (api.py). Its fields are as the caller gave them; `define` validates them
# before anything is stored.


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


# --- rule ---
# The times at which a definition runs.
#
# A fixed interval counts from its start in UTC, so a change of clocks does not affect it. A cron
# expression is evaluated on the wall clock of its time zone, as Debian's cron does (cronsim):
#
# - Clocks go forward: a run at a time that does not exist comes at the first minute after the gap.
# - Clocks go back: a run at a time that occurs twice comes only the first time.
# - Expressions whose minutes or hours begin with `*`, and those with seconds, run by elapsed time:
#   once at each time that exists.
#
# Worked example, Europe/Berlin, 2026:
#
#     30 2 * * *      28 March 02:30   29 March 03:00 (02:30 does not exist)   30 March 02:30
#     30 2 * * *      24 October 02:30   25 October 02:30 (the first)   26 October 02:30
#     */30 * * * *    25 October 02:00 02:30 02:00 02:30 03:00, an hour apart twice
#
# For elapsed time, cronsim gets a wall clock without a time zone, from one change of clocks to the
# next. With a zone it steps by whole hours, and misses runs where clocks change by half an hour
# (Lord Howe).
#
# Macros of crontab are replaced by their five fields before a definition is stored. So the file has
# one form, which earlier versions can read.
#
# Invariants:
#     1. The runs after a time do not depend on where the search begins.
# Raises: MessageError for an invalid expression or time zone; ConfigError if cronsim is missing.
# See also: docs/decisions/0009-leases-replace-and-recurring.md.


_SECOND = timedelta(seconds=1)
_DAY_S = 86_400
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_WINDOWS_MS = (_HOUR_MS, _DAY_MS, 32 * _DAY_MS, 400 * _DAY_MS, 51 * 366 * _DAY_MS)

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""The macros of crontab that name a time, and their five fields. Lower case, as in crontab."""


def expand_macro(cron: str) -> str:
    """Return the five fields of a macro, or the expression as it is if it is not a macro."""
    macro = cron.strip()
    if not macro.startswith("@"):
        return cron
    if macro not in MACROS:
        raise MessageError(
            f"cron: wanted five fields or one of {', '.join(MACROS)} in lower case, got "
            f"{cron!r}; for a fixed interval use every="
        )
    return MACROS[macro]


class EveryRule:
    """Runs at a fixed interval, from a start on. Times are epoch ms, in both rules."""

    def __init__(self, start_ms: int, every_ms: int) -> None:
        self._start_ms = start_ms
        self._every_ms = every_ms

    def after(self, ms: int) -> int | None:
        """Return the first run after a time."""
        return self._start_ms + max(0, (ms - self._start_ms) // self._every_ms + 1) * self._every_ms

    def last_until(self, ms: int, after_ms: int) -> int | None:
        """Return the last run in (after_ms, ms]; None: no run is in there."""
        if ms < self._start_ms:
            return None
        found = ms - (ms - self._start_ms) % self._every_ms
        return found if found > after_ms else None


class CronRule:
    """Runs by a cron expression in a time zone."""

    def __init__(self, expression: str, timezone: str) -> None:
        self._cronsim = _cronsim()
        self._expression = expression
        fields = expression.split()
        self._is_elapsed = len(fields) != 5 or any(one.startswith("*") for one in fields[:2])
        try:
            self._zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise MessageError(
                f"timezone: wanted an IANA name like 'Europe/Berlin', got {timezone!r}"
            ) from error
        try:
            self._cronsim.CronSim(expression, datetime(2026, 1, 1, tzinfo=self._zone))
        except self._cronsim.CronSimError as error:
            raise MessageError(
                f"cron: wanted minute hour day month weekday, got {expression!r} ({error})"
            ) from error

    def after(self, ms: int) -> int | None:
        """Return the first run after a time; None: no run comes in 50 years."""
        return next(self._runs(ms), None)

    def last_until(self, ms: int, after_ms: int) -> int | None:
        """As EveryRule. Search forward in the shortest window before `ms` that has a run."""
        for window_ms in _WINDOWS_MS:
            begin_ms = max(after_ms, ms - window_ms)
            last = deque(takewhile(lambda run: run <= ms, self._runs(begin_ms)), maxlen=1)
            if last:
                return last[0]
            if begin_ms == after_ms:
                return None
        return None

    def _runs(self, ms: int) -> Iterator[int]:
        """Yield the runs after a time, in order, until the year 9999."""
        found = self._elapsed(ms // 1000 + 1) if self._is_elapsed else self._fixed(ms // 1000)
        try:
            for second in found:
                # In the second hour of a fold, cronsim begins with the first one, which has passed.
                if second * 1000 > ms:
                    yield second * 1000
        except (OverflowError, ValueError):
            return

    def _fixed(self, begin: int) -> Iterator[int]:
        """Yield the runs of an expression with fixed times of the day."""
        for run in self._cronsim.CronSim(self._expression, self._wall(begin)):
            yield int(run.timestamp())

    def _elapsed(self, begin: int) -> Iterator[int]:
        """Yield the runs by elapsed time. Each change of clocks begins a new search."""
        change: int | None = begin
        while change is not None:
            begin, change = change, None
            wall = self._wall(begin).replace(tzinfo=None)
            for run_wall in self._cronsim.CronSim(self._expression, wall - _SECOND):
                run = begin + (run_wall - wall) // _SECOND
                change = self._change(begin, run)
                if change is not None:
                    break
                yield run
                begin, wall = run, run_wall

    def _change(self, begin: int, end: int) -> int | None:
        """Return the first second in (begin, end] with changed clocks; None: no change."""

        def has_changed(at: int) -> bool:
            return self._wall(at).utcoffset() != offset

        offset = self._wall(begin).utcoffset()
        for at in (*range(begin + _DAY_S, end, _DAY_S), end):  # no zone changes twice in a day
            if has_changed(at):
                return begin + bisect_left(range(begin, at), True, key=has_changed)
            begin = at
        return None

    def _wall(self, second: int) -> datetime:
        return datetime.fromtimestamp(second, self._zone)


Rule = EveryRule | CronRule


def _cronsim() -> Any:
    try:
        return importlib.import_module("cronsim")
    except ImportError as error:
        raise ConfigError("cron needs cronsim: pip install '.[cron]' in a checkout") from error


def rule_of(definition: Definition) -> Rule:
    """Return the rule of a definition."""
    every_ms, start_ms = definition.every_ms, definition.start_ms
    if every_ms:
        return EveryRule(start_ms if start_ms >= 0 else definition.made_ms + every_ms, every_ms)
    return _cron_rule(definition.cron, definition.timezone)


@lru_cache(maxsize=1024)
def _cron_rule(cron: str, timezone: str) -> CronRule:
    return CronRule(cron, timezone)


# --- definition ---


EVERY_MS_MIN = 1000
MISSED = ("skip", "one", "all")
CRON_BYTES_MAX = 256
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Recurring:
    """A message that is put again and again."""

    name: str
    topic: str
    every_ms: int | None
    cron: str | None
    timezone: str
    missed: str
    made_ms: int
    run_count: int
    """Number of runs that were put, including the pending one."""
    next_ms: int | None
    """Due time of the next run, epoch ms; None: no run is planned now."""


def describe(definition: Definition, now_ms: int) -> Recurring:
    """Return the description of a definition for callers."""
    is_planned = definition.run_count and definition.planned_ms > now_ms
    return Recurring(
        definition.name,
        definition.topic,
        definition.every_ms or None,
        definition.cron or None,
        definition.timezone,
        definition.missed,
        definition.made_ms,
        definition.run_count,
        definition.planned_ms if is_planned else None,
    )


def draw_name() -> str:
    """Return a random name for a definition without one."""
    return secrets.token_hex(6)


def define(config: StoreConfig, now_ms: int, request: RecurringRequest) -> Definition:
    """Validate a request; return its definition, of which no run was put yet."""
    topic, every, start = request.topic, request.every, request.start
    raw_topic = message_fields.check_topic(topic)
    if not config.timer_enabled:
        raise due_times.timers_off()
    text = message_fields.encode_properties(
        request.tags, request.keys, request.properties, request.queue_id
    )
    raw = bytes(message_fields.check_body(request.body, config.message_bytes_max))
    message_fields.check_sizes(
        len(raw),
        len(text) + 256,  # the run's id and number, and the definition's name
        raw_topic,
        properties_bytes_max=config.properties_bytes_max,
        record_bytes_max=config.record_bytes_max,
    )
    queue_id = -1 if request.queue_id is None else message_fields.check_queue_id(request.queue_id)
    problems = _problems(request)
    if problems:
        raise MessageError(problems)
    every_ms = _every_ms(every, config) if every is not None else 0
    start_ms = -1
    if start is not None:
        start_ms = _start_ms(due_times.moment_ms("start", start), every_ms)
        begin_ms = max(start_ms, now_ms)  # a run before the definition existed is not a missed one
    else:
        begin_ms = now_ms + every_ms if every_ms else now_ms + 1
    cron = expand_macro(request.cron) if request.cron is not None else ""
    made = Definition(
        request.name or draw_name(), secrets.token_hex(4), topic, queue_id, raw, text, every_ms,
        cron, request.timezone, start_ms, request.missed, now_ms, 0, begin_ms - 1,
    )  # fmt: skip
    if rule_of(made).after(begin_ms - 1) is None:
        raise MessageError(f"cron: {cron!r} never comes in 50 years")
    return made


def _start_ms(start_ms: int, every_ms: int) -> int:
    """Return a start that the file can hold, which uses -1 for "no start".

    A start before 1970 is replaced by the first step at or after 1970: the later runs are the same.
    """
    if start_ms >= 0:
        return start_ms
    return start_ms % every_ms if every_ms else 0


def _problems(request: Any) -> list[str]:
    """Return the problems of a request, in whose fields a caller may have passed any object."""
    every, cron, timezone = request.every, request.cron, request.timezone
    missed, name = request.missed, request.name
    problems = []
    if (every is None) == (cron is None):
        got = "both" if every is not None else "none"
        problems.append(f"every, cron: wanted one of them, got {got}")
    if not isinstance(missed, str) or missed not in MISSED:
        problems.append(f"missed: wanted one of {', '.join(MISSED)}, got {quoted(missed)}")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        problems.append(f"name: wanted 1 to 64 of A-Za-z0-9._-, got {quoted(name)}")
    if not isinstance(timezone, str):
        problems.append(f"timezone: wanted an IANA name, got {quoted(timezone)}")
    elif cron is None and timezone != "UTC":
        problems.append("timezone: goes with cron; a fixed interval has no time zone")
    elif cron is not None and (not isinstance(cron, str) or len(cron) > CRON_BYTES_MAX):
        problems.append(f"cron: wanted text of at most {CRON_BYTES_MAX} bytes, got {quoted(cron)}")
    elif cron is not None:
        try:
            CronRule(expand_macro(cron), timezone)
        except MessageError as error:
            problems.extend(error.problems)
    return problems


def _every_ms(every: timedelta | float, config: StoreConfig) -> int:
    try:
        found = due_times.resolve_due_ms(0, every, None, None, config.delay_ms_max) or 0
    except MessageError as error:
        texts = [
            one.removeprefix("delay: ").replace(" ms from now,", " ms,") for one in error.problems
        ]
        if any(one.startswith("wanted 0 or more") for one in texts):
            found = 0
        else:
            raise MessageError([f"every: {one}" for one in texts]) from error
    if found < EVERY_MS_MIN:
        raise MessageError(
            f"every: wanted at least {EVERY_MS_MIN} ms, 1 second, got {quoted(every)}"
        )
    return found
