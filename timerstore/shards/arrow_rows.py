"""Rows of any Arrow batch, checked and turned into the columns that are staged.

Data:     columns by name: topic string (or the option), body binary or string, deliver_at timestamp
          with a time zone or long ms (or deliver_ms), key string or binary, or keys list of
          strings, tags string, message_id string or binary, properties map of strings; and the one
          that `shard_by` names.
Threads:  any; pure.
Holds:    (1) a row that passes is taken by every shard, now and later: the checks are those of
          `ingest`, with the limits of cluster.json; (2) no row is looked at from Python.
Fails:    ConfigError on columns; what is wrong with a row is in `Rows.reasons`.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import due_times, message_fields
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, MessageError
from timerstore.messages import Int64Array
from timerstore.shards.arrow_import import compute, pyarrow
from timerstore.shards.nested import flat_of, rows_with
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
_HEADER_BYTES = 4096 + 64  # that `ingest` keeps free of a group, beside one record
_CONTROL = r"[\x00-\x1f]"
_UNFILTERED = r"\|\||^ | $|^\*$"
# What str.split() splits at, for a key holds none of it.
_SPACES = (
    r"[\x00-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
)
_SPACE_OR_DEL = r"[\x00-\x20\x7f]"
_PAIR_BYTES = 6  # TAGS or KEYS, and the two separators
_MADE_ID_BYTES = 32  # that every record has room for

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Rows:
    """A batch, row by row: what is staged of it, and what is wrong with it."""

    topics: list[str]
    topic_of: npt.NDArray[np.int32]  # index into topics
    properties: list[str]  # texts as on disk
    properties_of: npt.NDArray[np.int32]
    due_ms: Int64Array
    columns: dict[str, Any]  # body, keys, tags, message_ids: large_binary without nulls
    route: Any  # large_binary without nulls: what decides the shard; empty: nothing does
    reasons: list[tuple[Mask, str]]

    def __len__(self) -> int:
        return len(self.due_ms)

    @property
    def invalid(self) -> Mask:
        """Which rows no store would take."""
        mask = np.zeros(len(self), bool)
        for one, _ in self.reasons:
            mask |= one
        return mask

    def reason(self, row: int) -> str:
        """All that is wrong with a row."""
        return "; ".join(text for mask, text in self.reasons if mask[row])


def check_columns(schema: Any, options: WriteOptions) -> None:
    """See that the columns are those that rows have; `schema` is pyarrow's."""
    known = {one.name: one.type for one in schema}
    routed_by = options.shard_by if options.shard_by not in (ROUTE_KEY, ROUTE_ID) else ""
    problems = [f"column {name}: given twice" for name in known if schema.names.count(name) > 1]
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
    if options.shard_by == ROUTE_ID and "message_id" not in known:
        problems.append("shard_by: msg_id needs a column message_id")
    return problems


def _is_text(kind: Any, types: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: Any, types: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_routable(kind: Any, types: Any) -> bool:
    return _is_text(kind, types) or _is_binary(kind, types) or bool(types.is_integer(kind))


def _wrong_type(name: str, kind: Any, types: Any) -> str:
    """What a column must be, "" where it is."""
    if name == "body":
        return "" if _is_binary(kind, types) or _is_text(kind, types) else "binary or string"
    if name == "deliver_ms":
        return "" if types.is_int64(kind) else "long (ms since 1970)"
    if name == "deliver_at":
        is_moment = types.is_timestamp(kind) and kind.tz is not None
        return "" if is_moment or types.is_int64(kind) else "timestamp (not timestamp_ntz), or long"
    if name == "keys":
        is_list = types.is_list(kind) or types.is_large_list(kind)
        return "" if is_list and _is_text(kind.value_type, types) else "array<string>"
    if name == "properties":
        is_map = types.is_map(kind)
        is_text = is_map and _is_text(kind.key_type, types) and _is_text(kind.item_type, types)
        return "" if is_text else "map<string,string>"
    if name in ("key", "message_id") and _is_binary(kind, types):
        return ""  # as the tables that are read have them
    if name in COLUMNS:
        return "" if _is_text(kind, types) else "string"
    return ""


class Reader:
    """Turns batches of one schema into Rows."""

    def __init__(self, config: StoreConfig, options: WriteOptions) -> None:
        self._config = config
        self._options = options
        self._record_bytes_max = config.record_bytes_max - _HEADER_BYTES

    def read(self, batch: Any, now_ms: int) -> Rows:
        """Check a batch; `now_ms`: what has passed and how far ahead is too far."""
        columns = {one: batch.column(k) for k, one in enumerate(batch.schema.names)}
        reasons: list[tuple[Mask, str]] = []
        topics, topic_of = self._topics(columns, len(batch), reasons)
        body = self._body(columns["body"], reasons)
        due_ms = self._due(columns, now_ms, reasons)
        keys, first = self._keys(columns, len(batch), reasons)
        tags = _text(columns.get("tags"), len(batch), "tags", _CONTROL, reasons)
        unnamed = compute().match_substring_regex(tags.cast(pyarrow().large_string()), _UNFILTERED)
        _refuse(_numpy(unnamed), f"tags: {message_fields.UNFILTERED}", reasons)
        ids = _text(columns.get("message_id"), len(batch), "message_id", _SPACE_OR_DEL, reasons)
        _refuse(
            _sizes(ids) > message_fields.MESSAGE_ID_BYTES_MAX,
            f"message_id: wanted at most {message_fields.MESSAGE_ID_BYTES_MAX} bytes",
            reasons,
        )
        texts, text_of = self._properties(columns.get("properties"), len(batch), reasons)
        staged = {"body": body, "keys": keys, "tags": tags, "message_ids": ids}
        rows = Rows(topics, topic_of, texts, text_of, due_ms, staged, None, reasons)
        self._check_sizes(rows)
        rows.route = self._route(columns, first, ids)
        return rows

    # --- columns ---

    def _topics(
        self, columns: dict[str, Any], count: int, reasons: list[tuple[Mask, str]]
    ) -> tuple[list[str], npt.NDArray[np.int32]]:
        if "topic" not in columns:
            return [self._options.topic], np.zeros(count, np.int32)
        coded = compute().dictionary_encode(_plain(columns["topic"], "string"))
        codes = _numpy(coded.indices.fill_null(-1)).astype(np.int32)
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
        body = _plain(column, "large_binary")
        if body.null_count:
            if self._options.null_body == "fail":
                _refuse(_numpy(body.is_null()), "body: NULL (null_body=empty takes it)", reasons)
            body = body.fill_null(b"")
        most = self._config.message_bytes_max
        _refuse(_sizes(body) > most, f"body: wanted at most {most} bytes", reasons)
        return body

    def _due(
        self, columns: dict[str, Any], now_ms: int, reasons: list[tuple[Mask, str]]
    ) -> Int64Array:
        name = "deliver_at" if "deliver_at" in columns else "deliver_ms"
        column = columns[name]
        if column.null_count:
            _refuse(_numpy(column.is_null()), f"{name}: NULL", reasons)
        due_ms = _milliseconds(column)
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
            # What has passed here may be to come by the clock of whoever takes it.
            return np.zeros(len(due_ms), np.int64)
        return due_ms

    def _keys(
        self, columns: dict[str, Any], count: int, reasons: list[tuple[Mask, str]]
    ) -> tuple[Any, Any]:
        """All keys of each row with spaces between, and the first one."""
        if "keys" not in columns:
            key = _text(columns.get("key"), count, "key", _SPACES, reasons)
            return key, key
        pc, arrow = compute(), pyarrow()
        lists = columns["keys"].cast(arrow.large_list(arrow.large_binary()))
        [flat], spans = flat_of(lists, [lists.values])
        text, bad = _as_text(flat.fill_null(b""))
        _refuse(rows_with(bad, spans), "keys: not UTF-8", reasons)
        spaced = pc.or_(pc.match_substring_regex(text, _SPACES), pc.equal(text, ""))
        mask = rows_with(_numpy(spaced) & ~bad, spans)
        _refuse(mask, "keys: wanted each without spaces, not empty, not NULL", reasons)
        keys = _joined(spans, text, " ").cast(arrow.large_binary())
        firsts = spans[:-1]
        at = arrow.array(firsts, mask=firsts == spans[1:])
        return keys, text.take(at).fill_null("").cast(arrow.large_binary())

    def _properties(
        self, column: Any, count: int, reasons: list[tuple[Mask, str]]
    ) -> tuple[list[str], npt.NDArray[np.int32]]:
        """Give the texts that there are, and which of them each row has."""
        if column is None or column.null_count == count:
            return [""], np.zeros(count, np.int32)
        pc, arrow = compute(), pyarrow()
        # Not `column.keys`, `column.items`: of entries that are a part of others those are the
        # others' (pyarrow 26).
        parts, spans = flat_of(column, column.values.flatten())
        wrong, not_text = np.zeros(int(spans[-1]), bool), np.zeros(int(spans[-1]), bool)
        texts = []
        for part in parts:
            text, bad = _as_text(_plain(part, "large_binary").fill_null(b""))
            empty = pc.or_(pc.match_substring_regex(text, _CONTROL), pc.equal(text, ""))
            wrong |= _numpy(empty) & ~bad
            not_text |= bad
            texts.append(text)
        is_bad, has_wrong = rows_with(not_text, spans), rows_with(wrong, spans)
        _refuse(is_bad, "properties: not UTF-8", reasons)
        _refuse(has_wrong, "properties: an empty, NULL or control character name or value", reasons)
        separator = arrow.scalar("\x01", arrow.large_string())
        joined = _joined(spans, pc.binary_join_element_wise(*texts, separator), "\x02")
        coded = pc.dictionary_encode(joined)
        codes = _numpy(coded.indices).astype(np.int32)
        known = coded.dictionary.to_pylist()
        for k, one in enumerate(known):
            try:
                known[k] = message_fields.encode_properties(None, (), pairs_of(one)).decode()
            except MessageError as error:
                _refuse((codes == k) & ~has_wrong & ~is_bad, str(error), reasons)
                known[k] = ""
        return known, codes

    def _check_sizes(self, rows: Rows) -> None:
        """As arguments.check_sizes, for all rows at once."""
        names = [topic.encode() for topic in rows.topics]
        lengths = np.array([len(one) for one in names], np.int64)
        rooms = np.array([message_fields.room_bytes(self._record_bytes_max, one) for one in names])
        texts = np.array([len(one.encode()) for one in rows.properties], np.int64)
        own = texts[rows.properties_of]
        for name in ("tags", "keys"):
            sizes = _sizes(rows.columns[name])
            own = own + np.where(sizes > 0, sizes + _PAIR_BYTES, 0)
        own = own + np.maximum(_sizes(rows.columns["message_ids"]) - _MADE_ID_BYTES, 0)
        limit = self._config.properties_bytes_max - message_fields.PROPERTIES_HEADROOM_BYTES
        _refuse(own > limit - lengths[rows.topic_of], "properties: too many bytes", rows.reasons)
        _refuse(
            own + _sizes(rows.columns["body"]) > rooms[rows.topic_of],
            f"message: does not fit a record of {self._record_bytes_max} bytes",
            rows.reasons,
        )

    def _route(self, columns: dict[str, Any], first_key: Any, ids: Any) -> Any:
        by = self._options.shard_by
        if by == ROUTE_KEY:
            chosen = first_key
        elif by == ROUTE_ID:
            chosen = ids
        else:
            column = columns[by]
            if pyarrow().types.is_integer(column.type):
                column = column.cast(pyarrow().string())
            chosen = _plain(column, "large_binary").fill_null(b"")
        pc = compute()
        return pc.if_else(pc.equal(pc.binary_length(chosen), 0), ids, chosen)


def pairs_of(text: str) -> dict[str, str]:
    """Read a properties text that was put together here."""
    pairs = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name:
            pairs[name] = value
    return pairs


def _refuse(mask: Mask, reason: str, reasons: list[tuple[Mask, str]]) -> None:
    if mask.any():
        reasons.append((mask, reason))


def _plain(column: Any, kind: str) -> Any:
    """The column as one of the plain types; texts become their bytes."""
    arrow = pyarrow()
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(getattr(arrow, kind)())


def _numpy(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _sizes(column: Any) -> Int64Array:
    sizes: Int64Array = np.diff(offsets_of(column))
    return sizes


def offsets_of(column: Any) -> Int64Array:
    """Give the offsets of a large_binary column, count + 1 of them, into its third buffer."""
    if not len(column):
        return np.zeros(1, np.int64)
    raw: Int64Array = np.frombuffer(column.buffers()[1], np.int64)
    spans: Int64Array = raw[column.offset : column.offset + len(column) + 1]
    return spans


def bytes_of(column: Any) -> Any:
    """Give what the offsets of a large_binary column point into."""
    data = column.buffers()[2] if len(column) else None
    return memoryview(data) if data is not None else b""


def _milliseconds(column: Any) -> Int64Array:
    """Epoch ms, rounded up: never early."""
    arrow = pyarrow()
    unit = getattr(column.type, "unit", "ms")
    whole: Int64Array = _numpy(column.cast(arrow.int64()).fill_null(0)).astype(np.int64)
    if unit == "s":
        bounded = np.clip(whole, -(2**62) // 1000, 2**62 // 1000)
        return np.asarray(bounded * 1000, np.int64)
    if unit == "ms":
        return whole
    # Not -(-whole // parts): the least int64 has no counterpart above zero.
    parts = 1000 if unit == "us" else 1_000_000
    return np.asarray(whole // parts + (whole % parts != 0), np.int64)


def _text(
    column: Any, count: int, name: str, forbidden: str, reasons: list[tuple[Mask, str]]
) -> Any:
    """A text column as bytes; NULL and "" are none."""
    arrow, pc = pyarrow(), compute()
    if column is None:
        return arrow.array([b""], arrow.large_binary()).take(arrow.array(np.zeros(count, np.int64)))
    raw = _plain(column, "large_binary").fill_null(b"")
    if _is_plain_ascii(raw):
        return raw
    text, bad = _as_text(raw)
    _refuse(bad, f"{name}: not UTF-8", reasons)
    what = "spaces" if forbidden != _CONTROL else "control characters"
    mask = _numpy(pc.match_substring_regex(text, forbidden))
    _refuse(mask, f"{name}: wanted text without {what}", reasons)
    return text.cast(arrow.large_binary())


def _is_plain_ascii(raw: Any) -> bool:
    """Whether all bytes are visible ASCII: then there is nothing that any rule forbids."""
    spans = offsets_of(raw)
    used = np.frombuffer(bytes_of(raw), np.uint8)[spans[0] : spans[-1]]
    return not len(used) or (int(used.min()) > 0x20 and int(used.max()) < 0x7F)


def _as_text(raw: Any) -> tuple[Any, Mask]:
    """A large_binary column without nulls as text, and what of it is none: that is "" there."""
    bad = _not_utf8(raw)
    if bad.any():
        raw = compute().if_else(pyarrow().array(bad), b"", raw)
    return raw.cast(pyarrow().large_string()), bad


def _joined(spans: Int64Array, text: Any, separator: str) -> Any:
    """A row's texts as one; of a row without any ""."""
    arrow = pyarrow()
    lists = arrow.LargeListArray.from_arrays(arrow.array(spans), text)
    return compute().binary_join(lists, arrow.scalar(separator, arrow.large_string()))


def _not_utf8(raw: Any) -> Mask:
    """Which rows are no UTF-8: a producer may have cast any bytes to a string."""
    mask = np.zeros(len(raw), bool)
    arrow = pyarrow()
    try:
        raw.cast(arrow.large_string()).validate(full=True)
    except arrow.ArrowInvalid:
        for k, one in enumerate(raw.to_pylist()):  # the rare case, row by row
            mask[k] = not _is_utf8(one)
    return mask


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
