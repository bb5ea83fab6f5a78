"""What a command is given: paths, settings, delays (`30m`), times, and options that many share.

Fails:    click's usage errors, exit code 2: what, wanted, got.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from timerstore._engine.base.due_times import SANE_MS_MIN, moment_ms
from timerstore.config import StoreConfig

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)\s*")
_SPAN_MS_MAX = 1 << 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONFIG = {one.name: one for one in fields(StoreConfig)}
_TRUTH = {"true": True, "on": True, "yes": True, "1": True}
_TRUTH |= {"false": False, "off": False, "no": False, "0": False}

Function = TypeVar("Function", bound=Callable[..., Any])


class Span(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """A span of time as `30m`, `1h30m`, `250ms`, `2d`; a timedelta."""

    name = "span"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> timedelta:
        """Read it."""
        if isinstance(value, timedelta):
            return value
        text, at, ms = str(value).strip().lower(), 0, 0.0
        while match := _PART.match(text, at):
            ms += float(match[1]) * _UNITS_MS[match[2]]
            at = match.end()
        if not text or at < len(text) or ms >= _SPAN_MS_MAX:
            self.fail(f"wanted a span as 250ms, 90s, 30m, 1h30m, 2d or 1w, got {value!r}", param)
        try:
            return timedelta(milliseconds=ms)
        except OverflowError:
            self.fail(f"wanted less than a million days, got {value!r}", param)


def local_moment(wall: datetime) -> datetime:
    """Give the moment at which this machine's wall clock shows a time.

    As cron rules do: of a time that comes twice (clocks go back) the first; instead of a time that
    never comes (clocks go forward) the end of the gap, as 03:00 for 02:30.
    """
    first, second = (int(wall.replace(fold=fold, microsecond=0).timestamp()) for fold in (0, 1))
    if first <= second:
        return datetime.fromtimestamp(first, UTC) + timedelta(microseconds=wall.microsecond)
    # In a gap fold 0 counts with the offset from before it, and lies after the gap; fold 1 before.
    seconds = range(second, first + 1)
    end = bisect_right(seconds, wall.replace(fold=0, microsecond=0), key=_wall)
    return datetime.fromtimestamp(seconds[end], UTC)


def _wall(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC).astimezone().replace(tzinfo=None, fold=0)


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """A time: ISO 8601 (without a zone: this machine's), epoch ms, `now`; aware datetime."""

    name = "time"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> datetime:
        """Read it."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            if text == "now":
                return datetime.now(UTC)
            if text.isascii() and text.isdigit():
                return _EPOCH + timedelta(milliseconds=int(text))
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is not None else local_moment(found)
        except (ValueError, OverflowError, OSError):
            self.fail(
                "wanted a time as 2026-12-24T18:00+01:00, 2026-12-24 18:00 (this machine's zone), "
                f"epoch ms, or now; got {value!r}",
                param,
            )


class Due(Moment):
    """A time to come, or that has passed. A small number of digits is most often seconds."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> datetime:
        """Read it."""
        found, text = super().convert(value, param, ctx), str(value).strip()
        if text.isdigit() and 0 < int(text) < SANE_MS_MIN:
            self.fail(
                f"wanted epoch ms from 2000 on ({SANE_MS_MIN}), or 0 for now, got {text}; if these "
                f"are seconds, give {text}000",
                param,
            )
        return found


class Setting(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """`name=value`, one field of StoreConfig."""

    name = "name=value"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[str, Any]:
        """Read it."""
        if isinstance(value, tuple):
            return value
        name, is_given, text = str(value).partition("=")
        known = _CONFIG.get(name)
        if known is None:
            near = get_close_matches(name, _CONFIG, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(_CONFIG)}"
            self.fail(f"no setting is named {name!r}{hint}", param)
        if not is_given:
            self.fail(f"wanted {name}=VALUE, got {value!r}", param)
        return name, self._value(name, known.default, text, param)

    def _value(self, name: str, default: object, text: str, param: click.Parameter | None) -> Any:
        if isinstance(default, bool):
            if text.lower() not in _TRUTH:
                self.fail(f"{name}: wanted true or false, got {text!r}", param)
            return _TRUTH[text.lower()]
        if isinstance(default, int):
            digits = text.replace("_", "")
            if not re.fullmatch(r"-?[0-9]{1,30}", digits):
                self.fail(f"{name}: wanted a whole number, got {text!r}", param)
            return int(digits)
        return text


class Pair(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """`name=value`, any."""

    name = "name=value"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[str, str]:
        """Read it."""
        if isinstance(value, tuple):
            return value
        name, is_given, text = str(value).partition("=")
        if not (name and is_given):
            self.fail(f"wanted NAME=VALUE, got {value!r}", param)
        return name, text


class Seconds(click.FloatRange):
    """Seconds within bounds; NaN is within none, though no comparison says so."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Read them."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return found


class Named(click.Path):
    """A path; an empty one is none: it would be the working directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Read it."""
        if value == "":
            self.fail("wanted a path, got ''", param)
        return super().convert(value, param, ctx)


SPAN, MOMENT, DUE, SETTING, PAIR = Span(), Moment(), Due(), Setting(), Pair()
FOLDER = Named()
WHOLE_MAX = 2**63 - 1
COUNT, PLACE = click.IntRange(1, WHOLE_MAX), click.IntRange(0, WHOLE_MAX)

path_argument = click.argument("path", type=FOLDER)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON, one object a line.")
config_option = click.option(
    "-c",
    "--config",
    "settings",
    multiple=True,
    type=SETTING,
    help="A field of StoreConfig, as -c flush=async; may come again.",
)
topic_option = click.option("--topic", help="Of this topic only.")


def config_of(settings: Sequence[tuple[str, Any]]) -> StoreConfig | None:
    """Give the configuration; None where nothing was said. ConfigError on values."""
    return StoreConfig(**dict(settings)) if settings else None


def when_options(command: Function) -> Function:
    """Add --in and --at."""
    command = click.option(
        "--at",
        "at",
        type=DUE,
        help="Due at a time: 2026-12-24T18:00+01:00, epoch ms; without a zone this machine's. Of a "
        "time that comes twice as clocks go back the first; of one that they skip the end of the "
        "gap.",
    )(command)
    return click.option("--in", "within", type=SPAN, help="Due after a span: 90s, 30m, 1h30m, 2d.")(
        command
    )


def due_arguments(within: timedelta | None, at: datetime | None) -> dict[str, Any]:
    """Give the time as `put` and `reschedule` take it."""
    if within is not None and at is not None:
        raise click.UsageError("time: wanted one of --in and --at, got both")
    if within is not None:
        return {"delay": within}
    return {} if at is None else {"deliver_at": at}


def ms_of(moment: datetime | None) -> int | None:
    """Epoch ms of a time, rounded up: never early. None stays None."""
    return None if moment is None else moment_ms("time", moment)
