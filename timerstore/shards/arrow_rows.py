"""Check rows of any Arrow batch, and convert them into the columns that are staged.

Thread safety: any thread.
Invariants:
    1. A row that passes is accepted by every shard, now and later: the checks are those of
       `ingest`, with the limits of cluster.json.
    2. No row is handled one by one in Python.
See also: row_columns.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import due_times, message_fields
from timerstore.errors import MessageError
from timerstore.shards.arrow_arrays import (
    Mask,
    as_text,
    is_plain_ascii,
    joined,
    milliseconds_of,
    numpy_of,
    plain,
    sizes_of,
)
from timerstore.shards.arrow_import import compute, pyarrow
from timerstore.shards.nested import flat_of, rows_with
from timerstore.shards.property_texts import empty_texts, property_texts
from timerstore.shards.write_options import ROUTE_ID, ROUTE_KEY, WriteOptions
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Int64Array

_HEADER_BYTES = 4096 + 64  # `ingest` reserves this much of an atomic group, besides one record
_CONTROL = r"[\x00-\x1f]"
_UNFILTERED = r"\|\||^ | $|^\*$"
# The characters at which str.split() splits; a key contains none of them.
_SPACES = (
    r"[\x00-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
)
_SPACE_OR_DEL = r"[\x00-\x20\x7f]"
_PAIR_BYTES = 6  # TAGS or KEYS, and the two separators
_MADE_ID_BYTES = 32  # every record has space for an id of this length


@dataclass(slots=True)
class Rows:
    """A batch of rows: the staged columns, and the problems of each row."""

    topics: list[str]
    topic_of: npt.NDArray[np.int32]  # index into topics
    due_ms: Int64Array
    columns: dict[str, Any]  # staged_files.COLUMNS: large_binary without nulls
    route: Any  # large_binary without nulls: the text that decides the shard, or ""
    reasons: list[tuple[Mask, str]]

    def __len__(self) -> int:
        return len(self.due_ms)

    @property
    def invalid(self) -> Mask:
        """Which rows no store would accept."""
        mask = np.zeros(len(self), bool)
        for one, _ in self.reasons:
            mask |= one
        return mask

    def reason(self, row: int) -> str:
        """Return all problems of a row."""
        return "; ".join(text for mask, text in self.reasons if mask[row])


class Reader:
    """Converts batches of one schema into Rows."""

    def __init__(self, config: StoreConfig, options: WriteOptions) -> None:
        self._config = config
        self._options = options
        self._record_bytes_max = config.record_bytes_max - _HEADER_BYTES

    def read(self, batch: Any, now_ms: int) -> Rows:
        """Check and convert a batch. `now_ms` decides which times have passed or are too late."""
        columns = {one.lower(): batch.column(k) for k, one in enumerate(batch.schema.names)}
        reasons: list[tuple[Mask, str]] = []
        topics, topic_of = self._topics(columns, len(batch), reasons)
        body = self._body(columns["body"], reasons)
        due_ms = self._due(columns, now_ms, reasons)
        keys, first = self._keys(columns, len(batch), reasons)
        tags = _text(columns.get("tags"), len(batch), "tags", _CONTROL, reasons)
        unnamed = compute().match_substring_regex(tags.cast(pyarrow().large_string()), _UNFILTERED)
        _refuse(numpy_of(unnamed), f"tags: {message_fields.UNFILTERED}", reasons)
        ids = _text(columns.get("message_id"), len(batch), "message_id", _SPACE_OR_DEL, reasons)
        _refuse(
            sizes_of(ids) > message_fields.MESSAGE_ID_BYTES_MAX,
            f"message_id: wanted at most {message_fields.MESSAGE_ID_BYTES_MAX} bytes",
            reasons,
        )
        texts = property_texts(columns.get("properties"), len(batch), reasons)
        staged = {"body": body, "keys": keys, "tags": tags, "message_ids": ids, "properties": texts}
        rows = Rows(topics, topic_of, due_ms, staged, None, reasons)
        self._check_sizes(rows)
        rows.route = self._route(columns, first, ids)
        return rows

    # --- columns ---

    def _topics(
        self, columns: dict[str, Any], count: int, reasons: list[tuple[Mask, str]]
    ) -> tuple[list[str], npt.NDArray[np.int32]]:
        if "topic" not in columns:
            return [self._options.topic], np.zeros(count, np.int32)
        coded = compute().dictionary_encode(plain(columns["topic"], "string"))
        codes = numpy_of(coded.indices.fill_null(-1)).astype(np.int32)
        _refuse(codes < 0, "topic: NULL", reasons)
        topics: list[str] = []
        for k, raw in enumerate(coded.dictionary.cast(pyarrow().binary()).to_pylist()):
            topic = raw.decode("utf-8", "replace")
            topics.append(topic)
            try:
                message_fields.check_topic(topic)
            except MessageError as error:
                _refuse(codes == k, str(error), reasons)
        return topics or [""], np.maximum(codes, 0)

    def _body(self, column: Any, reasons: list[tuple[Mask, str]]) -> Any:
        body = plain(column, "large_binary")
        if body.null_count:
            if self._options.null_body == "fail":
                _refuse(numpy_of(body.is_null()), "body: NULL (null_body=empty takes it)", reasons)
            body = body.fill_null(b"")
        most = self._config.message_bytes_max
        _refuse(sizes_of(body) > most, f"body: wanted at most {most} bytes", reasons)
        return body

    def _due(
        self, columns: dict[str, Any], now_ms: int, reasons: list[tuple[Mask, str]]
    ) -> Int64Array:
        name = "deliver_at" if "deliver_at" in columns else "deliver_ms"
        column = columns[name]
        if column.null_count:
            _refuse(numpy_of(column.is_null()), f"{name}: NULL", reasons)
        due_ms = milliseconds_of(column)
        most = now_ms + self._config.delay_ms_max
        _refuse(due_ms > most, f"{name}: wanted at most {most} ms", reasons)
        if (wrong := due_times.is_too_early(due_ms, now_ms)) is not None:
            low = due_times.SANE_MS_MIN
            why = f"wanted 0 (now), or {low} ms (2000-01-01) and more; {due_times.MANY_SECONDS}"
            _refuse(wrong, f"{name}: {why}", reasons)
        if self._options.past == "fail":
            _refuse(due_ms <= now_ms, f"{name}: has passed (past=deliver takes it)", reasons)
        if not self._config.timer_enabled:
            why = "wanted one that has passed, timers are off (timer_enabled)"
            _refuse(due_ms > now_ms, f"{name}: {why}", reasons)
            # 0 means now. A time that has passed here may be in the future on the owner's clock.
            return np.zeros(len(due_ms), np.int64)
        return due_ms

    def _keys(
        self, columns: dict[str, Any], count: int, reasons: list[tuple[Mask, str]]
    ) -> tuple[Any, Any]:
        """Return all keys of each row, separated by spaces, and the first key."""
        if "keys" not in columns:
            key = _text(columns.get("key"), count, "key", _SPACES, reasons)
            return key, key
        pc, arrow = compute(), pyarrow()
        lists = columns["keys"].cast(arrow.large_list(arrow.large_binary()))
        [flat], spans = flat_of(lists, [lists.values])
        text, bad = as_text(flat.fill_null(b""))
        _refuse(rows_with(bad, spans), "keys: not UTF-8", reasons)
        spaced = pc.or_(pc.match_substring_regex(text, _SPACES), pc.equal(text, ""))
        mask = rows_with(numpy_of(spaced) & ~bad, spans)
        _refuse(mask, "keys: wanted each without spaces, not empty, not NULL", reasons)
        keys = joined(spans, text, " ").cast(arrow.large_binary())
        firsts = spans[:-1]
        at = arrow.array(firsts, mask=firsts == spans[1:])
        return keys, text.take(at).fill_null("").cast(arrow.large_binary())

    def _check_sizes(self, rows: Rows) -> None:
        """Check sizes as message_fields.check_sizes does, for all rows at once."""
        names = [topic.encode() for topic in rows.topics]
        lengths = np.array([len(one) for one in names], np.int64)
        rooms = np.array([message_fields.room_bytes(self._record_bytes_max, one) for one in names])
        own = sizes_of(rows.columns["properties"])
        for name in ("tags", "keys"):
            sizes = sizes_of(rows.columns[name])
            own = own + np.where(sizes > 0, sizes + _PAIR_BYTES, 0)
        own = own + np.maximum(sizes_of(rows.columns["message_ids"]) - _MADE_ID_BYTES, 0)
        limit = self._config.properties_bytes_max - message_fields.PROPERTIES_HEADROOM_BYTES
        _refuse(own > limit - lengths[rows.topic_of], "properties: too many bytes", rows.reasons)
        _refuse(
            own + sizes_of(rows.columns["body"]) > rooms[rows.topic_of],
            f"message: does not fit a record of {self._record_bytes_max} bytes",
            rows.reasons,
        )

    def _route(self, columns: dict[str, Any], first_key: Any, ids: Any) -> Any:
        by = self._options.shard_by.lower()
        if by == ROUTE_KEY:
            chosen = first_key
        elif by == ROUTE_ID:
            chosen = ids
        else:
            column = columns[by]
            if pyarrow().types.is_integer(column.type):
                column = column.cast(pyarrow().string())
            chosen = plain(column, "large_binary").fill_null(b"")
        pc = compute()
        return pc.if_else(pc.equal(pc.binary_length(chosen), 0), ids, chosen)


def _refuse(mask: Mask, reason: str, reasons: list[tuple[Mask, str]]) -> None:
    if mask.any():
        reasons.append((mask, reason))


def _text(
    column: Any, count: int, name: str, forbidden: str, reasons: list[tuple[Mask, str]]
) -> Any:
    """Return a text column as bytes; NULL becomes ""."""
    arrow, pc = pyarrow(), compute()
    if column is None:
        return empty_texts(count)
    raw = plain(column, "large_binary").fill_null(b"")
    if is_plain_ascii(raw):
        return raw
    text, bad = as_text(raw)
    _refuse(bad, f"{name}: not UTF-8", reasons)
    what = "spaces" if forbidden != _CONTROL else "control characters"
    mask = numpy_of(pc.match_substring_regex(text, forbidden))
    _refuse(mask, f"{name}: wanted text without {what}", reasons)
    return text.cast(arrow.large_binary())
