"""The times at which a definition runs.

A fixed interval counts from its start in UTC, so a change of clocks does not affect it. A cron
expression is evaluated on the wall clock of its time zone, as Debian's cron does (cronsim):

- Clocks go forward: a run at a time that does not exist comes at the first minute after the gap.
- Clocks go back: a run at a time that occurs twice comes only the first time.
- Expressions whose minutes or hours begin with `*`, and those with seconds, run by elapsed time:
  once at each time that exists.

Worked example, Europe/Berlin, 2026:

    30 2 * * *      28 March 02:30   29 March 03:00 (02:30 does not exist)   30 March 02:30
    30 2 * * *      24 October 02:30   25 October 02:30 (the first)   26 October 02:30
    */30 * * * *    25 October 02:00 02:30 02:00 02:30 03:00, an hour apart twice

For elapsed time, cronsim gets a wall clock without a time zone, from one change of clocks to the
next. With a zone it steps by whole hours, and misses runs where clocks change by half an hour (Lord
Howe).

Macros of crontab are replaced by their five fields before a definition is stored. So the file has
one form, which earlier versions can read.

Invariants:
    1. The runs after a time do not depend on where the search begins.
Raises: MessageError for an invalid expression or time zone; ConfigError if cronsim is missing.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

import importlib
from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from timerstore._engine.format.recurring_json import Definition
from timerstore.errors import ConfigError, MessageError

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


class Rule(Protocol):
    """The times of runs, in epoch ms."""

    def after(self, ms: int) -> int | None:
        """Return the first run after a time; None: no run comes in 50 years."""

    def last_until(self, ms: int, after_ms: int) -> int | None:
        """Return the last run in (after_ms, ms]; None: no run is in there."""


class EveryRule:
    """Runs at a fixed interval, from a start on."""

    def __init__(self, start_ms: int, every_ms: int) -> None:
        self._start_ms = start_ms
        self._every_ms = every_ms

    def after(self, ms: int) -> int | None:
        """As Rule."""
        return self._start_ms + max(0, (ms - self._start_ms) // self._every_ms + 1) * self._every_ms

    def last_until(self, ms: int, after_ms: int) -> int | None:
        """As Rule."""
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
        """As Rule."""
        return next(self._runs(ms), None)

    def last_until(self, ms: int, after_ms: int) -> int | None:
        """As Rule. Search forward in the shortest window before `ms` that has a run."""
        for window_ms in _WINDOWS_MS:
            begin_ms, found = max(after_ms, ms - window_ms), None
            run = self.after(begin_ms)
            if run is None or run > ms:
                if begin_ms == after_ms:
                    return None
                continue
            for run in self._runs(begin_ms):
                if run > ms:
                    break
                found = run
            return found
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
