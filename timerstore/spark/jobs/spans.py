"""Parse options with times, days and time spans, such as "90s", "7d", "2026-11-21" or "now".

Raises: ConfigError with the option, the wanted form and the given text.
"""

import re
from datetime import UTC, date, datetime

from timerstore.errors import ConfigError

DAY_MS = 86_400_000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_MS_MAX = 2**62
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last time that Python and Spark can format."""


def read_span_ms(option: str, text: str) -> int:
    """Parse a span of time. Return whole milliseconds, at least 1."""
    match = _SPAN.fullmatch(text.strip())
    ms = float(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 1 <= ms < _MS_MAX:
        raise ConfigError(f"{option}: wanted a span as 500ms, 90s, 10m, 2h or 7d, got {text!r}")
    return int(ms)


def read_time_ms(option: str, text: str) -> int:
    """Parse `now`, epoch ms, or an ISO 8601 time with a zone. Return epoch ms."""
    if text == "now":
        return int(datetime.now(UTC).timestamp() * 1000)
    if text.isdecimal() and len(text) < 20 and int(text) <= LAST_MS:
        return int(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        given = None
    ms = None if given is None or given.tzinfo is None else int(given.timestamp() * 1000)
    if ms is None or not 0 <= ms <= LAST_MS:  # the year in UTC can differ from the zone's
        raise ConfigError(f"{option}: wanted now, epoch ms, or a time with its zone, got {text!r}")
    return ms


def read_day(option: str, text: str) -> date:
    """Parse a day in UTC."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option}: wanted a day as 2026-11-21, got {text!r}") from None


def told_ms(ms: int) -> str:
    """Format epoch ms as an ISO 8601 time in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
