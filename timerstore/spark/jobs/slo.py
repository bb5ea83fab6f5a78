"""Parse and check conditions on the figures of an audit, such as "lost=0,dup=0,p99<1000ms".

Invariants:
    A Condition has a known figure, and a limit in the unit of that figure.
Raises: ConfigError, which lists every invalid part.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from timerstore.errors import ConfigError

NAMES = {
    "scheduled": "scheduled",
    "delivered": "delivered",
    "cancelled": "cancelled",
    "pending": "pending",
    "lost": "lost",
    "dup": "duplicated",
    "duplicated": "duplicated",
    "early": "early",
    "phantom": "phantom",
    "crc": "crc_mismatch",
    "crc_mismatch": "crc_mismatch",
    "uncancelled": "uncancelled",
    "p50": "lateness_p50_ms",
    "p99": "lateness_p99_ms",
    "p99.9": "lateness_p99_9_ms",
    "max": "lateness_max_ms",
}
"""The names in conditions, and the figures of the audit that they stand for."""

DEFAULT = "lost=0,dup=0,early=0,phantom=0,crc=0,uncancelled=0"

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PART = re.compile(
    r"(?P<name>[a-z_0-9.]+)\s*(?P<how><=|>=|<|>|==?)\s*(?P<limit>[0-9.]+)(?P<unit>\w*)"
)


class Condition(NamedTuple):
    """One condition: a figure, a comparison, a limit (lateness in ms), and the given text."""

    figure: str
    how: str
    limit: float
    text: str

    def problem(self, figures: Mapping[str, float | None]) -> str | None:
        """Return the violation as a sentence, or None. A missing lateness violates nothing."""
        got = figures[self.figure]
        if got is None or _COMPARE[self.how](got, self.limit):
            return None
        return f"{self.figure}: wanted {self.text}, got {got:,.10g}"


def parse(text: str) -> tuple[Condition, ...]:
    """Parse conditions separated by commas. Units of lateness are ms (default), s, m, h and d."""
    found: list[Condition] = []
    problems: list[str] = []
    for part in text.split(","):
        try:
            found.append(_condition(part.strip().lower()))
        except ValueError as error:
            problems.append(f"slo: {error}")
    if problems:
        raise ConfigError(problems)
    return tuple(found)


def problems_of(
    conditions: tuple[Condition, ...], figures: Mapping[str, float | None]
) -> list[str]:
    """Return a sentence for every violated condition."""
    return [text for one in conditions if (text := one.problem(figures)) is not None]


def _condition(part: str) -> Condition:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"wanted a name, one of = < <= > >=, a number; got {part!r}")
    name, unit = match["name"], match["unit"]
    figure = NAMES.get(name)
    if figure is None:
        raise ValueError(f"wanted one of {', '.join(NAMES)}; got {name!r}")
    try:
        limit = float(match["limit"])
    except ValueError:
        raise ValueError(f"{name}: wanted a number, got {match['limit']!r}") from None
    if figure.startswith("lateness"):
        if (unit or "ms") not in _UNITS_MS:
            raise ValueError(f"{name}: wanted ms, s, m, h or d, got {unit!r}")
        limit *= _UNITS_MS[unit or "ms"]
    elif unit:
        raise ValueError(f"{name}: wanted a count without a unit, got {unit!r}")
    return Condition(figure, match["how"].replace("==", "="), limit, part)
