"""Staging: rows of one attempt at one part of a version, written as files, a shard each.

Data:     _ingest/staging/<source>/<version>/<attempt>.<16 hex digits>/<shard>.arrow, an Arrow IPC
          file. Each of its record batches has rows of one topic and one set of properties, named
          in the batch's metadata; columns due_ms int64, body, keys, tags, message_ids large_binary.
          Beside them quarantine.arrow: rows that no store would take, as they came, and why.
Threads:  one a Stager; any number of Stagers, on any machines, also of one attempt's name: each has
          a folder of its own.
Holds:    (1) nothing here is visible before a manifest names it; (2) what `finish` answers is
          durable, names included, where it is synced; (3) CRC-32, rows and bytes of each file
          are in that answer, and in the manifest; (4) no Stager writes to what another one wrote,
          or to what it finished itself, and `abandon` removes none of that.
Fails:    MessageError on rows, FullError, FailedError, CorruptError.
Source:   docs/decisions/0008-deduplication-and-ingest.md.
"""

import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.ingest.row_batch import StagedBatch
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.paths import absolute_path
from timerstore.clock import Clock, SystemClock
from timerstore.errors import ConfigError, CorruptError, MessageError
from timerstore.messages import Int64Array
from timerstore.shards.arrow_import import ipc, pyarrow
from timerstore.shards.arrow_rows import (
    Reader,
    Rows,
    bytes_of,
    check_columns,
    offsets_of,
    pairs_of,
)
from timerstore.shards.cluster import require
from timerstore.shards.routing import Turns, shards_of_rows
from timerstore.shards.shard_paths import ShardsTree, check_attempt
from timerstore.shards.write_options import WriteOptions

QUARANTINE = -1
"""In place of a shard: rows that were set aside."""

_GATHER_ROWS = 1 << 16
_GATHER_BYTES = 8 << 20
_WINDOW_BYTES = 1 << 20
_VERSION = b"1"
_SHOWN = 5  # rows that an error names
_COLUMNS = ("body", "keys", "tags", "message_ids")
_MASK = 2**64 - 1
_HASH = np.uint64(0x9E3779B97F4A7C15)  # odd, and its bits are well spread


class StagedFile(NamedTuple):
    """One file: where, whose, and what is in it. `path` is relative to the root of the shards."""

    path: str
    shard: int
    rows: int
    bytes: int
    crc32: int
    due_min_ms: int
    due_max_ms: int
    digest: int
    """Sum of a hash of each row, modulo 2^64: whatever order and files the rows are in."""


class Staged(NamedTuple):
    """What one attempt staged."""

    source: str
    version: int
    files: tuple[StagedFile, ...]

    @property
    def row_count(self) -> int:
        """Rows for shards; those in quarantine are not counted."""
        return sum(one.rows for one in self.files if one.shard != QUARANTINE)


class _Sink(Owner):
    """What pyarrow writes to: a file, its size and CRC-32 so far."""

    closed = False

    def __init__(self, file: File) -> None:
        self.file = file
        self.size = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        """Append."""
        view = memoryview(data).cast("B")
        self.file.write(view, self.size)
        if len(view):
            self.crc = int(lib.ts_crc32(self.crc, ffi.from_buffer("uint8_t[]", view), len(view)))
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The file is closed by who opened it."""

    def readable(self) -> bool:
        """No."""
        return False

    def writable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """No."""
        return False

    def tell(self) -> int:
        """Bytes so far."""
        return self.size


class _Writer(Owner):
    """One file that is being written."""

    def __init__(self, disk: Disk, path: Path, schema: Any) -> None:
        self.sink = _Sink(disk.open(path, create=True))
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
        """Note what the manifest says of the rows."""
        self.due_min_ms = min(self.due_min_ms, int(due_ms.min()))
        self.due_max_ms = max(self.due_max_ms, int(due_ms.max()))
        self.digest = (self.digest + digest) & _MASK

    def finish(self, root: Path, shard: int, *, synced: bool) -> StagedFile:
        """Write the end; durable where `synced`."""
        self._ipc.close()
        self._out.close()
        sink = self.sink
        if synced:
            sink.file.sync()
        has_due = self.due_min_ms <= self.due_max_ms
        return StagedFile(
            sink.file.path.relative_to(root).as_posix(),
            shard,
            self.rows,
            sink.size,
            sink.crc,
            self.due_min_ms if has_due else 0,
            self.due_max_ms if has_due else 0,
            self.digest,
        )


class Stager(Owner):
    """Writes the rows of one attempt. `add` batches, then `finish`; or `abandon`."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        source: str,
        version: int,
        attempt: str,
        options: WriteOptions | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`attempt`: says in a folder's name who wrote it; it may be that of another attempt."""
        self._disk = Disk()
        self._tree = ShardsTree(absolute_path("root", root))
        self._cluster = require(self._disk, self._tree.root)
        self._options = options if options is not None else WriteOptions()
        self._clock = clock if clock is not None else SystemClock()
        self._reader = Reader(self._cluster.config, self._options)
        self._turns = Turns(self._cluster.shard_count, first=int.from_bytes(os.urandom(2), "big"))
        self._source = source
        self._version = version
        self._attempt = check_attempt(attempt)
        self._folder = self._new_folder()
        self._writers: dict[int, _Writer] = {}
        self._gathered: list[Any] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._schema: Any = None  # of what comes in
        self._row = 0  # how many rows were read before those gathered

    def add(self, batch: Any) -> None:
        """Take rows: a pyarrow RecordBatch, all of one schema. ConfigError on columns, MessageError
        where a row is wrong (on_invalid=fail).
        """
        if not isinstance(batch, pyarrow().RecordBatch):
            raise MessageError(
                f"batches: wanted pyarrow RecordBatches, got a {type(batch).__name__}"
            )
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
        """Write out what is left. What it answers is durable (unless sync=false), and invisible."""
        self._write_gathered()
        files = []
        for shard, writer in sorted(self._writers.items()):
            files.append(writer.finish(self._tree.root, shard, synced=self._options.is_synced))
            reach("stage_file_written")
        if files and self._options.is_synced:
            # Another process may have made a folder of these, and not have synced it yet.
            folder = self._folder
            while folder != self._tree.root:
                self._disk.sync_directory(folder)
                folder = folder.parent
            self._disk.sync_directory(self._tree.root)
        reach("stage_synced")
        self._writers = {}
        self._folder = self._new_folder()  # the other one may be committed by now
        return Staged(self._source, self._version, tuple(files))

    def abandon(self) -> None:
        """Remove what was written since `finish`, or ever; nobody knows of it."""
        self._writers = {}
        self._disk.remove_tree(self._folder)

    def _new_folder(self) -> Path:
        """Name a folder that nobody has: a job that is run again has the names of its first run,
        whose files may be committed.

        A point sorts as the separator does, so that files are in the order of attempts' names.
        """
        name = f"{self._attempt}.{os.urandom(8).hex()}"
        return self._tree.version_staging(self._source, self._version) / name

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
        group = rows.topic_of.astype(np.int64) * len(rows.properties) + rows.properties_of
        # By shard, then topic and properties; within them as they came.
        order = np.lexsort((group, shards))
        order = order[valid[order]]
        if len(order):
            self._write_runs(rows, shards[order], group[order], order)

    @property
    def _shard_count(self) -> int:
        return self._cluster.shard_count

    def _write_runs(self, rows: Rows, shards: Any, group: Any, order: Any) -> None:
        arrow = pyarrow()
        at = arrow.array(order)
        columns = {name: rows.columns[name].take(at) for name in _COLUMNS}
        due_ms = rows.due_ms[order]
        whole = arrow.RecordBatch.from_arrays(
            [arrow.array(due_ms), *columns.values()], schema=_schema()
        )
        hashes = _hashes(columns, due_ms)
        is_new = (np.diff(shards) != 0) | (np.diff(group) != 0)
        starts = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(order)]
        for begin, end in pairwise(starts):
            topic_at, properties_at = divmod(int(group[begin]), len(rows.properties))
            topic, text = rows.topics[topic_at], rows.properties[properties_at]
            writer = self._writer(int(shards[begin]), _schema())
            writer.write(whole.slice(begin, end - begin), {"topic": topic, "properties": text})
            name_crc = zlib.crc32(text.encode(), zlib.crc32(topic.encode()))
            seed = np.uint64(name_crc * int(_HASH) & _MASK)
            digest = int(_mixed(hashes[begin:end] ^ seed).sum(dtype=np.uint64))
            writer.count(due_ms[begin:end], digest)

    def _writer(self, shard: int, schema: Any) -> _Writer:
        writer = self._writers.get(shard)
        if writer is None:
            self._disk.make_directory(self._folder)
            name = "quarantine" if shard == QUARANTINE else f"{shard:05d}"
            writer = _Writer(self._disk, self._folder / f"{name}.arrow", schema)
            self._writers[shard] = writer
        return writer

    def _set_aside(self, batch: Any, rows: Rows, invalid: Any) -> None:
        shown = "; ".join(
            f"row {self._row + k} of this part: {rows.reason(k)}" for k in invalid[:_SHOWN]
        )
        if self._options.on_invalid == "fail":
            raise MessageError(
                f"{len(invalid)} of {len(batch)} rows are wrong (on_invalid=quarantine sets such "
                f"aside): {shown}"
            )
        arrow = pyarrow()
        why = arrow.array([rows.reason(k) for k in invalid], arrow.string())
        part = batch.take(arrow.array(invalid)).append_column("_reason", why)
        self._writer(QUARANTINE, part.schema).write(part, None)


def _schema() -> Any:
    arrow = pyarrow()
    return arrow.schema(
        [
            arrow.field("due_ms", arrow.int64(), nullable=False),
            *(arrow.field(name, arrow.large_binary(), nullable=False) for name in _COLUMNS),
        ],
        metadata={"timerstore.staging": _VERSION},
    )


def _columns_text(schema: Any) -> str:
    return ", ".join(
        f"{one.name} {one.type}{'' if one.nullable else ' not null'}" for one in schema
    )


def _hashes(columns: dict[str, Any], due_ms: Int64Array) -> Any:
    """A number a row, of all of it but topic and properties."""
    crcs = np.zeros(len(due_ms), np.uint32)
    for name in _COLUMNS:
        spans = np.ascontiguousarray(offsets_of(columns[name]))
        data = bytes_of(columns[name])
        # Turned once a column, with the length in it: a text in one column is not the same text in
        # another, and the end of one not the begin of the next.
        lengths = np.diff(spans).astype(np.uint32)
        crcs = (crcs ^ lengths) * np.uint32(0x9E3779B1) + np.uint32(1)
        status = lib.ts_crc32_rows(
            address(data) if len(data) else ffi.NULL,
            len(data),
            ffi.from_buffer("int64_t[]", spans),
            len(due_ms),
            ffi.from_buffer("uint32_t[]", crcs),
        )
        assert status == lib.TS_OK, "columns that pyarrow made"
    return crcs.astype(np.uint64) ^ _mixed(due_ms.view(np.uint64))


def _mixed(values: Any) -> Any:
    """Spread each number's bits, so that sums of them tell sets of rows apart."""
    values = (values ^ (values >> np.uint64(32))) * _HASH
    values = (values ^ (values >> np.uint64(29))) * _HASH
    return values ^ (values >> np.uint64(32))


def stage(
    root: str | os.PathLike[str],
    source: str,
    version: int,
    attempt: str,
    batches: Iterable[Any],
    options: WriteOptions | None = None,
    *,
    clock: Clock | None = None,
) -> Staged:
    """Stage all of some pyarrow batches; where it fails, what was staged is removed.

    `attempt`: which part it is, say; a folder is named by it, and by a random number.
    """
    if not isinstance(batches, Iterable):
        raise MessageError(f"batches: wanted pyarrow RecordBatches, got {batches!r}")
    stager = Stager(root, source, version, attempt, options, clock=clock)
    try:
        for batch in batches:
            stager.add(batch)
        return stager.finish()
    except BaseException:
        stager.abandon()
        raise


# --- reading ---


def _crc_of(file: File, size: int) -> int:
    crc = 0
    for begin in range(0, size, _WINDOW_BYTES):
        data = file.read(begin, min(_WINDOW_BYTES, size - begin))
        crc = int(lib.ts_crc32(crc, ffi.from_buffer("uint8_t[]", data), len(data)))
    return crc


def open_staged(disk: Disk, root: Path, one: StagedFile, *, checked: bool = False) -> Any:
    """Give a file's Arrow reader. CorruptError where it is not what the manifest says; `checked`:
    its bytes were looked through before.

    What it gives is copied: a file that is cut meanwhile, on storage that others write to, is an
    error then, not a signal.
    """
    path = root / one.path
    file = disk.open(path, read_only=True)
    size = file.size()
    if size != one.bytes:
        raise CorruptError("staged file", where=path, wanted=f"{one.bytes} bytes", got=size)
    crc = one.crc32 if checked else _crc_of(file, size)
    if crc != one.crc32:
        raise CorruptError("staged file: CRC-32", where=path, wanted=one.crc32, got=crc)
    try:
        # Not a file of Python's: pyarrow may let go of one amid a garbage collection, and crash.
        reader = ipc().open_file(pyarrow().OSFile(str(path), mode="r"))
    except (pyarrow().ArrowInvalid, OSError) as error:
        raise CorruptError(f"staged file: {error}", where=path) from error
    if one.shard == QUARANTINE:
        return reader
    metadata = reader.schema.metadata or {}
    if metadata.get(b"timerstore.staging") != _VERSION or reader.schema.names != _schema().names:
        raise CorruptError("staged file: not of this release", where=path, got=metadata)
    return reader


def read_staged(disk: Disk, root: Path, files: Iterable[StagedFile]) -> Iterator[StagedBatch]:
    """Give the rows of files, always in the same order; all files are looked through first.

    One is open at a time: a version may have more than a process may open.
    """
    known = list(files)
    for one in known:
        open_staged(disk, root, one)
    for one in known:
        reader = open_staged(disk, root, one, checked=True)
        for number in range(reader.num_record_batches):
            try:
                batch, metadata = reader.get_batch_with_custom_metadata(number)
            except (pyarrow().ArrowInvalid, OSError) as error:
                where = root / one.path
                raise CorruptError(f"staged file: it changed: {error}", where=where) from error
            yield _row_batch(batch, metadata)


def _row_batch(batch: Any, metadata: Any) -> StagedBatch:
    given = {}
    for name, data, offsets in (
        ("body", "bodies", "body_offsets"),
        ("keys", "keys", "key_offsets"),
        ("tags", "tags", "tag_offsets"),
        ("message_ids", "message_ids", "message_id_offsets"),
    ):
        column = batch.column(name)
        spans = offsets_of(column)
        if name == "body" or spans[-1] > spans[0]:
            given[data] = bytes_of(column)
            given[offsets] = spans
    return StagedBatch(
        topic=metadata[b"topic"].decode(),
        due_ms=batch.column("due_ms").to_numpy(),
        properties=pairs_of(metadata[b"properties"].decode()) or None,
        **given,
    )
