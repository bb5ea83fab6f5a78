"""Check the columns of a table whose rows are to become messages.

    topic             string; or the option `topic`
    body              binary or string
    deliver_at        timestamp with a time zone, or milliseconds as long; or deliver_ms
    key or keys       string or binary; or a list of strings
    tags              string
    message_id        string or binary
    properties        map of strings
    another column    if `shard_by` names it

Names are case-insensitive.

Raises: ConfigError, which lists every problem.
"""

from collections.abc import Container
from typing import Any

from timerstore.errors import ConfigError
from timerstore.shards.arrow_import import pyarrow
from timerstore.shards.write_options import ROUTE_ID, ROUTE_KEY, WriteOptions

COLUMNS = (
    "topic",
    "body",
    "deliver_at",
    "deliver_ms",
    "key",
    "keys",
    "tags",
    "message_id",
    "properties",
)


def check_columns(schema: Any, options: WriteOptions) -> None:
    """Raise ConfigError if such columns cannot become messages. `schema` is pyarrow's."""
    names = [one.name.lower() for one in schema]
    known = dict(zip(names, schema.types, strict=True))
    routed_by = route_column(options)
    problems = [f"column {name}: given twice" for name in known if names.count(name) > 1]
    problems += [
        f"column {name}: not known; known are {', '.join(COLUMNS)}"
        for name in known
        if name not in COLUMNS and name != routed_by
    ]
    problems += _missing(known, options, routed_by)
    for name, kind in known.items():
        if wanted := _wrong_type(name, kind, pyarrow().types):
            problems.append(f"column {name}: wanted {wanted}, got {kind}")
        if name == routed_by and not _is_routable(kind, pyarrow().types):
            problems.append(f"shard_by: wanted text, binary or whole numbers in {name}, got {kind}")
    if problems:
        raise ConfigError(problems)


def route_column(options: WriteOptions) -> str:
    """Return the lower-case name of the column that decides the shard, "" for key or message id."""
    name = options.shard_by.lower()
    return "" if name in (ROUTE_KEY, ROUTE_ID) else name


def _missing(known: Container[str], options: WriteOptions, routed_by: str) -> list[str]:
    problems = []
    if ("topic" in known) == bool(options.topic):
        problems.append("topic: wanted a column topic or the option topic, one of the two")
    if "body" not in known:
        problems.append("body: there is no such column")
    if ("deliver_at" in known) + ("deliver_ms" in known) != 1:
        problems.append(
            "deliver_at: wanted a column deliver_at (timestamp, or long ms) or deliver_ms (long; "
            "0: now), one of the two"
        )
    if "key" in known and "keys" in known:
        problems.append("key, keys: wanted one of the two")
    if routed_by and routed_by not in known:
        problems.append(f"shard_by: there is no column {routed_by!r}")
    if options.shard_by.lower() == ROUTE_ID and "message_id" not in known:
        problems.append("shard_by: msg_id needs a column message_id")
    return problems


def is_text(kind: Any, types: Any) -> bool:
    """Return whether an Arrow type is text."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_binary(kind: Any, types: Any) -> bool:
    """Return whether an Arrow type is binary."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_routable(kind: Any, types: Any) -> bool:
    return is_text(kind, types) or is_binary(kind, types) or bool(types.is_integer(kind))


def _wrong_type(name: str, kind: Any, types: Any) -> str:
    """Return the type that a column must have, or "" if it has it."""
    if name == "body":
        return "" if is_binary(kind, types) or is_text(kind, types) else "binary or string"
    if name == "deliver_ms":
        return "" if types.is_int64(kind) else "long (ms since 1970)"
    if name == "deliver_at":
        is_moment = types.is_timestamp(kind) and kind.tz is not None
        return "" if is_moment or types.is_int64(kind) else "timestamp (not timestamp_ntz), or long"
    if name == "keys":
        is_list = types.is_list(kind) or types.is_large_list(kind)
        return "" if is_list and is_text(kind.value_type, types) else "array<string>"
    if name == "properties":
        is_map = types.is_map(kind)
        has_text = is_map and is_text(kind.key_type, types) and is_text(kind.item_type, types)
        return "" if has_text else "map<string,string>"
    if name in ("key", "message_id") and is_binary(kind, types):
        return ""  # the types in which columnar tables return them
    if name in COLUMNS:
        return "" if is_text(kind, types) else "string"
    return ""
