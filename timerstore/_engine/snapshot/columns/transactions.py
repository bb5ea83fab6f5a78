"""`transactions`: the complete ingested versions of each source, from the headers of their chunks.

The queue of the ledger's topic shows where the headers are, so only they are read. If the queue is
missing or incomplete, the whole log is read.

Invariants:
    1. A version is a row once its last chunk lies below the limit. Then its group is complete.
    2. A field is None if the version is known only from a source's state, which does not have it.
On-disk format: format/ledger_json.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.ledger_json import ChunkHeader, SourceState, read
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.snapshot.columns.queue_cover import is_covered
from timerstore._engine.snapshot.columns.record_starts import QueueUnits
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, Wanted, records
from timerstore._engine.snapshot.file_limits import Snapshot
from timerstore.errors import CorruptError

_LOOK_BYTES = 1 << 14


class Transaction(NamedTuple):
    """One complete version of one source."""

    source: str
    version: int
    rows: int | None
    bytes: int | None
    applied_ms: int | None


class _Open(NamedTuple):
    chunks: int = 0
    bytes: int | None = 0


def transactions(part: Part, bounds: Bounds) -> list[Transaction]:
    """Return the complete versions, in the order in which they were completed."""
    begun: dict[tuple[str, int], _Open] = {}
    done: dict[tuple[str, int], Transaction] = {}
    ranges: dict[str, tuple[tuple[int, int], ...]] = {}
    for record, store_ms in _ledger(part):
        if isinstance(record, SourceState):
            _take_state(record, begun, done)
            ranges[record.source] = record.versions
            continue
        key = (record.source, record.version)
        before = begun.get(key, _Open())
        if key in done or record.chunk < before.chunks:
            continue
        size = None if before.bytes is None else before.bytes + record.bytes
        begun[key] = _Open(record.chunk + 1, size)
        if record.last:
            done[key] = Transaction(*key, record.rows_so_far, size, store_ms)
    for source, spans in ranges.items():
        for begin, end in spans:
            for version in range(begin, end):
                done.setdefault((source, version), Transaction(source, version, None, None, None))
    return [one for one in done.values() if _is_within(one, bounds)]


def _take_state(
    state: SourceState,
    begun: dict[tuple[str, int], _Open],
    done: dict[tuple[str, int], Transaction],
) -> None:
    for version, row_count, _ in state.done:
        key = (state.source, version)
        done.setdefault(key, Transaction(*key, row_count, None, None))
    for one in state.open:
        begun.setdefault((state.source, one.version), _Open(one.chunk_count, None))


def _is_within(one: Transaction, bounds: Bounds) -> bool:
    low, high = bounds.stored_from_ms, bounds.stored_to_ms
    if one.applied_ms is None:
        return low is None and high is None
    return (low is None or one.applied_ms >= low) and (high is None or one.applied_ms < high)


def _ledger(part: Part) -> Iterator[tuple[ChunkHeader | SourceState, int]]:
    """Read every record of the ledger below the limit, with its store time."""
    store = part.store
    if not is_covered(store, (INGEST_TOPIC,)):
        yield from _records(part, Wanted("messages", ("body",), Bounds(topics=(INGEST_TOPIC,))))
        return
    queue = QueueUnits(store.tree.queue(INGEST_TOPIC, 0), store.queue_segment_bytes)
    wanted = Wanted("messages", ("body",), Bounds(topics=(INGEST_TOPIC,)), batch_rows=1)
    for number in range(queue.begin, queue.end):
        at, size = queue.at(number)
        if at + size > part.end:
            return
        if at >= part.begin:
            yield _record(replace(part, begin=at, end=at + size), wanted, store)


def _records(
    part: Part, wanted: Wanted, window_bytes: int | None = None
) -> Iterator[tuple[ChunkHeader | SourceState, int]]:
    for found in records(part, wanted, window_bytes=window_bytes):
        for row in found.rows:
            at, size = row["at"][lib.TS_SPAN_BODY], row["sizes"][lib.TS_SPAN_BODY]
            body = bytes(ffi.buffer(found.window.bytes + int(at), int(size)))
            yield read(body), int(row["store_ms"])


def _record(part: Part, wanted: Wanted, store: Snapshot) -> tuple[ChunkHeader | SourceState, int]:
    for found in _records(part, wanted, _LOOK_BYTES):
        return found
    raise CorruptError(
        "a unit of the ledger's queue points at another topic's record",
        where=f"{store.tree.commit_log} offset {part.begin}",
        wanted=INGEST_TOPIC,
    )
