"""Parameter types and shared options: paths, settings, delays (`30m`) and times.

Raises: click's usage errors (exit code 2), with the expected and the given value.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from timerstore._engine.base.due_times import SANE_MS_MIN, moment_ms
from timerstore.types.config import StoreConfig

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)\s*")
_SPAN_MS_MAX = 1 << 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONFIG = {one.name: one for one in fields(StoreConfig)}
_TRUTH = {"true": True, "on": True, "yes": True, "1": True}
_TRUTH |= {"false": False, "off": False, "no": False, "0": False}

Function = TypeVar("Function", bound=Callable[..., Any])


class Span(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """A duration such as `30m`, `1h30m`, `250ms` or `2d`, as a timedelta."""

    name = "span"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> timedelta:
        """Parse the value."""
        if isinstance(value, timedelta):
            return value
        text, at, ms = str(value).strip().lower(), 0, 0.0
        while match := _PART.match(text, at):
            ms += float(match[1]) * _UNITS_MS[match[2]]
            at = match.end()
        if not text or at < len(text) or ms >= _SPAN_MS_MAX:
            self.fail(
                f"wanted a span such as 250ms, 90s, 30m, 1h30m, 2d or 1w, got {value!r}", param
            )
        try:
            return timedelta(milliseconds=ms)
        except OverflowError:
            self.fail(f"wanted less than a million days, got {value!r}", param)


def local_time(wall: datetime) -> datetime:
    """Return the instant at which this machine's local clock shows `wall`.

    The same rules as for cron: if the time occurs twice (clocks go back), the first; if it does not
    occur (clocks go forward), the end of the gap, for example 03:00 for 02:30.
    """
    first, second = (int(wall.replace(fold=fold, microsecond=0).timestamp()) for fold in (0, 1))
    if first <= second:
        return datetime.fromtimestamp(first, UTC) + timedelta(microseconds=wall.microsecond)
    # In a gap, fold 0 gives an instant after the gap, and fold 1 one before it.
    seconds = range(second, first + 1)
    end = bisect_right(seconds, wall.replace(fold=0, microsecond=0), key=_wall)
    return datetime.fromtimestamp(seconds[end], UTC)


def _wall(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC).astimezone().replace(tzinfo=None, fold=0)


class Instant(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """An instant: ISO 8601 (default zone: this machine's), epoch ms or `now`."""

    name = "time"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> datetime:
        """Parse the value."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            if text == "now":
                return datetime.now(UTC)
            if text.isascii() and text.isdigit():
                return _EPOCH + timedelta(milliseconds=int(text))
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is not None else local_time(found)
        except (ValueError, OverflowError, OSError):
            self.fail(
                "wanted a time such as 2026-12-24T18:00+01:00, 2026-12-24 18:00 (local zone), "
                f"epoch ms, or now; got {value!r}",
                param,
            )


class Due(Instant):
    """A due time. A small integer is rejected, because it is most often seconds."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> datetime:
        """Parse the value."""
        found, text = super().convert(value, param, ctx), str(value).strip()
        if text.isdigit() and 0 < int(text) < SANE_MS_MIN:
            self.fail(
                f"wanted epoch ms from 2000 on ({SANE_MS_MIN}), or 0 for now, got {text}; if these "
                f"are seconds, give {text}000",
                param,
            )
        return found


class Setting(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """`name=value`: a field of StoreConfig."""

    name = "name=value"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[str, Any]:
        """Parse the value."""
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
                self.fail(f"{name}: wanted an integer, got {text!r}", param)
            return int(digits)
        return text


class Pair(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """`name=value` with any name."""

    name = "name=value"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[str, str]:
        """Parse the value."""
        if isinstance(value, tuple):
            return value
        name, is_given, text = str(value).partition("=")
        if not (name and is_given):
            self.fail(f"wanted NAME=VALUE, got {value!r}", param)
        return name, text


class Seconds(click.FloatRange):
    """Seconds within bounds. NaN is rejected, which a comparison with the bounds would not do."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Parse the value."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return found


class NonEmptyPath(click.Path):
    """A path. The empty path is rejected, since it would be the working directory.

    So is the address of a server.
    """

    def __init__(self, why_no_url: str = "", *, readable: bool = True) -> None:
        """`why_no_url`: the reason why a served store is of no use here.

        readable: reject a path that this user may not read.
        """
        super().__init__(path_type=Path, readable=readable)
        self._why_no_url = why_no_url

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Parse the value."""
        if value == "":
            self.fail("wanted a path, got ''", param)
        if is_url(value):
            why = f": {self._why_no_url}" if self._why_no_url else ""
            self.fail(f"wanted a path of this machine, got {value}{why}", param)
        return super().convert(value, param, ctx)


_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def is_url(value: object) -> bool:
    """Return whether an argument is an address, not a path."""
    return isinstance(value, str) and _URL.match(value) is not None


class StoreUrl(NamedTuple):
    """The address of a served store, and the files that a client of its server needs."""

    url: str
    token_file: Path | None
    tls_ca: Path | None

    def __str__(self) -> str:
        return self.url


StorePlace = Path | StoreUrl
"""A directory, or the address of a server."""


class _Place(NonEmptyPath):
    """A path, or the address of a server."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Parse the value."""
        given = _given_files(ctx)
        if not is_url(value):
            if given:
                self.fail(f"{given[0]}: wanted tcp:// or tls:// with it, got {value!r}", param)
            return super().convert(value, param, ctx)
        meta = {} if ctx is None else ctx.meta
        scheme = value.partition("://")[0].lower()
        for name, schemes in ((_TOKEN_FILE, ("tcp", "tls")), (_TLS_CA, ("tls",))):
            if name in given and scheme not in schemes:
                forms = " or ".join(f"{one}://" for one in schemes)
                self.fail(f"{name}: wanted {forms} with it, got {value}", param)
        has_token = scheme in ("tcp", "tls")
        return StoreUrl(
            value,
            meta.get(_TOKEN_FILE) if has_token else None,
            meta.get(_TLS_CA) if scheme == "tls" else None,
        )


_TOKEN_FILE, _TLS_CA = "--token-file", "--tls-ca"


def _given_files(ctx: click.Context | None) -> list[str]:
    """Return the options of a server that the command line has, not the environment."""
    return [] if ctx is None else ctx.meta.get("given_files", [])


def _keep_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    name = param.opts[0]
    ctx.meta[name] = value
    if ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
        ctx.meta.setdefault("given_files", []).append(name)


SPAN, INSTANT, DUE, SETTING, PAIR = Span(), Instant(), Due(), Setting(), Pair()
FOLDER = NonEmptyPath()
WHOLE_MAX = 2**63 - 1
COUNT, PLACE = click.IntRange(1, WHOLE_MAX), click.IntRange(0, WHOLE_MAX)


def files_argument(why_no_url: str) -> Callable[[Function], Function]:
    """Return the argument PATH of a command that needs the files of a store."""
    return click.argument("path", type=NonEmptyPath(why_no_url))


_HELP = {
    _TLS_CA: "Certificates that sign the server's, in PEM, for tls:// in place of PATH.",
    _TOKEN_FILE: "File with the server's token, for tcp:// and tls:// in place of PATH.",
}


def _file_option(name: str, **more: Any) -> Callable[[Function], Function]:
    return click.option(
        name,
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=f"TIMERSTORE_{name[2:].replace('-', '_').upper()}",
        show_envvar=True,
        help=_HELP[name],
        **more,
    )


place_argument = click.argument("path", type=_Place(), metavar="PATH|URL")
tls_ca_option = _file_option(_TLS_CA)


def store_argument(command: Function) -> Function:
    """Add the argument PATH: a directory, or the address of a server; and the client's options."""
    for name in _HELP:
        keep = _file_option(name, is_eager=True, expose_value=False, callback=_keep_file)
        command = keep(command)
    return place_argument(command)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON, one object per line."
)
config_option = click.option(
    "-c",
    "--config",
    "settings",
    multiple=True,
    type=SETTING,
    help="A field of StoreConfig, such as -c flush=async; repeatable.",
)
topic_option = click.option("--topic", help="Only this topic.")


def config_of(settings: Sequence[tuple[str, Any]]) -> StoreConfig | None:
    """Return the configuration, or None without settings. Raises ConfigError for invalid values."""
    return StoreConfig(**dict(settings)) if settings else None


def when_options(command: Function) -> Function:
    """Add --in and --at."""
    command = click.option(
        "--at",
        "at",
        type=DUE,
        help="Due at this time: 2026-12-24T18:00+01:00 or epoch ms; the default zone is this "
        "machine's. If clocks go back and the time occurs twice, the first; if they go forward and "
        "skip it, the end of the gap.",
    )(command)
    return click.option(
        "--in", "within", type=SPAN, help="Due after this span: 90s, 30m, 1h30m, 2d."
    )(command)


def due_arguments(within: timedelta | None, at: datetime | None) -> dict[str, Any]:
    """Return the due time as arguments of `put` and `reschedule`."""
    if within is not None and at is not None:
        raise click.UsageError("wanted --in or --at, got both")
    if within is not None:
        return {"delay": within}
    return {} if at is None else {"deliver_at": at}


def ms_of(time: datetime | None) -> int | None:
    """Return epoch ms, rounded up so that nothing is early; None for None."""
    return None if time is None else moment_ms("time", time)
