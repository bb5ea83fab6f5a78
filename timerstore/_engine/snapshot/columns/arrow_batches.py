"""Tables as pyarrow.RecordBatch. C fills the buffers, and Arrow takes them without a copy.

Invariants:
    1. Every column of a batch has one value for each row, and the type of `schema_of`.
    2. Nothing in a batch points into a window, so a batch stays valid.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.sorted_values import are_in
from timerstore._engine.snapshot.columns import table_scan
from timerstore._engine.snapshot.columns.pending_set import (
    NO_FACTS,
    Facts,
    facts_for,
    pending_records,
)
from timerstore._engine.snapshot.columns.schemas import Column, Kind, chosen
from timerstore._engine.snapshot.columns.table_scan import (
    Bounds,
    Part,
    Records,
    Transaction,
    Wanted,
    transactions,
)
from timerstore._engine.snapshot.log_windows import RowArray
from timerstore._engine.snapshot.position import Snapshot
from timerstore.types.messages import Int64Array

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError("columns need pyarrow: pip install '.[arrow]' in a checkout") from error

_US_MAX = (2**63 - 1) // 1000
_UTC = "UTC"
_KIND_NAMES = (
    "ordinary", "timer", "delete", "delivered", "level", "level_delivered", "unusable",
    "level_unusable",
)  # fmt: skip
_SPANS = {
    "topic": lib.TS_SPAN_TOPIC,
    "msg_id": lib.TS_SPAN_ID,
    "key": lib.TS_SPAN_KEYS,
    "tags": lib.TS_SPAN_TAGS,
    "body": lib.TS_SPAN_BODY,
    "real_topic": lib.TS_SPAN_REAL_TOPIC,
}
_ROLL = 2  # a unit's magic

Mask = npt.NDArray[np.bool_]


def type_of(kind: Kind, *, times_as_long: bool = False) -> Any:
    """Return the Arrow type of a column's kind. They are the types that Spark expects."""
    types = {
        "int": pa.int32(),
        "long": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "map": pa.map_(pa.string(), pa.string()),
        "time": pa.int64() if times_as_long else pa.timestamp("us", tz=_UTC),
    }
    return types[kind]


def schema_of(wanted: Wanted) -> Any:
    """Return the Arrow schema of a scan."""
    return pa.schema(
        [
            pa.field(one.name, type_of(one.kind, times_as_long=wanted.times_as_long))
            for one in chosen(wanted.table, wanted.columns)
        ]
    )


def read_part(part: Part, wanted: Wanted, facts: Facts = NO_FACTS) -> Iterator[Any]:
    """Read one part of a table as record batches. `facts`: `facts_for` of the store."""
    make = _BatchMaker(part, wanted, facts.cancelled)
    if wanted.table in ("messages", "deliveries"):
        yield from map(make.of_records, table_scan.records(part, wanted))
    elif wanted.table == "timers":
        assert facts.pending is not None, "facts_for finds it for this table"
        yield from map(make.of_records, pending_records(part, wanted, facts.pending))
    elif wanted.table == "timer_units":
        yield from map(make.of_units, table_scan.units(part, wanted))
    elif wanted.table == "slots":
        yield from map(make.of_slots, table_scan.slots(part, wanted))
    else:
        yield from make.of_transactions(transactions(part, wanted.bounds), wanted.batch_rows)


def read(
    store: Snapshot,
    table: str,
    *,
    columns: tuple[str, ...] | None,
    bounds: Bounds | None,
    is_pinned: bool,
    **how: Any,
) -> Iterator[Any]:
    """Read a table of one store as record batches. Another process may have the store open.

    `is_pinned`: the snapshot must stay as it is. Otherwise a newer one may be read. `how`: fields
    of Wanted (`times_as_long`, `verify_crc`, `on_corrupt`, `batch_rows`, `batch_bytes`).
    """
    names = tuple(one.name for one in chosen(table, columns))
    wanted = Wanted(table, names, bounds or Bounds(), **how)
    return _batches(store, wanted, is_pinned=is_pinned)


def _batches(store: Snapshot, wanted: Wanted, *, is_pinned: bool) -> Iterator[Any]:
    store, facts = facts_for(store, wanted, is_pinned=is_pinned)
    yield from read_part(Part.whole(store, wanted.table), wanted, facts)


# --- columns --------------------------------------------------------------------------------------


def _fixed(kind: Any, values: Any, valid: Mask | None = None) -> Any:
    """Return an array of numbers, with None where `valid` is false."""
    mask = None
    if valid is not None and not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(values), [mask, pa.py_buffer(np.ascontiguousarray(values))]
    )


class _BatchMaker:
    """Makes the batches of one part."""

    def __init__(self, part: Part, wanted: Wanted, cancelled: Int64Array | None) -> None:
        self._part = part
        self._table = wanted.table
        self._columns = chosen(wanted.table, wanted.columns)
        self._long = wanted.times_as_long
        self._schema = schema_of(wanted)
        self._cancelled = np.empty(0, np.int64) if cancelled is None else cancelled
        self._kinds = pa.array(_KIND_NAMES)

    def _batch(self, count: int, make: Callable[[Column], Any]) -> Any:
        arrays = [
            _fixed(pa.int32(), np.full(count, self._part.shard, np.int32))
            if column.name == "shard"
            else make(column)
            for column in self._columns
        ]
        if not arrays:  # without columns a batch has only a number of rows
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, type=pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _time(self, ms: Any, valid: Mask | None = None) -> Any:
        ms = np.ascontiguousarray(ms, np.int64)
        if self._long:
            return _fixed(pa.int64(), ms, valid)
        us = np.clip(ms, -_US_MAX, _US_MAX) * 1000  # the range of a timestamp in us
        return _fixed(pa.timestamp("us", tz=_UTC), us, valid)

    # --- records ---

    def of_records(self, found: Records) -> Any:
        rows = found.rows
        makers = {"deliveries": self._delivery, "timers": self._pending}
        make = makers.get(self._table, self._message)
        return self._batch(len(rows), lambda column: make(column, found, rows))

    def _message(self, column: Column, found: Records, rows: RowArray) -> Any:
        name = column.name
        if name in _SPANS:
            return self._text(found, _SPANS[name], binary=column.kind == "binary")
        if name == "properties":
            return self._pairs(found)
        if name == "stored_at":
            return self._time(rows["store_ms"])
        if name == "deliver_at":
            return self._time(rows["due_ms"], rows["due_ms"] != 0)
        if name == "kind":
            return self._kinds.take(_fixed(pa.int32(), rows["kind"]))
        if name == "timer_id":
            return _fixed(pa.int64(), rows["timer_id"], rows["timer_id"] >= 0)
        if name == "body_len":
            return _fixed(pa.int32(), rows["sizes"][:, lib.TS_SPAN_BODY])
        source = {"flags": "sys_flag", "rolls": "roll_times"}.get(name, name)
        return _fixed(type_of(column.kind), rows[source])

    def _delivery(self, column: Column, found: Records, rows: RowArray) -> Any:
        known = rows["due_ms"] != 0
        if column.name == "delivered_at":
            return self._time(rows["store_ms"])
        if column.name == "lateness_ms":
            return _fixed(pa.int64(), rows["store_ms"] - rows["due_ms"], known)
        if column.name == "level":
            of_level = rows["kind"] == lib.TS_KIND_LEVEL_DELIVERED
            return _fixed(pa.int32(), rows["delay_level"], of_level)
        return self._message(column, found, rows)

    def _pending(self, column: Column, found: Records, rows: RowArray) -> Any:
        if column.name == "topic":
            return self._text(found, lib.TS_SPAN_REAL_TOPIC, binary=False)
        if column.name == "deliver_at":
            return self._time(rows["due_ms"])
        if column.name == "level":
            return _fixed(pa.int32(), rows["delay_level"], rows["kind"] == lib.TS_KIND_LEVEL)
        return self._message(column, found, rows)

    def _text(self, found: Records, span: int, *, binary: bool) -> Any:
        count = len(found.rows)
        offsets = np.empty(count + 1, np.int32)
        data = np.empty(int(found.sums[span]), np.uint8)
        validity = np.empty((count + 7) // 8, np.uint8)
        lib.ts_table_text(
            found.window,
            ffi.from_buffer("ts_table_row[]", found.rows),
            count,
            span,
            ffi.from_buffer("int32_t[]", offsets),
            ffi.from_buffer("uint8_t[]", data),
            ffi.from_buffer("uint8_t[]", validity),
        )
        parts = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary() if binary else pa.string(), count, parts)

    def _pairs(self, found: Records) -> Any:
        count = len(found.rows)
        pairs, names_size, values_size = found.sums[lib.TS_SPAN_COUNT :].tolist()
        offsets = np.empty(count + 1, np.int32)
        name_offsets, value_offsets = np.empty((2, pairs + 1), np.int32)
        names, values = np.empty(names_size, np.uint8), np.empty(values_size, np.uint8)
        lib.ts_table_pairs(
            found.window,
            ffi.from_buffer("ts_table_row[]", found.rows),
            count,
            found.filter,
            ffi.from_buffer("int32_t[]", offsets),
            ffi.from_buffer("int32_t[]", name_offsets),
            ffi.from_buffer("uint8_t[]", names),
            ffi.from_buffer("int32_t[]", value_offsets),
            ffi.from_buffer("uint8_t[]", values),
        )
        texts = [
            pa.Array.from_buffers(pa.string(), pairs, [None, pa.py_buffer(at), pa.py_buffer(text)])
            for at, text in ((name_offsets, names), (value_offsets, values))
        ]
        return pa.MapArray.from_arrays(_fixed(pa.int32(), offsets), *texts)

    # --- timer units, slots ---

    def of_units(self, rows: RowArray) -> Any:
        return self._batch(len(rows), lambda column: self._unit(column, rows))

    def _unit(self, column: Column, rows: RowArray) -> Any:
        name = column.name
        if name == "deliver_at":
            return self._time(rows["slot_ms"] + self._part.store.precision_ms)
        if name == "enqueued_at":
            return self._time(rows["write_ms"])
        if name == "rolled":
            return pa.array((rows["magic"] & _ROLL) != 0)
        if name == "cancelled":
            return pa.array(are_in(rows["log_offset"], self._cancelled))
        return _fixed(type_of(column.kind), rows["magic" if name == "flags" else name])

    def of_slots(self, rows: RowArray) -> Any:
        return self._batch(len(rows), lambda column: self._slot(column, rows))

    def _slot(self, column: Column, rows: RowArray) -> Any:
        if column.name == "slot_at":
            return self._time(rows["time"] * self._part.store.precision_ms)
        if column.name == "slot":
            return _fixed(pa.int32(), rows["slot"])
        return _fixed(pa.int64(), rows[column.name].astype(np.int64))

    # --- transactions ---

    def of_transactions(self, found: list[Transaction], step: int) -> Iterator[Any]:
        for begin in range(0, len(found), step):
            some = found[begin : begin + step]
            yield self._batch(len(some), partial(self._transaction, some=some))

    def _transaction(self, column: Column, some: list[Transaction]) -> Any:
        if column.name != "applied_at":
            kind = type_of(column.kind)
            return pa.array([getattr(one, column.name) for one in some], type=kind)
        known = np.array([one.applied_ms is not None for one in some], bool)
        return self._time([one.applied_ms or 0 for one in some], known)
