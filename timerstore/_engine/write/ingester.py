"""Append the rows of a source's version to the log in chunks, each with a header.

Thread safety: any thread; one thread at a time for a source.
Invariants:
    1. A chunk's rows and its header are one atomic group of the log.
    2. A version continues after the rows that are stored, however they were split into batches.
    3. A complete version takes no more rows.
    4. A receipt is durable when it is returned.
    5. Before a file with ledger records is removed, a statement of each source is appended.
Raises: MessageError on invalid rows, or on rows that differ from those that are stored. After
    FullError or FlowControlError the stored chunks stay, and the same call continues after them.
See also: docs/exactly-once.md; docs/decisions/0008-deduplication-and-ingest.md;
    docs/decisions/0012-snapshots-and-retention.md.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base import argument_types, due_times, message_fields
from timerstore._engine.base.column_batch import BatchPart, ColumnBatch
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import queue_unit
from timerstore._engine.format.ledger_json import ChunkHeader, write_chunk, write_state
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.routes import Route
from timerstore._engine.write.append import Appender
from timerstore._engine.write.checked_batch import (
    Column,
    check_ids,
    check_tags,
    property_column,
    string_column,
)
from timerstore._engine.write.ledger import NOTHING, Known, Ledger, LedgerSideFile
from timerstore._engine.write.row_batch import (
    IngestedVersions,
    IngestReceipt,
    RowBatch,
    StagedBatch,
)
from timerstore.errors import MessageError, kind_of, plain, quoted
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Int64Array

# --- row validation ---
# Check a batch of rows before any row is stored.
#
# Invariants:
#     1. A row that passes fits its record, and so does every copy that a delivery appends.
#     2. Python code does not handle single rows.
# Raises: MessageError that names the column, the row, the expected and the found value.


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
    if problems or not isinstance(source, str) or number is None:
        raise MessageError(problems)
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
    bodies, offsets, _ = message_fields.gather_bodies(
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
        rows.with_texts("tags", *tags)
        own += _pair_bytes(tags)
    if (keys := string_column("keys", batch.keys, batch.key_offsets, count)) is not None:
        rows.with_texts("keys", *keys)
        own += _pair_bytes(keys)
    ids = string_column("message_ids", batch.message_ids, batch.message_id_offsets, count)
    if ids is not None:
        check_ids(ids)
        rows.with_texts("ids", *ids)
        own += np.maximum(np.diff(ids[1]) - _MADE_ID_BYTES, 0)
    if isinstance(batch, StagedBatch):
        texts = property_column(batch.property_texts, batch.property_offsets, count)
        if texts is not None:
            rows.with_texts("extra", *texts)
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


# --- ingester ---


_CHUNK_BYTES = 1 << 19
"""Bytes of records in one chunk: one critical section of about a millisecond. A single message may
need a larger chunk, up to the largest group (`group_bytes_max`)."""
_ALL = 1 << 62
_CHUNK_ROWS = 8192
_HEADER_BYTES = 4096  # of the header's record, at most


class Ingester(NotCopyable):
    """Ingests rows into one store."""

    def __init__(
        self, core: Core, dispatch: Dispatch, side_file: LedgerSideFile, appender: Appender
    ) -> None:
        self._clock = core.clock
        self._appender = appender
        self._config = core.config
        self._log = core.log
        self._record_bytes_max = min(
            self._config.record_bytes_max, self._log.group_bytes_max - _HEADER_BYTES
        )
        self._route: Route | None = core.routes.get(INGEST_TOPIC, 0)
        self.ledger = Ledger()
        self._cache = side_file
        self._opened_offset = self._cache.load(self.ledger)  # end of the ledger queue at opening
        self._doubted: set[str] = set()  # sources whose last header may be missing in the ledger
        self._dispatch = dispatch
        self._routes = core.routes
        self._stated_at = -1  # log offset where the last statements of all sources begin

    def _resolve(self, source: str) -> None:
        """After an append that an exception interrupted (Ctrl-C), read its result from the log."""
        if source in self._doubted:
            self._log.sync_through(self._log.end)
            durable = self._log.durable
            self._dispatch.through(durable)
            self._cache.read(self.ledger, self._opened_offset, durable)
            self._doubted.discard(source)

    def resolve_all(self) -> bool:
        """Enter every header of the log in the ledger.

        Returns False if a running ingest may have a header that is not in the ledger.
        """
        for source in list(self._doubted):
            turn = self.ledger.turn(source)
            if not turn.acquire(blocking=False):
                return False
            try:
                self._resolve(source)
            finally:
                turn.release()
        return True

    def ingested(self, source: str) -> IngestedVersions:
        """Return the complete versions of a source."""
        source, _ = check_name(source, 0)
        return self.ledger.ingested(source, self._log.durable)

    def ingest(self, source: str, version: int, batches: Iterable[Any]) -> IngestReceipt:
        """Ingest the rows of a version; see TimerStore.ingest."""
        source, version = check_name(source, version)
        given: object = batches
        is_one = isinstance(given, np.ndarray) and not given.ndim  # which calls itself iterable
        if is_one or not isinstance(given, Iterable):
            raise MessageError(
                f"batches: wanted several of RowBatch, got one {type(given).__name__}"
            )
        with self.ledger.turn(source):
            self._resolve(source)
            known = self.ledger.find(source, version)
            if known is not None and known.is_complete:
                return self._replay(source, version, known, batches)
            return self._go_on(source, version, known or NOTHING, batches)

    # --- repeating the ledger in the log ---

    def carry(self, end: int) -> bool:
        """Append statements so that no ledger record below log offset `end` is needed.

        Retention calls this, on its thread, before it removes files. A statement of a source
        replaces every earlier header of it. Later headers follow it, in files that stay.

        Return whether that is done. FullError is retried. MessageError if a statement exceeds the
        largest record: then the file stays.
        """
        route = self._routes.get(INGEST_TOPIC, 0)
        if route is None or self._stated_at >= end:
            return True
        units = queue_unit.read(route.queue.read(route.queue.min_offset, 1))
        if not len(units) or int(units["log_offset"][0]) >= end:
            return True
        with self._log.lock:
            begin = self._log.end  # read first: the ledger then has all headers below it
        if not self.resolve_all():
            return False
        rows = _no_rows()
        for source in self.ledger.sources():
            text = write_state(self.ledger.state(source))
            part = BatchPart(0, 0, 0, 0, self._clock.now_ms)
            self._appender.append_group(route, rows.rows, part, rows.due_ms, route, text)
        self._stated_at = begin
        return True

    # --- a complete version ---

    def _replay(
        self, source: str, version: int, known: Known, batches: Iterable[Any]
    ) -> IngestReceipt:
        """Check that the rows equal those of the complete version; append nothing."""
        count, digest = 0, 0
        for batch in self._checked(batches, _ALL):
            digest = _digest(batch, 0, batch.rows.count, digest)
            count += batch.rows.count
        if known.row_count >= 0 and (count, digest) != (known.row_count, known.digest):
            raise _other_rows(source, version, known, count, digest)
        self._log.sync_through(known.end)
        return IngestReceipt(source, version, count, is_replay=True)

    # --- a new or incomplete version ---

    def _go_on(
        self, source: str, version: int, known: Known, batches: Iterable[Any]
    ) -> IngestReceipt:
        now, rest = known, None
        for piece in self._behind(source, version, known, batches):
            if rest is not None:  # only the last chunk says that it is the last
                now = self._append_all(source, version, now, *rest, is_final=False)
            rest = piece
        if rest is not None:
            now = self._append_all(source, version, now, *rest, is_final=True)
        else:
            now = self._append_header(source, version, now)
        reach("ingest_appended")
        self._log.sync_through(now.end)
        self._appender.appended()
        return IngestReceipt(source, version, now.row_count, is_replay=False)

    def _behind(
        self, source: str, version: int, known: Known, batches: Iterable[Any]
    ) -> Iterator[tuple[Checked, int]]:
        """Yield the batches that have rows after the stored ones, and the first such row of each.

        Check that the stored rows are equal.
        """
        skipped, digest = 0, 0
        for batch in self._checked(batches, known.row_count):
            begin = min(batch.rows.count, known.row_count - skipped)
            if begin:
                digest = _digest(batch, 0, begin, digest)
                skipped += begin
                if skipped == known.row_count and digest != known.digest:
                    raise _other_rows(source, version, known, skipped, digest)
            if begin < batch.rows.count:
                yield batch, begin
        if skipped < known.row_count:
            raise _other_rows(source, version, known, skipped, digest)

    def _checked(self, batches: Iterable[Any], stored: int) -> Iterator[Checked]:
        """Yield the checked batches. The first `stored` rows are in the log.

        Their due times are not checked again: after the clock was set back, they may be too far
        ahead.
        """
        config, bytes_max = self._config, self._record_bytes_max
        for batch in batches:
            found = check_batch(batch, config, bytes_max, self._clock.now_ms, stored)
            stored -= found.rows.count
            yield found

    def _append_all(
        self, source: str, version: int, now: Known, batch: Checked, begin: int, *, is_final: bool
    ) -> Known:
        route = self._appender.route_to(batch.topic)
        while begin < batch.rows.count:
            part = self._cut(batch, begin, route)
            begin += part.row_count
            header = ChunkHeader(
                source,
                version,
                now.chunk_count,
                part.row_count,
                now.row_count + part.row_count,
                part.bytes,
                _digest(batch, part.begin, begin, now.digest),
                last=is_final and begin == batch.rows.count,
            )
            now = self._append(header, route, batch, part)
        return now

    def _cut(self, batch: Checked, begin: int, route: Route) -> BatchPart:
        """Return the rows of the next chunk. A single row may need a larger chunk than usual."""
        native, now_ms = self._log.native, self._clock.now_ms
        for most, limit in (
            (_CHUNK_ROWS, min(_CHUNK_BYTES, self._log.group_bytes_max)),
            (1, self._log.group_bytes_max),
        ):
            room = limit - _HEADER_BYTES
            part = batch.rows.measure(native, route.native, begin, most, room, now_ms)
            if part.row_count:
                return part
        raise AssertionError("a row that passed the checks fits a chunk")

    def _append(self, header: ChunkHeader, route: Route, batch: Checked, part: BatchPart) -> Known:
        rows, due_ms = batch.rows, batch.due_ms
        rows.native.first_unique = self._appender.take_ids(part.row_count) - part.begin
        ledger_route, text = self._ledger_route(), write_chunk(header)
        self._doubted.add(header.source)
        end = self._appender.append_group(route, rows, part, due_ms, ledger_route, text)
        reach("ingest_chunk_appended")
        known = self.ledger.note(header, end)
        self._doubted.discard(header.source)
        return known

    def _append_header(self, source: str, version: int, now: Known) -> Known:
        """Append a header without rows, which completes the version."""
        header = ChunkHeader(
            source, version, now.chunk_count, 0, now.row_count, 0, now.digest, last=True
        )
        part = BatchPart(0, 0, 0, 0, self._clock.now_ms)
        return self._append(header, self._ledger_route(), _no_rows(), part)

    def _ledger_route(self) -> Route:
        if self._route is None:
            self._route = self._routes.make(INGEST_TOPIC, 0, self._clock.now_ms)
        return self._route


def _no_rows() -> Checked:
    nothing = np.zeros(1, np.int64)
    return Checked(INGEST_TOPIC, b"", ColumnBatch(b"", nothing, nothing[:0], b""), nothing[:0])


def _digest(batch: Checked, begin: int, end: int, digest: int) -> int:
    """Return the digest of all rows so far and those of [begin, end)."""
    name = batch.name
    return int(lib.ts_batch_digest(batch.rows.native, name, len(name), begin, end, digest))


def _other_rows(source: str, version: int, known: Known, count: int, digest: int) -> MessageError:
    return MessageError(
        f"batches: source {source!r} version {version} has other rows than before: wanted "
        f"{known.row_count} rows with digest {known.digest:016x}, got {count} with {digest:016x}"
    )
