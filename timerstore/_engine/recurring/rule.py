"""Rule: at which times a definition runs.

A step of time counts from its start, in UTC: no clock change touches it. Cron is evaluated on the
wall clock of its time zone, as Debian's cron does (cronsim): where clocks go forward, a run at a
time that does not exist comes at the first minute after the gap; where they go back, a run at a
time that comes twice comes the first time alone. Expressions whose minutes or hours begin with `*`,
and those with seconds, run by elapsed time: each time that exists, once. Which runs lie behind a
time does not depend on where one begins.

Worked example, Europe/Berlin, 2026:

    30 2 * * *      28 March 02:30   29 March 03:00 (02:30 does not exist)   30 March 02:30
    30 2 * * *      24 October 02:30   25 October 02:30 (the first)   26 October 02:30
    */30 * * * *    25 October 02:00 02:30 02:00 02:30 03:00, an hour apart twice

By elapsed time cronsim looks at a wall clock without a zone, from one change to the next: with a
zone it steps by whole hours, and over runs where clocks change by half an hour (Lord Howe).

Fails:    MessageError on what is no expression or no zone; ConfigError where cronsim is missing.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
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


class Rule(Protocol):
    """When it runs, ms since 1970."""

    def after(self, ms: int) -> int | None:
        """Give the first run after a time; None: there is none in 50 years."""

    def last_until(self, ms: int, after_ms: int) -> int | None:
        """Give the last run at a time or before, but after another; None: there is none."""


class EveryRule:
    """Each so many ms, from a start on."""

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
    """By a cron expression in a time zone."""

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
        """As Rule: the runs forward, in the least window before that has one."""
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
        """The runs behind a time, in order, to the last year of a calendar, 9999."""
        found = self._elapsed(ms // 1000 + 1) if self._is_elapsed else self._fixed(ms // 1000)
        try:
            for second in found:
                # In the second pass of a fold cronsim begins with the first, which is over.
                if second * 1000 > ms:
                    yield second * 1000
        except (OverflowError, ValueError):
            return

    def _fixed(self, begin: int) -> Iterator[int]:
        """Runs at times of the day."""
        for moment in self._cronsim.CronSim(self._expression, self._wall(begin)):
            yield int(moment.timestamp())

    def _elapsed(self, begin: int) -> Iterator[int]:
        """Runs by elapsed time, from a second on: anew behind each change of clocks."""
        change: int | None = begin
        while change is not None:
            begin, change = change, None
            wall = self._wall(begin).replace(tzinfo=None)
            for moment in self._cronsim.CronSim(self._expression, wall - _SECOND):
                run = begin + (moment - wall) // _SECOND
                change = self._change(begin, run)
                if change is not None:
                    break
                yield run
                begin, wall = run, moment

    def _change(self, begin: int, end: int) -> int | None:
        """The first second behind one, up to another, at which clocks have changed."""

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
        raise ConfigError("cron needs cronsim: pip install timerstore[cron]") from error


def rule_of(one: Definition) -> Rule:
    """Give a definition's rule."""
    if one.every_ms:
        start_ms = one.start_ms if one.start_ms >= 0 else one.made_ms + one.every_ms
        return EveryRule(start_ms, one.every_ms)
    return _cron_rule(one.cron, one.timezone)


@lru_cache(maxsize=1024)
def _cron_rule(cron: str, timezone: str) -> CronRule:
    return CronRule(cron, timezone)
