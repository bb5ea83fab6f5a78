"""Read the messages of a topic while another process may have the store open.

Invariants: each record is returned once, in the order of the log, up to the last checkpoint.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timerstore._engine.snapshot.columns.arrow_batches import read_part
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, Wanted
from timerstore._engine.snapshot.live_stats import StoreSummary, take_newest
from timerstore._engine.snapshot.position import Snapshot, refreshed
from timerstore.cli.opening import stores_in
from timerstore.cli.params import ms_of
from timerstore.cli.stopping import Stop
from timerstore.cli.text import Fields, WriteMessage, body_fields, iso, own_properties
from timerstore.errors import TimerStoreError
from timerstore.types.messages import SYS_FLAG_COMPRESSED, inflate_body

_COLUMNS = (
    "topic",
    "queue_id",
    "queue_offset",
    "log_offset",
    "msg_id",
    "key",
    "tags",
    "stored_at",
    "deliver_at",
    "properties",
    "body",
    "flags",
    "kind",
)
_IN_TOPIC = {"ordinary", "delivered", "level_delivered"}
_EVERY_S = 0.25


def messages(path: Path, topic: str, options: dict[str, Any]) -> Iterator[Fields]:
    """Return the messages that a topic has now, optionally of one queue and from an offset on."""
    for shard, one in stores_in(path).items():
        store = take_newest(one)
        for fields in _records(store, shard, Bounds(topics=(topic,)), store.log_begin):
            if options["queue_id"] not in (None, fields["queue_id"]):
                continue
            if fields["queue_offset"] >= options["offset"] and _has_tag(fields, options["tags"]):
                yield fields


def follow(
    options: dict[str, Any], before: list[StoreSummary], stop: Stop, write: WriteMessage
) -> None:
    """Write new messages until `stop` is set."""
    bounds = Bounds(topics=(options["topic"],), stored_from_ms=ms_of(options["begin"]))
    is_old = options["from_start"] or options["begin"] is not None
    stores = [one.store for one in before]
    ends = [one.log_begin if is_old else one.log_end for one in stores]
    while True:
        for k, known in enumerate(before):
            for fields in _records(stores[k], known.shard, bounds, ends[k]):
                if stop.is_asked:
                    return
                if _has_tag(fields, options["tags"]):
                    write(fields)
            ends[k] = stores[k].log_end
            stores[k] = refreshed(stores[k])
        if stop.wait(_EVERY_S):
            return


def _records(store: Snapshot, shard: int | None, bounds: Bounds, begin: int) -> Iterator[Fields]:
    wanted = Wanted("messages", _COLUMNS, bounds, times_as_long=True)
    part = Part(shard or 0, store, max(begin, store.log_begin), store.log_end)
    for batch in read_part(part, wanted):
        for row in batch.to_pylist():
            if row["kind"] in _IN_TOPIC:
                yield _fields(row, shard)


def _has_tag(fields: Fields, tags: str | None) -> bool:
    if tags is None or tags.strip() == "*":
        return True
    return fields["tags"] in {one.strip() for one in tags.split("||")}


def _fields(row: dict[str, Any], shard: int | None) -> Fields:
    """Return a row in the form of `text.message_fields`."""
    delivered: int = row["stored_at"]
    due: int = delivered if row["deliver_at"] is None else row["deliver_at"]
    return {
        "topic": row["topic"],
        **({} if shard is None else {"shard": shard}),
        "queue_id": row["queue_id"],
        "queue_offset": row["queue_offset"],
        "log_offset": row["log_offset"],
        "message_id": (row["msg_id"] or b"").decode("utf-8", "replace"),
        "keys": (row["key"] or b"").decode("utf-8", "replace").split(),
        "tags": row["tags"],
        "properties": own_properties(dict(row["properties"] or ())),
        "due_ms": due,
        "due": iso(due),
        "delivered_ms": delivered,
        "lateness_ms": delivered - due,
        **body_fields(_body(row)),
    }


def _body(row: dict[str, Any]) -> bytes:
    raw: bytes = row["body"] or b""
    if not row["flags"] & SYS_FLAG_COMPRESSED:
        return raw
    try:
        return inflate_body(raw, row["flags"])
    except TimerStoreError:
        return raw  # a body that cannot be inflated is returned as it is stored
