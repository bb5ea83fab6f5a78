"""Put the rows of a file into a store, each once: check them as Arrow batches, and ingest them.

JSON lines have the columns that `timerstore.shards` reads from Parquet. They may also have
`body_base64` and the output fields of `get --json`, which are ignored.

Invariants: the same file under the same run id gives the same rows in the same order. An import
    that is repeated after a crash therefore continues after the rows that are already stored.
Raises: CommandError with the file and line of an invalid row; ConfigError for invalid columns;
    MessageError for invalid rows.
"""

import base64
import binascii
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timerstore._engine.base.due_times import moment_ms
from timerstore._engine.storage.disk import Disk
from timerstore._engine.write.row_batch import StagedBatch
from timerstore.cli.exits import CommandError
from timerstore.cli.opening import opened_single, require
from timerstore.cli.progress import OnProgress
from timerstore.cli.text import plural
from timerstore.errors import ConfigError, MessageError
from timerstore.shards import commit, ingest, stage
from timerstore.shards.arrow_rows import Reader, Rows
from timerstore.shards.cluster import require as require_cluster
from timerstore.shards.kinds import Kind
from timerstore.shards.row_columns import check_columns
from timerstore.shards.staged_files import batch_columns
from timerstore.shards.write_options import WriteOptions
from timerstore.types.clock import SystemClock
from timerstore.types.config import StoreConfig

_BATCH_ROWS = 8192
_STDIN = Path("-")
_IGNORED = frozenset(
    {"shard", "queue_id", "queue_offset", "log_offset", "due", "delivered_ms", "lateness_ms"}
    | {"handle", "timer_id"}
)
_NAMES = {"topic", "body", "body_base64", "deliver_at", "deliver_ms", "due_ms", "key", "keys"}
_NAMES |= {"tags", "message_id", "properties"}
_WHEN = ("deliver_at", "deliver_ms", "due_ms")

_LINE_ERRORS = (ValueError, TypeError, binascii.Error, OverflowError, RecursionError)
"""The errors that a line can raise if it is not a message."""

_Row = tuple[int, dict[str, Any]]
"""The number of a line, and its fields as a row of SCHEMA."""

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("deliver_ms", pa.int64()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("message_id", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""The schema of rows that are read from JSON lines, and of rows that `export` writes."""


class Imported(NamedTuple):
    """The result of importing a file."""

    file: str
    run_id: str
    rows: int
    skipped: int
    first_skipped: str
    is_replay: bool


@dataclass
class RowSource:
    """A file, and the options for reading it."""

    file: Path
    topic: str = ""
    skip: bool = False
    run_id: str | None = None
    skipped: int = field(default=0, init=False)
    first_skipped: str = field(default="", init=False)

    def name(self) -> str:
        """Return the run id: the given one, or a digest of the file and the topic.

        Standard input gets a random run id.
        """
        if self.run_id is not None:
            return self.run_id
        if self.file == _STDIN:
            return f"import-{uuid.uuid4().hex[:16]}"
        with self.file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256")
        digest.update(self.topic.encode("utf-8", "surrogateescape"))
        return f"import-{digest.hexdigest()[:16]}"

    def batches(self, on_progress: OnProgress) -> Iterator[Any]:
        """Yield the rows as pyarrow batches of one schema."""
        if self.file != _STDIN and self.file.suffix.lower() in {".parquet", ".pq"}:
            yield from self._parquet(on_progress)
        else:
            yield from self._lines(on_progress)

    def _parquet(self, on_progress: OnProgress) -> Iterator[Any]:
        try:
            opened = pq.ParquetFile(pa.OSFile(os.fsencode(self.file)))
        except pa.ArrowInvalid as error:
            raise CommandError("not a Parquet file", where=self.file, got=error) from error
        done, total = 0, opened.metadata.num_rows
        names = opened.schema_arrow.names
        has_time = "deliver_at" in names or "deliver_ms" in names
        has_topic = "topic" in names or not self.topic
        for batch in opened.iter_batches(_BATCH_ROWS):
            if not has_time:
                now = pa.array(np.zeros(len(batch), np.int64))
                batch = batch.append_column("deliver_ms", now)  # noqa: PLW2901 - the same rows
            if not has_topic:
                topics = pa.repeat(self.topic, len(batch))
                batch = batch.append_column("topic", topics)  # noqa: PLW2901 - the same rows
            yield batch
            done += len(batch)
            on_progress(done, total)

    def _lines(self, on_progress: OnProgress) -> Iterator[Any]:
        done = 0
        for rows in _chunks(self._read_lines()):
            yield self._batch(rows)
            done += len(rows)
            on_progress(done, 0)

    def _batch(self, rows: list[_Row]) -> Any:
        try:
            return pa.RecordBatch.from_pylist([fields for _, fields in rows], schema=SCHEMA)
        except _LINE_ERRORS as error:
            if len(rows) > 1:
                for row in rows:  # find the invalid row
                    self._batch([row])
            raise self._line_error(rows[0][0], error) from error

    def _line_error(self, number: int, error: BaseException) -> CommandError:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        return CommandError(f"a line is not a message: {why}", where=f"{self.file} line {number}")

    def _read_lines(self) -> Iterator[_Row]:
        stream = sys.stdin.buffer if self.file == _STDIN else self.file.open("rb")
        with stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                try:
                    yield number, _row_of(json.loads(line), self.topic)
                except _LINE_ERRORS as error:
                    raise self._line_error(number, error) from error


def _chunks(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    chunk: list[_Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _BATCH_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


# --- JSON lines -----------------------------------------------------------------------------------


def _row_of(given: Any, topic: str) -> dict[str, Any]:
    """Return a line's object as a row of SCHEMA."""
    if not isinstance(given, dict):
        raise TypeError(f"wanted an object, got {type(given).__name__}")
    unknown = sorted(given.keys() - _NAMES - _IGNORED)
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(_NAMES))}")
    if "body" in given and "body_base64" in given:
        raise ValueError("body, body_base64: wanted one of them, got both")
    keys = given.get("keys", given.get("key"))
    return {
        "topic": _text(given, "topic") or topic or None,
        "body": _body(given),
        "deliver_ms": _when(given),
        "keys": [keys] if isinstance(keys, str) else keys,
        "tags": _text(given, "tags"),
        "message_id": _text(given, "message_id"),
        "properties": _pairs(given.get("properties")),
    }


def _body(given: dict[str, Any]) -> bytes | None:
    if "body_base64" in given:
        return base64.b64decode(given["body_base64"], validate=True)
    body = given.get("body")
    if isinstance(body, str):
        return body.encode()
    if body is None:
        raise ValueError("body: wanted body or body_base64, got neither")
    return json.dumps(body, ensure_ascii=False).encode()


def _text(given: dict[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}: wanted text, got {value!r}")
    return value


def _pairs(given: Any) -> list[tuple[str, str]] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise TypeError(f"properties: wanted an object, got {given!r}")
    return [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in given.items()
    ]


def _when(given: dict[str, Any]) -> int:
    """Return the due time in epoch ms; 0 means now."""
    found = [name for name in _WHEN if given.get(name) is not None]
    if len(found) > 1:
        raise ValueError(f"{', '.join(found)}: wanted one of them, got {len(found)}")
    if not found:
        return 0
    value = given[found[0]]
    if isinstance(value, str):
        time = datetime.fromisoformat(value)
        if time.tzinfo is None:
            raise ValueError(f"{found[0]}: wanted a time with its zone, got {value!r}")
        return moment_ms(found[0], time)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"{found[0]}: wanted a time, or epoch ms, got {value!r:.80}")
    return value


# --- putting --------------------------------------------------------------------------------------


def import_file(
    path: Path, config: StoreConfig | None, source: RowSource, on_progress: OnProgress
) -> Imported:
    """Put the rows of a file into a store, or stage them for the owners of shards.

    The rows are durable on return.
    """
    name = source.name()
    if require(path, Kind.STORE, Kind.SHARDS) is Kind.SHARDS:
        count, is_replay = _into_shards(path, source, name, on_progress)
    else:
        with opened_single(path, config) as store:
            batches = _row_batches(source, store.config, on_progress)
            receipt = store.ingest(name, 0, batches)
            count, is_replay = receipt.row_count, receipt.is_replay
            if is_replay:
                count = sum(map(len, _row_batches(source, store.config, on_progress)))
    return Imported(str(source.file), name, count, source.skipped, source.first_skipped, is_replay)


def _into_shards(
    path: Path, source: RowSource, name: str, on_progress: OnProgress
) -> tuple[int, bool]:
    on_invalid = "quarantine" if source.skip else "fail"
    config = require_cluster(Disk(), path).config
    batches = source.batches(on_progress)
    if source.skip:
        batches = _counting_skipped(source, config, batches)
    try:
        options = WriteOptions(on_invalid=on_invalid, write_id=name)
        part = stage(path, name, 0, "cli", batches, options)
        committed = commit(path, name, 0, [part], same_rows=True)
    except (ConfigError, MessageError) as error:
        # Use the names of the command line for the options of the write.
        text = str(error).replace("write_id", "--run-id")
        text = text.replace("on_invalid=quarantine", "--on-invalid skip")
        raise CommandError(text, where=source.file) from error
    ingest(path)
    return part.row_count, committed.is_replay


def _counting_skipped(
    source: RowSource, config: StoreConfig, batches: Iterator[Any]
) -> Iterator[Any]:
    """Yield the batches, and count the invalid rows, which staging does not report."""
    reader = Reader(config, WriteOptions())
    row = 0
    for k, batch in enumerate(batches):
        if not k:
            check_columns(batch.schema, WriteOptions())
        rows = reader.read(batch, SystemClock().now_ms)
        if rows.invalid.any():
            _skip_invalid(source, rows, row)
        row += len(batch)
        yield batch


def _row_batches(
    source: RowSource, config: StoreConfig, on_progress: OnProgress
) -> Iterator[StagedBatch]:
    """Check each batch, and split it by topic."""
    options = WriteOptions()
    reader = Reader(config, options)
    source.skipped, row = 0, 0
    for k, batch in enumerate(source.batches(on_progress)):
        if not k:
            check_columns(batch.schema, options)
        rows = reader.read(batch, SystemClock().now_ms)
        kept = np.flatnonzero(~rows.invalid)
        if len(kept) < len(rows):
            _skip_invalid(source, rows, row)
        topic_of = rows.topic_of[kept]
        order = np.argsort(topic_of, kind="stable")
        edges = np.flatnonzero(np.diff(topic_of[order])) + 1
        for part in np.split(order, edges):
            if len(part):
                yield _row_batch(rows, kept[part])
        row += len(rows)


def _skip_invalid(source: RowSource, rows: Rows, row: int) -> None:
    """Count the invalid rows; raise CommandError unless they are to be skipped."""
    invalid = np.flatnonzero(rows.invalid)
    first = f"row {row + int(invalid[0]) + 1:,}: {rows.reason(int(invalid[0]))}"
    if not source.skip:
        raise CommandError(
            f"{plural(len(invalid), 'invalid row')}, the first: {first}",
            where=source.file,
            do="correct the file and import it again, or use --on-invalid skip",
        )
    source.first_skipped = source.first_skipped or first
    source.skipped += len(invalid)


def _row_batch(rows: Rows, at: Any) -> StagedBatch:
    """Return the rows `at` as one batch; all have the same topic, and valid due times."""
    columns = {name: column.take(pa.array(at)) for name, column in rows.columns.items()}
    return StagedBatch(
        topic=rows.topics[int(rows.topic_of[at[0]])],
        due_ms=rows.due_ms[at],
        **batch_columns(columns),
    )
