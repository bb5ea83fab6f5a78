"""Positions in stores as JSON: where a stream stands, and what `as_of` pins.

Data:     {"format": 1, "shards": {"00000": {"p": 4096, "t": 520}}}; p: log offset, t: position in
          the timer log, left out where only one log counts. Of a stream only p, of its table's log.
Holds:    keys are sorted and numbers whole: Spark compares offsets as text.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from timerstore.errors import ConfigError

FORMAT = 1
_OFFSET_MAX = 2**63 - 1

Ends = dict[int, int]


class Position(NamedTuple):
    """Where one shard stands."""

    p: int
    t: int | None = None


def make(ends: Mapping[int, int]) -> dict[str, Any]:
    """Give a stream's offset."""
    return {
        "format": FORMAT,
        "shards": {f"{shard:05d}": {"p": int(ends[shard])} for shard in sorted(ends)},
    }


def text(positions: Mapping[int, Position]) -> str:
    """Give positions as JSON."""
    shards = {
        f"{shard:05d}": {"p": at.p} if at.t is None else {"p": at.p, "t": at.t}
        for shard, at in sorted(positions.items())
    }
    return json.dumps({"format": FORMAT, "shards": shards})


def read(what: str, given: str) -> dict[int, Position]:
    """Read positions; ConfigError, with `what` in front, on anything else."""
    try:
        table = json.loads(given)
    except ValueError as error:
        raise ConfigError(f"{what}: no JSON ({error}): {given[:100]!r}") from error
    return positions(what, table)


def positions(what: str, table: Any) -> dict[int, Position]:
    """The same of a table that is read already."""
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
        raise ConfigError(f"{what}: wanted a shard's number, got {name!r}")
    return int(name)


def _position(what: str, at: Any) -> Position:
    if not isinstance(at, dict) or "p" not in at or not at.keys() <= {"p", "t"}:
        raise ConfigError(f'{what}: wanted {{"p": ..., "t": ...}}, got {at!r}')
    for value in at.values():
        if type(value) is not int or not 0 <= value <= _OFFSET_MAX:
            raise ConfigError(f"{what}: wanted a whole number from 0 on, got {value!r}")
    return Position(at["p"], at.get("t"))


def ends_of(offset: Mapping[str, Any]) -> Ends:
    """Give what a stream's offset says of each shard."""
    return {shard: at.p for shard, at in positions("offset of the stream", offset).items()}
