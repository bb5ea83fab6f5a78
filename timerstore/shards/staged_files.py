"""The files of staged rows, and how they are read.

On-disk format: _ingest/staging/<source>/<version>/<attempt>.<16 hexadecimal digits>/<shard>.arrow,
an Arrow IPC file. Each of its record batches has rows of one topic, named in the batch's metadata.
Columns: due_ms int64; body, keys, tags, message_ids, properties large_binary. `properties` is the
text that the record has: name 0x01 value 0x02, repeated. The schema's metadata has the format, 2.
Files of format 1 are still read. They have no column `properties`; the metadata of a record batch
has the properties of all its rows. The file quarantine.arrow in the same folder has rows that no
store would accept, unchanged, with the reasons.
Raises: CorruptError if a file is not what its manifest says. FormatVersionError on a later format.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.write.row_batch import StagedBatch
from timerstore.errors import CorruptError, newer_format
from timerstore.shards.arrow_arrays import bytes_of, offsets_of
from timerstore.shards.arrow_import import ipc, pyarrow

QUARANTINE = -1
"""The shard number of rows that no store would accept."""

COLUMNS = ("body", "keys", "tags", "message_ids", "properties")
"""The columns besides due_ms."""
_WINDOW_BYTES = 1 << 20
_FORMAT_KEY = b"timerstore.staging"
_FORMAT = b"2"
_KNOWN = {b"1": ["due_ms", *COLUMNS[:-1]], _FORMAT: ["due_ms", *COLUMNS]}
"""The columns of each format."""


class StagedFile(NamedTuple):
    """One file: its path relative to the root of the shards, its shard, and its contents."""

    path: str
    shard: int
    rows: int
    bytes: int
    crc32: int
    due_min_ms: int
    due_max_ms: int
    digest: int
    """The sum of a hash of each row, modulo 2^64: independent of the order and the files of the
    rows."""


class Staged(NamedTuple):
    """The files that one attempt staged."""

    source: str
    version: int
    files: tuple[StagedFile, ...]

    @property
    def row_count(self) -> int:
        """Rows for shards; rows in quarantine are not counted."""
        return sum(one.rows for one in self.files if one.shard != QUARANTINE)


def staged_schema() -> Any:
    """Return the Arrow schema of the files."""
    arrow = pyarrow()
    return arrow.schema(
        [
            arrow.field("due_ms", arrow.int64(), nullable=False),
            *(arrow.field(name, arrow.large_binary(), nullable=False) for name in COLUMNS),
        ],
        metadata={_FORMAT_KEY: _FORMAT},
    )


def pairs_of(text: str) -> dict[str, str]:
    """Parse a properties text that this package wrote."""
    pairs = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name:
            pairs[name] = value
    return pairs


def _crc_of(file: File, size: int) -> int:
    crc = 0
    for begin in range(0, size, _WINDOW_BYTES):
        data = file.read(begin, min(_WINDOW_BYTES, size - begin))
        crc = int(lib.ts_crc32(crc, ffi.from_buffer("uint8_t[]", data), len(data)))
    return crc


def open_staged(disk: Disk, root: Path, one: StagedFile, *, checked: bool = False) -> Any:
    """Return a file's Arrow reader. Raise CorruptError if the file is not what the manifest says.
    `checked` skips the CRC-32, which was compared before.

    The reader copies. If the file is cut during the read, on storage that others write to, the
    result is an error and not a signal.
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
        # Not a Python file: pyarrow may release one during a garbage collection, and crash.
        reader = ipc().open_file(pyarrow().OSFile(str(path), mode="r"))
    except (pyarrow().ArrowInvalid, OSError) as error:
        raise CorruptError(f"staged file: {error}", where=path) from error
    if one.shard == QUARANTINE:
        return reader
    metadata = reader.schema.metadata or {}
    version = metadata.get(_FORMAT_KEY, b"")
    if version.isdigit() and version not in _KNOWN:
        raise newer_format(
            "staged file: unknown format",
            None,
            where=path,
            wanted=f"{_FORMAT.decode()} or 1",
            got=version.decode(),
        )
    if _KNOWN.get(version) != reader.schema.names:
        raise CorruptError(
            "staged file: not of this release",
            where=path,
            wanted=f"format {_FORMAT.decode()} or 1, with its columns",
            got=f"{metadata} with {', '.join(reader.schema.names)}",
        )
    return reader


def read_staged(disk: Disk, root: Path, files: Iterable[StagedFile]) -> Iterator[StagedBatch]:
    """Yield the rows of files, always in the same order. All files are checked first.

    One file is open at a time: a version may have more files than a process may open.
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
    columns = {name: batch.column(name) for name in COLUMNS if name in batch.schema.names}
    shared = metadata.get(b"properties", b"").decode()  # format 1
    return StagedBatch(
        topic=metadata[b"topic"].decode(),
        due_ms=batch.column("due_ms").to_numpy(),
        properties=pairs_of(shared) or None,
        **batch_columns(columns),
    )


def batch_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of rows as arguments of `StagedBatch`, without those that have no text."""
    given = {}
    for name, data, offsets in (
        ("body", "bodies", "body_offsets"),
        ("keys", "keys", "key_offsets"),
        ("tags", "tags", "tag_offsets"),
        ("message_ids", "message_ids", "message_id_offsets"),
        ("properties", "property_texts", "property_offsets"),
    ):
        if name not in columns:
            continue  # format 1
        spans = offsets_of(columns[name])
        if name == "body" or spans[-1] > spans[0]:
            given[data] = bytes_of(columns[name])
            given[offsets] = spans
    return given
