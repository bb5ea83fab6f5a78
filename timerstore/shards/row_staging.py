"""Stage rows: write the rows of one attempt at one part of a version to files, one for each shard.

Thread safety: one thread for each Stager. Any number of Stagers may run at a time, on any machines
and under the same attempt name: each has a folder of its own.
Invariants:
    1. Nothing here is visible before a manifest names it.
    2. The files that `finish` returns are durable, names included, if `sync` is true.
    3. CRC-32, rows and bytes of each file are in that result, and in the manifest.
    4. No Stager writes to files of another, or to files that it has finished; `abandon` removes
       none of them.
Raises: MessageError for rows, FullError, FailedError, CorruptError.
On-disk format: staged_files.py.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

import os
import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import ConfigError, MessageError
from timerstore.shards.arrow_arrays import bytes_of, offsets_of, sizes_of
from timerstore.shards.arrow_import import ipc, pyarrow
from timerstore.shards.arrow_rows import Reader, Rows
from timerstore.shards.message_writeback import rows_of_messages
from timerstore.shards.routing import Turns, shards_of_rows
from timerstore.shards.row_columns import check_columns
from timerstore.shards.shard_paths import NAMES, check_attempt
from timerstore.shards.staged_files import COLUMNS, QUARANTINE, Staged, StagedFile, staged_schema
from timerstore.shards.staging_area import StagedOutput, StagingArea
from timerstore.shards.staging_location import area_at
from timerstore.shards.write_options import WriteOptions
from timerstore.types.clock import Clock, SystemClock
from timerstore.types.messages import Int64Array

_GATHER_ROWS = 1 << 16
_GATHER_BYTES = 8 << 20
_SHOWN = 5  # rows that an error names
_MASK = 2**64 - 1
_HASH = np.uint64(0x9E3779B97F4A7C15)  # odd, and its bits are well spread


class _Sink(NotCopyable):
    """A file that pyarrow writes to, with its size and CRC-32 so far."""

    closed = False

    def __init__(self, file: StagedOutput) -> None:
        self.file = file
        self.size = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        """Append to the file."""
        view = memoryview(data).cast("B")
        self.file.write(view, self.size)
        if len(view):
            self.crc = int(lib.ts_crc32(self.crc, ffi.from_buffer("uint8_t[]", view), len(view)))
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: the opener closes the file."""

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self.size


class _Writer(NotCopyable):
    """One file that is being written."""

    def __init__(self, output: StagedOutput, path: str, schema: Any) -> None:
        self.sink = _Sink(output)
        self._path = path
        self.schema = schema
        self._out = pyarrow().PythonFile(self.sink, mode="w")
        self._ipc = ipc().new_file(self._out, schema)
        self.rows = 0
        self.digest = 0
        self.due_min_ms = 2**63 - 1
        self.due_max_ms = -(2**63)

    def write(self, batch: Any, metadata: dict[str, str] | None) -> None:
        """Append a batch."""
        self._ipc.write_batch(batch, custom_metadata=metadata)
        self.rows += len(batch)

    def count(self, due_ms: Int64Array, digest: int) -> None:
        """Record the values of the manifest for some rows."""
        self.due_min_ms = min(self.due_min_ms, int(due_ms.min()))
        self.due_max_ms = max(self.due_max_ms, int(due_ms.max()))
        self.digest = (self.digest + digest) & _MASK

    def finish(self, shard: int, *, synced: bool) -> StagedFile:
        """Complete the file; its data are durable if `synced`."""
        self._ipc.close()
        self._out.close()
        sink = self.sink
        if synced:
            sink.file.sync()
        has_due = self.due_min_ms <= self.due_max_ms
        return StagedFile(
            self._path,
            shard,
            self.rows,
            sink.size,
            sink.crc,
            self.due_min_ms if has_due else 0,
            self.due_max_ms if has_due else 0,
            self.digest,
        )


class Stager(NotCopyable):
    """Writes the rows of one attempt. Call `add` with batches, then `finish` or `abandon`."""

    def __init__(
        self,
        root: str | os.PathLike[str] | StagingArea,
        source: str,
        version: int,
        attempt: str,
        options: WriteOptions | None = None,
        *,
        clock: Clock | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """`attempt` names the writer in a folder's name. Attempts may share a name."""
        self._area = area_at("root", root, storage_options)
        self._cluster = self._area.cluster()
        self._options = options if options is not None else WriteOptions()
        self._clock = clock if clock is not None else SystemClock()
        self._reader = Reader(self._cluster.config, self._options)
        self._turns = Turns(self._cluster.shard_count, first=int.from_bytes(os.urandom(2), "big"))
        self._source = source
        self._version = version
        self._attempt = check_attempt(attempt)
        self._begin_attempt()
        self._writers: dict[int, _Writer] = {}
        self._gathered: list[Any] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._schema: Any = None  # of the batches that are added
        self._row = 0  # how many rows were read before the gathered ones

    def add(self, batch: Any) -> None:
        """Stage rows: a pyarrow RecordBatch. All batches have one schema.

        Raises:
            ConfigError: the columns are invalid, or differ from those of the first batch.
            MessageError: a row is invalid (on_invalid=fail).
        """
        if not isinstance(batch, pyarrow().RecordBatch):
            raise MessageError(
                f"batches: wanted pyarrow RecordBatches, got a {type(batch).__name__}"
            )
        if self._options.are_messages:
            batch = rows_of_messages(batch)
        if self._schema is not None and not batch.schema.equals(self._schema):
            raise ConfigError(
                "columns: wanted those of the first batch, "
                f"{_columns_text(self._schema)}; got {_columns_text(batch.schema)}"
            )
        if self._schema is None:
            check_columns(batch.schema, self._options)
            self._schema = batch.schema
        if not len(batch):
            return
        self._gathered.append(batch)
        self._gathered_rows += len(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_rows >= _GATHER_ROWS or self._gathered_bytes >= _GATHER_BYTES:
            self._write_gathered()

    def finish(self) -> Staged:
        """Complete the files, and return them. They are durable (unless sync=false), and not
        visible yet.
        """
        self._write_gathered()
        files = []
        for shard, writer in sorted(self._writers.items()):
            files.append(writer.finish(shard, synced=self._options.is_synced))
            reach("stage_file_written")
        self._files.finish(synced=self._options.is_synced)
        reach("stage_synced")
        self._writers = {}
        self._begin_attempt()  # the old one may be committed by now
        return Staged(self._source, self._version, tuple(files))

    def abandon(self) -> None:
        """Remove the files written since the last `finish`. No manifest can name them."""
        self._writers = {}
        self._files.abandon()

    def _begin_attempt(self) -> None:
        """Choose a folder name that is not in use. A job that is run again has the names of its
        first run, whose files may be committed.

        A point sorts like the path separator, so files are ordered by the names of their attempts.
        """
        name = f"{self._attempt}.{os.urandom(8).hex()}"
        place = NAMES.version_staging(self._source, self._version)
        self._folder = (place / name).as_posix()
        self._files = self._area.attempt(self._folder)

    def _write_gathered(self) -> None:
        if not self._gathered:
            return
        table = pyarrow().Table.from_batches(self._gathered).combine_chunks()
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        for batch in table.to_batches():  # one, but for columns beyond 2 GiB
            self._write(batch)
            self._row += len(batch)

    def _write(self, batch: Any) -> None:
        rows = self._reader.read(batch, self._clock.now_ms)
        valid = ~rows.invalid
        if not valid.all():
            self._set_aside(batch, rows, np.flatnonzero(~valid))
        shards = shards_of_rows(bytes_of(rows.route), offsets_of(rows.route), self._shard_count)
        without = np.flatnonzero(shards < 0)
        if len(without):
            first = self._turns.take()
            shards[without] = (first + np.arange(len(without))) % self._shard_count
        # By shard, then topic; within them in the given order.
        order = np.lexsort((rows.topic_of, shards))
        order = order[valid[order]]
        if len(order):
            self._write_runs(rows, shards[order], rows.topic_of[order], order)

    @property
    def _shard_count(self) -> int:
        return self._cluster.shard_count

    def _write_runs(self, rows: Rows, shards: Any, topic_of: Any, order: Any) -> None:
        arrow = pyarrow()
        at = arrow.array(order)
        columns = {name: rows.columns[name].take(at) for name in COLUMNS}
        due_ms = rows.due_ms[order]
        whole = arrow.RecordBatch.from_arrays(
            [arrow.array(due_ms), *columns.values()], schema=staged_schema()
        )
        topic_crcs = np.array([zlib.crc32(one.encode()) for one in rows.topics], np.uint32)
        hashes = _mixed(_hashes(columns, due_ms) ^ _seeds(columns, topic_crcs[topic_of]))
        is_new = (np.diff(shards) != 0) | (np.diff(topic_of) != 0)
        starts = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(order)]
        for begin, end in pairwise(starts):
            writer = self._writer(int(shards[begin]), staged_schema())
            topic = rows.topics[int(topic_of[begin])]
            writer.write(whole.slice(begin, end - begin), {"topic": topic})
            writer.count(due_ms[begin:end], int(hashes[begin:end].sum(dtype=np.uint64)))

    def _writer(self, shard: int, schema: Any) -> _Writer:
        writer = self._writers.get(shard)
        if writer is None:
            name = f"{'quarantine' if shard == QUARANTINE else f'{shard:05d}'}.arrow"
            writer = _Writer(self._files.create(name), f"{self._folder}/{name}", schema)
            self._writers[shard] = writer
        return writer

    def _set_aside(self, batch: Any, rows: Rows, invalid: Any) -> None:
        shown = "; ".join(
            f"row {self._row + k} of this part: {rows.reason(k)}" for k in invalid[:_SHOWN]
        )
        if self._options.on_invalid == "fail":
            raise MessageError(
                f"{len(invalid)} of {len(batch)} rows are invalid (on_invalid=quarantine sets such "
                f"rows aside): {shown}"
            )
        arrow = pyarrow()
        why = arrow.array([rows.reason(k) for k in invalid], arrow.string())
        part = batch.take(arrow.array(invalid)).append_column("_reason", why)
        self._writer(QUARANTINE, part.schema).write(part, None)


def _columns_text(schema: Any) -> str:
    return ", ".join(
        f"{one.name} {one.type}{'' if one.nullable else ' not null'}" for one in schema
    )


def _hashes(columns: dict[str, Any], due_ms: Int64Array) -> Any:
    """Return a number for each row, computed from everything except topic and properties."""
    crcs = np.zeros(len(due_ms), np.uint32)
    for name in COLUMNS:
        if name == "properties":
            continue
        # Mixed once for each column, with the length: so a text in one column hashes differently
        # from the same text in another column, or from a text that is split elsewhere.
        lengths = sizes_of(columns[name]).astype(np.uint32)
        crcs = (crcs ^ lengths) * np.uint32(0x9E3779B1) + np.uint32(1)
        _add_crcs(columns[name], crcs)
    return crcs.astype(np.uint64) ^ _mixed(due_ms.view(np.uint64))


def _seeds(columns: dict[str, Any], topic_crcs: Any) -> Any:
    """Return a number for each row, computed from its topic and properties."""
    crcs = topic_crcs.copy()
    _add_crcs(columns["properties"], crcs)
    return crcs.astype(np.uint64) * _HASH


def _add_crcs(column: Any, crcs: Any) -> None:
    """Continue the CRC-32 of each row with its text in the column."""
    spans = np.ascontiguousarray(offsets_of(column))
    data = bytes_of(column)
    status = lib.ts_crc32_rows(
        address(data) if len(data) else ffi.NULL,
        len(data),
        ffi.from_buffer("int64_t[]", spans),
        len(crcs),
        ffi.from_buffer("uint32_t[]", crcs),
    )
    assert status == lib.TS_OK, "columns that pyarrow made"


def _mixed(values: Any) -> Any:
    """Spread the bits of each number, so that sums of them distinguish sets of rows."""
    values = (values ^ (values >> np.uint64(32))) * _HASH
    values = (values ^ (values >> np.uint64(29))) * _HASH
    return values ^ (values >> np.uint64(32))


def stage(
    root: str | os.PathLike[str] | StagingArea,
    source: str,
    version: int,
    attempt: str,
    batches: Iterable[Any],
    options: WriteOptions | None = None,
    *,
    clock: Clock | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Staged:
    """Stage all rows of some pyarrow batches. After an error, the staged files are removed.

    root: a directory of shards, also as a `file:` URL; or the prefix of a bucket that the owner of
        the shards reads (`open_shards`, `ingest_from`), such as "s3://bucket/orders". Text only: a
        path object is always a local path.

    attempt: the name of this part, 1 to 200 of A-Za-z0-9_-; the folder's name is this and a random
        number.

    storage_options: settings of obstore for a bucket, such as `endpoint` or `region`. By default
        those of the environment are used.

    Raises: as `Stager.add`; BucketError if the bucket does not answer.
    """
    if not isinstance(batches, Iterable):
        raise MessageError(f"batches: wanted pyarrow RecordBatches, got {batches!r}")
    stager = Stager(
        root, source, version, attempt, options, clock=clock, storage_options=storage_options
    )
    try:
        for batch in batches:
            stager.add(batch)
        return stager.finish()
    except BaseException:
        stager.abandon()
        raise
