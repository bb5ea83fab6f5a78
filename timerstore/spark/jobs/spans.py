"""Times and spans of time as options: "90s", "2h", "7d"; "2026-11-21"; now.

Fails:    ConfigError names the option, what was wanted and what came.
"""

import re
from datetime import UTC, date, datetime

from timerstore.errors import ConfigError

DAY_MS = 86_400_000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_MS_MAX = 2**62
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, where days and times that can be told end."""


def read_span_ms(option: str, text: str) -> int:
    """A span in whole ms, above 0."""
    match = _SPAN.fullmatch(text.strip())
    ms = float(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 1 <= ms < _MS_MAX:
        raise ConfigError(f"{option}: wanted a span as 500ms, 90s, 10m, 2h or 7d, got {text!r}")
    return int(ms)


def read_time_ms(option: str, text: str) -> int:
    """Epoch ms of `now`, of epoch ms, or of a time with its zone."""
    if text == "now":
        return int(datetime.now(UTC).timestamp() * 1000)
    if text.isdecimal() and len(text) < 20 and int(text) <= LAST_MS:
        return int(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        given = None
    ms = None if given is None or given.tzinfo is None else int(given.timestamp() * 1000)
    if ms is None or not 0 <= ms <= LAST_MS:  # by UTC, which may be another year than its zone's
        raise ConfigError(f"{option}: wanted now, epoch ms, or a time with its zone, got {text!r}")
    return ms


def read_day(option: str, text: str) -> date:
    """A day, UTC."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option}: wanted a day as 2026-11-21, got {text!r}") from None


def told_ms(ms: int) -> str:
    """A time for a person, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
