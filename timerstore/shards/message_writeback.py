"""Convert rows of the table `messages` to rows that become messages again (rows=messages).

| column        | becomes                                                                          |
|---------------|----------------------------------------------------------------------------------|
| topic         | the topic, or that of the property REAL_TOPIC for a pending or rolled message    |
| msg_id        | message_id                                                                       |
| key           | keys: one text can have several, separated by spaces                             |
| deliver_at    | NULL becomes 0, now, except for a fixed level: only its store knows the time     |
| properties    | without those that the store or a broker sets                                    |
| body          | inflated, if bit 0 of `flags` says that it is compressed                         |
| the others    | nothing: the store sets them                                                     |

Thread safety: any thread; the functions have no side effects.
Raises: MessageError for a body that cannot be inflated.
"""

from typing import Any

import numpy as np

from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore.shards.arrow_arrays import numpy_of
from timerstore.shards.arrow_import import compute, pyarrow
from timerstore.shards.nested import flat_of, spans_of_kept
from timerstore.shards.property_texts import are_reserved
from timerstore.types.messages import SYS_FLAG_COMPRESSED, inflate_body

SET_BY_STORE = frozenset(
    {"shard", "queue_id", "queue_offset", "log_offset", "stored_at", "body_len", "body_crc"}
    | {"flags", "kind", "real_topic", "timer_id", "rolls"}
)
"""The columns of the table `messages` that a new message cannot have."""


def rows_of_messages(batch: Any) -> Any:
    """Return the rows of a pyarrow RecordBatch in the form of the writer."""
    arrow = pyarrow()
    columns = {name.lower(): batch.column(k) for k, name in enumerate(batch.schema.names)}
    types, properties = arrow.types, columns.get("properties")
    is_map = properties is not None and types.is_map(properties.type)
    if "deliver_at" in columns and "topic" in columns:
        columns["deliver_at"] = _due(columns["deliver_at"], columns["topic"])
    if is_map and "topic" in columns:
        real = compute().map_lookup(properties, "REAL_TOPIC", "last")
        columns["topic"] = compute().coalesce(real, columns["topic"].cast(real.type))
    if is_map:
        columns["properties"] = _without_reserved(properties)
    if "body" in columns and "flags" in columns:
        columns["body"] = _inflated(columns["body"], columns["flags"])
    if "key" in columns and "keys" not in columns:
        columns["keys"] = _keys(columns.pop("key"))
    if "msg_id" in columns and "message_id" not in columns:
        columns["message_id"] = columns.pop("msg_id")
    kept = {name: column for name, column in columns.items() if name not in SET_BY_STORE}
    return arrow.RecordBatch.from_arrays([*kept.values()], names=[*kept])


def _due(due: Any, topic: Any) -> Any:
    pc = compute()
    now = pyarrow().scalar(0, pyarrow().int64()).cast(due.type)
    is_level = pc.equal(topic.cast(pyarrow().string()), SCHEDULE_TOPIC)
    return pc.if_else(pc.fill_null(is_level, fill_value=False), due, due.fill_null(now))


def _keys(key: Any) -> Any:
    """Split keys at spaces. A broker accepts an empty text and several spaces."""
    arrow, pc = pyarrow(), compute()
    text = key.cast(arrow.large_binary()).cast(arrow.large_string()).fill_null("")
    words = pc.utf8_trim(pc.replace_substring_regex(text, " +", " "), " ")
    lists = pc.split_pattern(words, " ")
    # The split of an empty text is one empty text.
    return pc.if_else(pc.equal(words, ""), arrow.scalar(None, lists.type), lists)


def _without_reserved(properties: Any) -> Any:
    arrow = pyarrow()
    (names, values), spans = flat_of(properties, properties.values.flatten())
    is_kept = ~numpy_of(are_reserved(names)).astype(bool)
    kept = arrow.array(is_kept)
    offsets = arrow.array(spans_of_kept(spans, is_kept).astype(np.int32))
    return arrow.MapArray.from_arrays(offsets, names.filter(kept), values.filter(kept))


def _inflated(body: Any, flags: Any) -> Any:
    pc = compute()
    numbers = flags.fill_null(0)
    is_compressed = pc.not_equal(pc.bit_wise_and(numbers, SYS_FLAG_COMPRESSED), 0)
    if not pc.any(is_compressed).as_py():
        return body
    pairs = zip(body.to_pylist(), numbers.to_pylist(), strict=True)  # rare: only clients compress
    bodies = [None if one is None else inflate_body(one, flag) for one, flag in pairs]
    return pyarrow().array(bodies, body.type)
