"""Check a batch of rows before any row is stored.

Invariants:
    1. A row that passes fits its record, and so does every copy that a delivery appends.
    2. Python code does not handle single rows.
Raises: MessageError that names the column, the row, the expected and the found value.
"""

from typing import NamedTuple

import numpy as np

from timerstore._engine.base import argument_types, due_times, message_bodies, message_fields
from timerstore._engine.base.column_batch import ColumnBatch
from timerstore._engine.ingest.row_batch import RowBatch, StagedBatch
from timerstore._engine.write.string_columns import (
    Column,
    check_ids,
    check_tags,
    property_column,
    string_column,
)
from timerstore.config import StoreConfig
from timerstore.errors import MessageError, kind_of, plain, quoted
from timerstore.messages import Int64Array

SOURCE_BYTES_MAX = 255
VERSION_MAX = 2**63 - 1
_PAIR_BYTES = 6  # TAGS or KEYS, and the two separators
_MADE_ID_BYTES = 32


class Checked(NamedTuple):
    """A valid batch."""

    topic: str
    name: bytes
    rows: ColumnBatch
    due_ms: Int64Array


def check_name(source: object, version: object) -> tuple[str, int]:
    """Return source and version in the form in which they are stored.

    Raises:
        MessageError: one of them is not valid.
    """
    problems = []
    source = plain(source)
    if not isinstance(source, str):
        problems.append(f"source: wanted text, got {kind_of(source)}")
    elif (
        not source or not message_fields.is_utf8(source) or len(source.encode()) > SOURCE_BYTES_MAX
    ):
        problems.append(
            f"source: wanted 1 to {SOURCE_BYTES_MAX} bytes of UTF-8, got {source[:80]!r}"
        )
    number = argument_types.whole(version)
    if number is None or not 0 <= number <= VERSION_MAX:
        problems.append(
            f"version: wanted a whole number, 0 to {VERSION_MAX}, got {quoted(version)}"
        )
    if problems:
        raise MessageError(problems)
    assert isinstance(source, str)
    assert number is not None
    return source, number


def check_batch(
    batch: object, config: StoreConfig, record_bytes_max: int, now_ms: int, stored: int = 0
) -> Checked:
    """Return a batch as columns that C reads.

    stored: number of rows at its begin that are in the log. Their due times were checked when they
        were stored. Those of a StagedBatch were checked when they were staged.

    Raises:
        MessageError: a row is not valid or does not fit a record.
    """
    if not isinstance(batch, RowBatch):
        raise MessageError(f"batches: wanted RowBatch, got {type(batch).__name__}")
    name = message_fields.check_topic(batch.topic)
    bodies, offsets, _ = message_bodies.gather_bodies(
        (batch.bodies, np.asarray(batch.body_offsets)), config.message_bytes_max
    )
    count = len(offsets) - 1
    is_staged = isinstance(batch, StagedBatch)
    due_ms = _due(batch.due_ms, count, config, now_ms, count if is_staged else stored)
    text = message_fields.encode_properties(None, (), batch.properties)
    own = np.full(count, len(text), np.int64)
    rows = ColumnBatch(bodies, offsets, due_ms, text)
    if (tags := string_column("tags", batch.tags, batch.tag_offsets, count)) is not None:
        if not is_staged:  # an earlier release also staged tags that no filter can name
            check_tags(tags)
        rows.with_tags(*tags)
        own += _pair_bytes(tags)
    if (keys := string_column("keys", batch.keys, batch.key_offsets, count)) is not None:
        rows.with_keys(*keys)
        own += _pair_bytes(keys)
    ids = string_column("message_ids", batch.message_ids, batch.message_id_offsets, count)
    if ids is not None:
        check_ids(ids)
        rows.with_ids(*ids)
        own += np.maximum(np.diff(ids[1]) - _MADE_ID_BYTES, 0)
    if isinstance(batch, StagedBatch):
        texts = property_column(batch.property_texts, batch.property_offsets, count)
        if texts is not None:
            rows.with_extra(*texts)
            own += np.diff(texts[1])
    if count:
        most = int((np.diff(offsets) + own).max())
        message_fields.check_sizes(
            most - int(own.max()),
            int(own.max()),
            name,
            properties_bytes_max=config.properties_bytes_max,
            record_bytes_max=record_bytes_max,
        )
    return Checked(batch.topic, name, rows, due_ms)


def _due(given: object, count: int, config: StoreConfig, now_ms: int, stored: int) -> Int64Array:
    due_ms = np.array(given)  # a copy, so that the checked values are stored
    if due_ms.shape != (count,) or (due_ms.dtype.kind not in "iu" and count):
        raise MessageError(
            f"due_ms: wanted {count} whole numbers of ms since 1970, got {due_ms.dtype} of shape "
            f"{due_ms.shape}"
        )
    # The check of put_many. C gets the given values, so that the digest is the same later.
    asked = np.where(np.arange(count) < stored, 0, due_ms) if stored > 0 else due_ms
    waiting = due_times.resolve_due_array(now_ms, count, None, asked, config.delay_ms_max)
    if not config.timer_enabled and bool((waiting > 0).any()):
        raise due_times.timers_off()
    return due_ms.astype(np.int64, copy=False)


def _pair_bytes(column: Column) -> Int64Array:
    sizes = np.diff(column[1])
    return np.where(sizes > 0, sizes + _PAIR_BYTES, 0)
