"""Read and write positions as JSON, for stream offsets and for the option `as_of`.

An example is {"format": 1, "shards": {"00000": {"p": 4096, "t": 520, "ms": 1764111600000}}}. `p` is
an offset in the commit log and `t` a position in the timer log. `ms` is the time of the position,
in ms since 1970. A stream offset has `p` only, which is then a position in the log that the
streamed table is read from.

Invariants:
    Keys are sorted and all numbers are integers, because Spark compares offsets as text.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from timerstore.errors import ConfigError

FORMAT = 1
_OFFSET_MAX = 2**63 - 1
_MS_MAX = 253_402_300_799_999  # the year 9999

Ends = dict[int, int]


class Position(NamedTuple):
    """The position of one shard: `p` in the commit log, `t` in the timer log, and its time."""

    p: int
    t: int | None = None
    ms: int | None = None


def make(ends: Mapping[int, int]) -> dict[str, Any]:
    """Return the stream offset with these positions."""
    return {
        "format": FORMAT,
        "shards": {f"{shard:05d}": {"p": int(ends[shard])} for shard in sorted(ends)},
    }


def text(positions: Mapping[int, Position]) -> str:
    """Return positions as JSON text."""
    shards = {
        f"{shard:05d}": {name: value for name, value in at._asdict().items() if value is not None}
        for shard, at in sorted(positions.items())
    }
    return json.dumps({"format": FORMAT, "shards": shards})


def read(what: str, given: str) -> dict[int, Position]:
    """Parse positions. Raise ConfigError, prefixed with `what`, if the text is invalid."""
    try:
        table = json.loads(given)
    except ValueError as error:
        raise ConfigError(f"{what}: not valid JSON ({error}): {given[:100]!r}") from error
    return positions(what, table)


def positions(what: str, table: Any) -> dict[int, Position]:
    """Return the positions in decoded JSON. Raise ConfigError if it is invalid."""
    if not isinstance(table, dict) or not isinstance(table.get("shards"), dict):
        raise ConfigError(
            f'{what}: wanted {{"format": 1, "shards": {{"00000": {{"p": 0}}}}}}, got {table!r}'
        )
    if table.get("format") != FORMAT:
        raise ConfigError(f"{what}: wanted format {FORMAT}, got {table.get('format')!r}")
    return {
        _shard(what, name): _position(f"{what}: shard {name}", at)
        for name, at in table["shards"].items()
    }


def _shard(what: str, name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) < 20):
        raise ConfigError(f"{what}: wanted a shard number, got {name!r}")
    return int(name)


def _position(what: str, at: Any) -> Position:
    if not isinstance(at, dict) or "p" not in at or not at.keys() <= set(Position._fields):
        raise ConfigError(f'{what}: wanted {{"p": ..., "t": ...}}, got {at!r}')
    for name, value in at.items():
        most = _MS_MAX if name == "ms" else _OFFSET_MAX
        if type(value) is not int or not 0 <= value <= most:
            raise ConfigError(f"{what}: wanted a whole number from 0 to {most}, got {value!r}")
    return Position(at["p"], at.get("t"), at.get("ms"))


def ends_of(offset: Mapping[str, Any]) -> Ends:
    """Return the position of each shard in a stream offset."""
    return {shard: at.p for shard, at in positions("offset of the stream", offset).items()}
