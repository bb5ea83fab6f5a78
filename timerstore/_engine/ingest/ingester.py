"""Ingester: rows of a source and version into the log, chunk by chunk, each with its header.

Threads:  any; one at a time for a source.
Holds:    (1) a chunk's rows and its header are one group of the log: both or none; (2) a version
          goes on behind the rows that are there, whatever batches they were cut into; (3) a version
          that is complete takes nothing more; (4) what it answers is durable.
Fails:    MessageError on rows that are wrong, or are not those that this version had; FullError,
          FlowControlError: the chunks before stay, and the same call goes on behind them.
Source:   docs/exactly-once.md; docs/decisions/0008-deduplication-and-ingest.md.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.column_batch import Part, Rows
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.ledger_json import ChunkHeader, write_chunk
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.ingest.ledger import NOTHING, Known, Ledger
from timerstore._engine.ingest.ledger_side_file import LedgerSideFile
from timerstore._engine.ingest.row_batch import IngestedVersions, IngestReceipt
from timerstore._engine.ingest.row_validation import Checked, check_batch, check_name
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.write.append import Appender
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import MessageError

_CHUNK_BYTES = 1 << 19
"""Of records in one chunk: one hold of the append lock, about a millisecond. A chunk may have as
many as a group (`group_bytes_max`), where one message is that large."""
_ALL = 1 << 62
_CHUNK_ROWS = 8192
_HEADER_BYTES = 4096  # of the header's record, at most


class _Piece(NamedTuple):
    """What of a batch is not in the log."""

    batch: Checked
    begin: int


class Ingester(Owner):
    """Ingests into one store."""

    def __init__(
        self,
        dispatch: Dispatch,
        routes: Routes,
        log: CommitLog,
        config: StoreConfig,
        side_file: LedgerSideFile,
        clock: Clock,
        putting: Appender,
    ) -> None:
        self._clock = clock
        self._putting = putting
        self._config = config
        self._log = log
        self._record_bytes_max = min(
            self._config.record_bytes_max, self._log.group_bytes_max - _HEADER_BYTES
        )
        self._route: Route | None = routes.get(INGEST_TOPIC, 0)
        self.ledger = Ledger()
        self._cache = side_file
        self._opened_offset = self._cache.load(self.ledger)  # behind what opening found
        self._doubted: set[str] = set()  # sources of which a header may be there and not be noted
        self._dispatch = dispatch
        self._routes = routes

    def _resolve(self, source: str) -> None:
        """An append was left by an exception (a Ctrl-C): the log tells whether it happened."""
        if source in self._doubted:
            self._log.sync_through(self._log.end)
            durable = self._log.durable
            self._dispatch.through(durable)
            self._cache.read(self.ledger, self._opened_offset, durable)
            self._doubted.discard(source)

    def resolve_all(self) -> bool:
        """Have every header in the log noted; False where an ingest runs that may know of more."""
        for source in list(self._doubted):
            turn = self.ledger.turn(source)
            if not turn.acquire(blocking=False):
                return False
            try:
                self._resolve(source)
            finally:
                turn.release()
        return True

    @property
    def log_end(self) -> int:
        """Log offset behind everything that was appended."""
        with self._log.lock:
            return self._log.end

    def append_record(self, batch: Checked, part: Part, text: bytes) -> int:
        """Append a record of the ledger alone; the log's end then."""
        route = self._ledger_route()
        timed = part._replace(now_ms=self._clock.now_ms)
        return self._putting.append_group(route, batch.rows, timed, batch.due_ms, route, text)

    def ingested(self, source: str) -> IngestedVersions:
        """Give the complete versions of a source."""
        source, _ = check_name(source, 0)
        return self.ledger.ingested(source, self._log.durable)

    def ingest(self, source: str, version: int, batches: Iterable[Any]) -> IngestReceipt:
        """As TimerStore.ingest."""
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

    # --- a version that is there ---

    def _replay(
        self, source: str, version: int, known: Known, batches: Iterable[Any]
    ) -> IngestReceipt:
        """Nothing is appended; the rows must be those that were."""
        count, digest = 0, 0
        for batch in self._checked(batches, _ALL):
            digest = _digest(batch, 0, batch.rows.count, digest)
            count += batch.rows.count
        if known.row_count >= 0 and (count, digest) != (known.row_count, known.digest):
            raise _other_rows(source, version, known, count, digest)
        self._log.sync_through(known.end)
        return IngestReceipt(source, version, count, is_replay=True)

    # --- one that is not, or not all of it ---

    def _go_on(
        self, source: str, version: int, known: Known, batches: Iterable[Any]
    ) -> IngestReceipt:
        now, rest = known, None
        for piece in self._behind(source, version, known, batches):
            if rest is not None:  # only the last chunk says that it is the last
                now = self._append_all(source, version, now, rest, is_final=False)
            rest = piece
        if rest is not None:
            now = self._append_all(source, version, now, rest, is_final=True)
        else:
            now = self._append_header(source, version, now)
        reach("ingest_appended")
        self._log.sync_through(now.end)
        self._putting.appended()
        return IngestReceipt(source, version, now.row_count, is_replay=False)

    def _behind(
        self, source: str, version: int, known: Known, batches: Iterable[Any]
    ) -> Iterator[_Piece]:
        """Give the rows behind those that are known."""
        skipped, digest = 0, 0
        for batch in self._checked(batches, known.row_count):
            begin = min(batch.rows.count, known.row_count - skipped)
            if begin:
                digest = _digest(batch, 0, begin, digest)
                skipped += begin
                if skipped == known.row_count and digest != known.digest:
                    raise _other_rows(source, version, known, skipped, digest)
            if begin < batch.rows.count:
                yield _Piece(batch, begin)
        if skipped < known.row_count:
            raise _other_rows(source, version, known, skipped, digest)

    def _checked(self, batches: Iterable[Any], stored: int) -> Iterator[Checked]:
        """Check batches of which the first `stored` rows are there: their times were checked then,
        and where the clock was set back since they may lie too far ahead of it.
        """
        config, bytes_max = self._config, self._record_bytes_max
        for batch in batches:
            found = check_batch(batch, config, bytes_max, self._clock.now_ms, stored)
            stored -= found.rows.count
            yield found

    def _append_all(
        self, source: str, version: int, now: Known, piece: _Piece, *, is_final: bool
    ) -> Known:
        batch, begin = piece
        route = self._putting.route_to(batch.topic)
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

    def _cut(self, batch: Checked, begin: int, route: Route) -> Part:
        """The next chunk's rows; one row alone may need more than a chunk has."""
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

    def _append(self, header: ChunkHeader, route: Route, batch: Checked, part: Part) -> Known:
        rows, due_ms = batch.rows, batch.due_ms
        rows.native.first_unique = self._putting.take_ids(part.row_count) - part.begin
        ledger_route, text = self._ledger_route(), write_chunk(header)
        self._doubted.add(header.source)
        end = self._putting.append_group(route, rows, part, due_ms, ledger_route, text)
        reach("ingest_chunk_appended")
        known = self.ledger.note(header, end)
        self._doubted.discard(header.source)
        return known

    def _append_header(self, source: str, version: int, now: Known) -> Known:
        """The end of a version without any rows left."""
        header = ChunkHeader(
            source, version, now.chunk_count, 0, now.row_count, 0, now.digest, last=True
        )
        route = self._ledger_route()
        nothing = np.zeros(1, np.int64)
        batch = Checked(INGEST_TOPIC, b"", Rows(b"", nothing, nothing[:0], b""), nothing[:0])
        return self._append(header, route, batch, Part(0, 0, 0, 0, self._clock.now_ms))

    def _ledger_route(self) -> Route:
        if self._route is None:
            self._route = self._routes.make(INGEST_TOPIC, 0, self._clock.now_ms)
        return self._route


def _digest(batch: Checked, begin: int, end: int, digest: int) -> int:
    """Digest of all rows so far, with those of [begin, end) behind them."""
    name = batch.name
    return int(lib.ts_rows_digest(batch.rows.native, name, len(name), begin, end, digest))


def _other_rows(source: str, version: int, known: Known, count: int, digest: int) -> MessageError:
    return MessageError(
        f"batches: source {source!r} version {version} has other rows than it had: wanted "
        f"{known.row_count} rows with digest {known.digest:016x}, got {count} with {digest:016x}"
    )
