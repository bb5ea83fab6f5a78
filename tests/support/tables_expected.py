"""The expected rows of each table, computed from disk_reader alone. Times are in ms.

Invariants: imports nothing of timerstore except the fold's names of kinds.
"""

from pathlib import Path
from typing import Any

from tests.support import disk_reader as disk
from tests.support.record_kind import RecordKind
from tests.support.scan_rows import due_ms, kind_of, number

Row = dict[str, Any]


def table_kind(record: disk.Record) -> RecordKind:
    """Return the kind of a record for the tables, which also names undeliverable records."""
    given = record.properties
    if record.transaction in (disk.PREPARED, disk.ROLLED_BACK):
        return RecordKind.ORDINARY
    if record.topic == disk.TIMER_TOPIC and "TIMER_DEL_UNIQKEY" in given:
        return RecordKind.DELETE
    if record.topic == disk.LEVEL_TOPIC:
        usable = "REAL_TOPIC" in given and "REAL_QID" in given and number(given, "DELAY")
        return RecordKind.LEVEL if usable else RecordKind.LEVEL_UNUSABLE
    return kind_of(record)


def message_row(record: disk.Record, precision_ms: int, shard: int = 0) -> Row:
    """Return one record as a row of `messages`."""
    given = record.properties
    kind = table_kind(record)
    return {
        "shard": shard,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "log_offset": record.log_offset,
        "msg_id": _bytes(given.get("UNIQ_KEY")),
        "key": _bytes(given.get("KEYS")),
        "tags": given.get("TAGS"),
        "stored_at": record.store_ms,
        "deliver_at": _due(record, precision_ms),
        "properties": given,
        "body": record.raw_body,
        "body_len": len(record.raw_body),
        "body_crc": record.body_crc,
        "flags": record.sys_flag,
        "kind": kind.name.lower(),
        "real_topic": given.get("REAL_TOPIC"),
        "timer_id": None if record.timer_id is None else record.timer_id[1],
        "rolls": number(given, "TIMER_ROLL_TIMES") or 0,
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _due(record: disk.Record, precision_ms: int) -> int | None:
    level = disk.decode_ts_level(record.properties.get("TS_LEVEL", ""))
    if level is not None and number(record.properties, "DELAY"):
        return level[3]
    out = number(record.properties, "TIMER_OUT_MS")
    return None if out is None else due_ms(record.properties, out, precision_ms)


def messages(root: Path, precision_ms: int, shard: int = 0) -> list[Row]:
    """Return the rows of `messages`."""
    return [message_row(record, precision_ms, shard) for record in disk.records(root)]


def deliveries(root: Path, precision_ms: int, shard: int = 0) -> list[Row]:
    """Return the rows of `deliveries`."""
    found = []
    for record in disk.records(root):
        kind = table_kind(record)
        if kind not in (RecordKind.DELIVERED, RecordKind.LEVEL_DELIVERED):
            continue
        row = message_row(record, precision_ms, shard)
        due = row["deliver_at"]
        names = ("shard", "topic", "queue_id", "queue_offset", "msg_id", "deliver_at", "rolls")
        level = number(record.properties, "DELAY") if kind == RecordKind.LEVEL_DELIVERED else None
        found.append(
            {name: row[name] for name in (*names, "log_offset", "timer_id")}
            | {
                "delivered_at": record.store_ms,
                "lateness_ms": None if due is None else record.store_ms - due,
                "level": level,
            }
        )
    return found


def timer_units(root: Path, precision_ms: int, cancelled: set[int], shard: int = 0) -> list[Row]:
    """Return the rows of `timer_units`; `cancelled` has the log offsets of cancelled messages."""
    return [
        {
            "shard": shard,
            "deliver_at": unit.write_ms + unit.delay_ms + precision_ms,
            "timer_pos": unit.pos,
            "prev_pos": unit.prev_pos,
            "log_offset": unit.log_offset,
            "size": unit.store_size,
            "enqueued_at": unit.write_ms,
            "flags": unit.magic,
            "rolled": bool(unit.magic & disk.TIMER_ROLL),
            "cancelled": unit.log_offset in cancelled,
        }
        for unit in disk.timer_units(root)
    ]


def slots(root: Path, precision_ms: int, shard: int = 0) -> list[Row]:
    """Return the rows of `slots`."""
    return [
        {
            "shard": shard,
            "slot": slot.number,
            "slot_at": slot.time * precision_ms,
            "first_pos": slot.first_pos,
            "last_pos": slot.last_pos,
            "count": slot.unit_count,
        }
        for slot in disk.iter_slots(root)
    ]
