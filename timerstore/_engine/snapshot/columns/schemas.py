"""The tables that a store is read as, and their columns.

| table        | one row for                            | read from                             |
|--------------|----------------------------------------|---------------------------------------|
| messages     | each record of the commit log          | commit log                            |
| timers       | each pending message                   | commit log                            |
| timer_units  | each unit of the timer log             | timer log                             |
| slots        | each slot of the wheel that is in use  | timer wheel                           |
| deliveries   | each copy that a timer or level put    | commit log                            |
|              | into its real topic                    |                                       |
| transactions | each ingested version of a source      | commit log                            |

messages: `body` is as stored, and `body_len` and `body_crc` are of these bytes. Bit 0 of `flags`,
the SYSFLAG, marks compressed bodies. `msg_id` is UNIQ_KEY. `key` is KEYS, separated by spaces.
`real_topic` is the topic that a timer or level delivers to. `timer_id` is our own id, null in
records of a broker. `deliver_at` is null without one, or if only the level's table knows it.

timers: every message that waits for its due time has one row: on the wheel, on the far wheel, past
the roll window, in the open slot, on a delay level, or not linked yet. `deliver_at` is its own due
time, as `store.pending` and `store.histogram` return it. `topic` is the topic that it is delivered
to. `log_offset`, `size` and `stored_at` are those of the record that it was put as, or of its
current copy if retention removed that record. `level` is null for a timer, and `timer_id` for a
message on a level and in records of a broker.

timer_units: `deliver_at` is the end of the unit's slot. The message is due then, or less than a
precision before. For a unit with `rolled` it is the time of the roll. Units of delivered messages
stay until their segment is removed. `cancelled`: a delete names the message, and nothing delivered
it before. A message on the far wheel (docs/decisions/0003-timing-wheel.md) has a unit with the slot
before it was enqueued. When its far slot comes near, it gets another unit with its time.

transactions: `rows` is the number of rows in all chunks. `bytes` is the size of their messages in
the log. `applied_at` is the store time of the last chunk. If retention removed the chunks, `bytes`
and `applied_at` are null, and so is `rows` if the log has only the version's number.

deliveries: `lateness_ms` = delivered - due. It is null if only the level's table knows the due
time, as for deliveries of a broker from a level. Two rows for one message are a double delivery.

Invariants: names and types do not change. Columns are added at the end of a table.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from timerstore.errors import ConfigError

Kind = Literal["int", "long", "string", "binary", "time", "boolean", "map"]


class Column(NamedTuple):
    """A column. `time` is a timestamp (us, UTC), or with `times_as_long` a long (ms)."""

    name: str
    kind: Kind


def _columns(text: str) -> tuple[Column, ...]:
    pairs = (one.split() for one in text.split(","))
    return tuple(Column(name, kind) for name, kind in pairs)  # type: ignore[arg-type]


TABLES: Mapping[str, tuple[Column, ...]] = MappingProxyType(
    {
        "messages": _columns(
            "shard int, topic string, queue_id int, queue_offset long, log_offset long, "
            "msg_id binary, key binary, tags string, stored_at time, deliver_at time, "
            "properties map, body binary, body_len int, body_crc int, flags int, "
            "kind string, real_topic string, timer_id long, rolls int"
        ),
        "timers": _columns(
            "shard int, topic string, deliver_at time, stored_at time, msg_id binary, key binary, "
            "tags string, size int, log_offset long, timer_id long, level int"
        ),
        "timer_units": _columns(
            "shard int, deliver_at time, timer_pos long, prev_pos long, log_offset long, "
            "size int, enqueued_at time, flags int, rolled boolean, cancelled boolean"
        ),
        "slots": _columns(
            "shard int, slot int, slot_at time, first_pos long, last_pos long, count long"
        ),
        "deliveries": _columns(
            "shard int, topic string, queue_id int, queue_offset long, msg_id binary, "
            "deliver_at time, delivered_at time, lateness_ms long, rolls int, "
            "log_offset long, timer_id long, level int"
        ),
        "transactions": _columns(
            "shard int, source string, version long, rows long, bytes long, applied_at time"
        ),
    }
)


def chosen(table: str, names: tuple[str, ...] | None) -> tuple[Column, ...]:
    """Return columns of a table in the order of `names`; all of them if that is None."""
    if table not in TABLES:
        raise ConfigError(f"table: wanted one of {', '.join(TABLES)}, got {table!r}")
    known = {column.name: column for column in TABLES[table]}
    if names is None:
        return TABLES[table]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"columns: table {table} has no {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(known)}"
        )
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ConfigError(f"columns: {', '.join(map(repr, sorted(repeated)))} is there twice")
    return tuple(known[name] for name in names)
