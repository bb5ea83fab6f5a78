"""Rule: at which times a definition runs.

A step of time counts from its start, in UTC: no clock change touches it. Cron is evaluated on the
wall clock of its time zone, as Debian's cron does (cronsim): where clocks go forward, a run at a
time that does not exist comes at the first minute after the gap; where they go back, a run at a
time that comes twice comes the first time alone. Expressions whose minutes or hours are `*` or
steps run by elapsed time: each time that exists, once.

Worked example, Europe/Berlin, 2026:

    30 2 * * *      28 March 02:30   29 March 03:00 (02:30 does not exist)   30 March 02:30
    30 2 * * *      24 October 02:30   25 October 02:30 (the first)   26 October 02:30
    */30 * * * *    25 October 02:00 02:30 02:00 02:30 03:00, an hour apart twice

Fails:    MessageError on what is no expression or no zone; ConfigError where cronsim is missing.
Source:   decision 0038.
"""

import importlib
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from timerstore.errors import ConfigError, MessageError
from timerstore.layout.recurring_json import Definition

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
        try:
            return _ms_of(next(self._runs(ms)))
        except (StopIteration, OverflowError, ValueError):
            return None  # years beyond 9999, too

    def last_until(self, ms: int, after_ms: int) -> int | None:
        """As Rule: the runs forward, in the least window before that has one."""
        for window_ms in _WINDOWS_MS:
            begin_ms, found = max(after_ms, ms - window_ms), None
            run = self.after(begin_ms)
            if run is None or run > ms:
                if begin_ms == after_ms:
                    return None
                continue
            for moment in self._runs(begin_ms):
                run = _ms_of(moment)
                if run > ms:
                    break
                found = run
            return found
        return None

    def _runs(self, ms: int) -> Any:
        return self._cronsim.CronSim(
            self._expression, datetime.fromtimestamp(ms // 1000, self._zone)
        )


def _ms_of(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


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
