"""Encode the properties of rows: one text for each row, as records have it.

Thread safety: any thread; the functions have no side effects.
Invariants:
    1. The text of a row that passes is that of `message_fields.encode_properties`.
    2. No row is handled one by one in Python.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import message_fields
from timerstore.errors import MessageError
from timerstore.shards.arrow_arrays import Mask, as_text, joined, numpy_of, plain
from timerstore.shards.arrow_import import compute, pyarrow
from timerstore.shards.nested import flat_of, rows_with, spans_of_kept
from timerstore.types.messages import Int64Array

_CONTROL = r"[\x00-\x1f]"
_RESERVED = sorted(message_fields.DROPPED_NAMES | message_fields.RESERVED_NAMES.keys())


def are_reserved(names: Any) -> Any:
    """Return, as booleans, which of these names a message cannot have."""
    pc, arrow = compute(), pyarrow()
    known = pc.is_in(names, value_set=arrow.array(_RESERVED, names.type))
    return pc.or_(known, pc.starts_with(names, message_fields.RESERVED_PREFIX))


def empty_texts(count: int) -> Any:
    """Return a large_binary column of `count` empty texts."""
    arrow = pyarrow()
    return arrow.array([b""], arrow.large_binary()).take(arrow.array(np.zeros(count, np.int64)))


def property_texts(column: Any, count: int, reasons: list[tuple[Mask, str]]) -> Any:
    """Return the encoded properties of each row, large_binary without nulls.

    column: a map of texts, or None for rows without properties.
    reasons: receives the problems, each with its rows. The texts of these rows are undefined.
    """
    if column is None or column.null_count == count:
        return empty_texts(count)
    pc, arrow = compute(), pyarrow()
    # Not `column.keys` and `column.items`: for a slice of a column, they return the entries of
    # the whole column (pyarrow 26).
    parts, spans = flat_of(column, column.values.flatten())
    wrong, not_text = np.zeros(int(spans[-1]), bool), np.zeros(int(spans[-1]), bool)
    texts = []
    for part in parts:
        text, bad = as_text(plain(part, "large_binary").fill_null(b""))
        empty = pc.or_(pc.match_substring_regex(text, _CONTROL), pc.equal(text, ""))
        wrong |= numpy_of(empty) & ~bad
        not_text |= bad
        texts.append(text)
    names, values = texts
    has_bad, has_wrong = rows_with(not_text, spans), rows_with(wrong, spans)
    if has_bad.any():
        reasons.append((has_bad, "properties: not UTF-8"))
    if has_wrong.any():
        why = "properties: an empty, NULL or control character name or value"
        reasons.append((has_wrong, why))
    coded = pc.dictionary_encode(names)
    codes = numpy_of(coded.indices).astype(np.int64)
    is_kept = np.ones(len(codes), bool)
    for code, error in _reserved(coded.dictionary):
        if error is None:
            is_kept &= codes != code
            continue
        rows = rows_with(codes == code, spans) & ~has_wrong & ~has_bad
        if rows.any():
            reasons.append((rows, error))
    value_at = _last_values(codes, spans, len(coded.dictionary), is_kept)
    if value_at is not None:
        values = values.take(arrow.array(value_at))
    nothing, name_end, value_end = (
        arrow.scalar(one, arrow.large_string()) for one in ("", "\x01", "\x02")
    )
    pairs = pc.binary_join_element_wise(names, values, name_end)
    pairs = pc.binary_join_element_wise(pairs, nothing, value_end)
    if not is_kept.all():
        pairs = pairs.filter(arrow.array(is_kept))
        spans = spans_of_kept(spans, is_kept)
    return joined(spans, pairs, "").cast(arrow.large_binary())


def _reserved(names: Any) -> list[tuple[int, str | None]]:
    """Return the names that a message cannot have: the place of each, and the error.

    The error is None if the property is dropped without an error.
    """
    problems: list[tuple[int, str | None]] = []
    for code in np.flatnonzero(numpy_of(are_reserved(names))).tolist():
        try:
            message_fields.encode_properties(None, (), {names[code].as_py(): "x"})
            problems.append((code, None))
        except MessageError as error:
            problems.append((code, str(error)))
    return problems


def _last_values(
    codes: Int64Array, spans: Int64Array, name_count: int, is_kept: npt.NDArray[np.bool_]
) -> Int64Array | None:
    """Let the last value of a name that a row has twice replace the first, as a dict does.

    Returns the place of each entry's value; None if no row has a name twice. Clears `is_kept` for
    the later entries.
    """
    row_of = np.repeat(np.arange(len(spans) - 1), np.diff(spans))
    both = row_of * max(name_count, 1) + codes
    order = np.argsort(both, kind="stable")
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.diff(both[order]) != 0
    if is_first.all():
        return None
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(order)) - 1
    value_at = np.arange(len(codes))
    value_at[order[starts]] = order[ends]
    is_kept[order[~is_first]] = False
    return value_at
