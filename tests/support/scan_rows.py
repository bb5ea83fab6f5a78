"""The scan of native/recovery/scan.c in plain Python: from disk_reader.Record to fold.SCAN_DTYPE.

It gives one row for each record, in log order. The identities are hashes of this module's own:
equal keys have equal hashes within one scanner, so do not mix the rows of two scanners.

See also: the file-format page, for records, timer units and the properties of deliveries.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tests.support import disk_reader as disk
from tests.support.record_kind import RecordKind
from timerstore._engine.log.scanned_records import SCAN_DTYPE, Scan


def identity(text: str) -> int:
    """Return 64 bits that identify a key."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def number(properties: Mapping[str, str], name: str) -> int | None:
    """Return a property as a number, or None if it is missing or not a number."""
    try:
        return int(properties[name])
    except (KeyError, ValueError):
        return None


def due_ms(properties: Mapping[str, str], out_ms: int, precision_ms: int) -> int:
    """Return when a timer is due: the single time given, else one slot after TIMER_OUT_MS."""
    asked = number(properties, "TIMER_DELIVER_MS")
    relative = "TIMER_DELAY_SEC" in properties or "TIMER_DELAY_MS" in properties
    return out_ms + precision_ms if asked is None or relative else asked


def kind_of(record: disk.Record) -> RecordKind:
    """Return the kind of a record for the fold.

    A delivered copy is in its REAL_TOPIC. A message that a consumer sent on to another topic with
    all its properties is ordinary, and so is a half message that waits for its commit.
    """
    given = record.properties
    out = number(given, "TIMER_OUT_MS")
    if record.topic == disk.TIMER_TOPIC:
        if out is None:
            return RecordKind.UNUSABLE
        if "TIMER_DEL_UNIQKEY" in given:
            return RecordKind.DELETE
        usable = "REAL_TOPIC" in given and number(given, "REAL_QID") is not None
        return RecordKind.TIMER if usable else RecordKind.UNUSABLE
    if record.topic == disk.LEVEL_TOPIC:
        return RecordKind.LEVEL
    if given.get("REAL_TOPIC") != record.topic:
        return RecordKind.ORDINARY
    if record.transaction in (disk.PREPARED, disk.ROLLED_BACK):
        return RecordKind.ORDINARY
    if out is not None:
        return RecordKind.DELIVERED
    return RecordKind.LEVEL_DELIVERED if "DELAY" in given else RecordKind.ORDINARY


def scan_row(record: disk.Record, precision_ms: int) -> dict[str, Any]:
    """Return one record's fields of SCAN_DTYPE; missing fields are 0."""
    given, kind = record.properties, kind_of(record)
    key = given.get("UNIQ_KEY", "")
    waits = kind in (RecordKind.TIMER, RecordKind.LEVEL)
    topic = given.get("REAL_TOPIC", "") if waits else record.topic
    out_ms = number(given, "TIMER_OUT_MS") or 0
    timed = kind in (RecordKind.TIMER, RecordKind.DELETE, RecordKind.DELIVERED)
    row: dict[str, Any] = {
        "log_offset": record.log_offset,
        "queue_offset": record.queue_offset,
        "store_ms": record.store_ms,
        "due_ms": due_ms(given, out_ms, precision_ms) if timed else record.store_ms,
        "out_ms": out_ms,
        "timer_id": -1,
        "identity": identity(f"{topic}+{key}"),
        "bare_identity": identity(key),
        "size": record.size,
        "kind": kind,
        "roll_times": number(given, "TIMER_ROLL_TIMES") or 0,
        "delay_level": number(given, "DELAY") or 0,
        "queue_id": record.queue_id,
        "topic_hash": disk.java_hash(topic),
    }
    if kind == RecordKind.DELETE:
        value = identity(given["TIMER_DEL_UNIQKEY"])
        row["identity"] = row["bare_identity"] = value
    if record.timer_id is not None and record.timer_id[1] < 1 << 63:
        row["store_id"], row["timer_id"] = record.timer_id
    return row


def scan_array(records: Iterable[disk.Record], precision_ms: int = 1000) -> Scan:
    """Return the rows of a complete log."""
    return rows_array([scan_row(record, precision_ms) for record in records])


def rows_array(rows: list[dict[str, Any]]) -> Scan:
    """Return a SCAN_DTYPE array of rows given as dicts; missing fields are 0."""
    scan = np.zeros(len(rows), SCAN_DTYPE)
    for at, row in enumerate(rows):
        for name, value in row.items():
            scan[name][at] = value
    return scan
