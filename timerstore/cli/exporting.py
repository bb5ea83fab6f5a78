"""Commands `dump` and `export`: write tables of a store's files as JSON lines or Parquet.

Thread safety: both read a snapshot and take no lock on the store.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq

from timerstore._engine.base.message_fields import is_utf8
from timerstore._engine.snapshot.columns.arrow_batches import read_part, schema_of
from timerstore._engine.snapshot.columns.pending_set import facts_for
from timerstore._engine.snapshot.columns.schemas import TABLES, chosen
from timerstore._engine.snapshot.columns.table_scan import (
    ON_CORRUPT,
    Bounds,
    OnCorrupt,
    Part,
    Wanted,
)
from timerstore._engine.snapshot.live_stats import take_newest
from timerstore._engine.storage.disk import Disk
from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.import_rows import SCHEMA
from timerstore.cli.opening import stores_in
from timerstore.cli.output import emit, say
from timerstore.cli.params import COUNT, FOLDER, files_argument, json_option
from timerstore.cli.pending_rows import pending_rows
from timerstore.cli.progress import OnProgress, progress
from timerstore.cli.stopping import stopping
from timerstore.cli.text import body_fields, iso, plural, size_text
from timerstore.shards.pending_ingest import refuse_pending

PENDING = "pending"
_PENDING_WAIT_S = 10.0  # for the owners of shards to ingest committed rows
_PLACES = {
    "messages": "log_offset",
    "deliveries": "log_offset",
    "timers": "log_offset",
    "timer_units": "timer_pos",
    "slots": "slot",
}


class Request(NamedTuple):
    """The table, topics and columns to read."""

    table: str
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    on_corrupt: OnCorrupt

    @property
    def wanted(self) -> Wanted:
        """Return the request in the form of the table reader."""
        names = tuple(one.name for one in chosen(self.table, self.columns or None))
        bounds = Bounds(topics=self.topics or None)
        return Wanted(self.table, names, bounds, on_corrupt=self.on_corrupt)

    @property
    def schema(self) -> Any:
        """Return the Arrow schema of the rows."""
        return SCHEMA if self.table == PENDING else schema_of(self.wanted)


def _table_options(command: Any) -> Any:
    for one in (
        click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable."),
        click.option("--columns", default="", help="Only these columns: a,b,c."),
        click.option(
            "--on-corrupt",
            type=click.Choice(ON_CORRUPT),
            default="fail",
            show_default=True,
            help="At damage, fail, skip to the next record, or stop reading.",
        ),
    ):
        command = one(command)
    return command


def _request(table: str, topics: tuple[str, ...], columns: str, on_corrupt: OnCorrupt) -> Request:
    names = tuple(one.strip() for one in columns.split(",") if one.strip())
    if table == PENDING and names:
        raise click.UsageError("--columns: table pending has a fixed set of columns")
    if topics and table not in ("messages", "timers", "deliveries", PENDING):
        raise click.UsageError(f"--topic: table {table} has no topics")
    if not all(map(is_utf8, topics)):
        raise click.UsageError(f"--topic: half a surrogate pair in {topics}")
    request = Request(table, topics, names, on_corrupt)
    if table != PENDING:
        chosen(table, names or None)  # raises for an unknown column
    return request


def _batches(path: Path, request: Request, on_progress: OnProgress) -> Iterator[Any]:
    """Yield the rows of each store in a directory."""
    for shard, one in stores_in(path).items():
        store = take_newest(one)
        if request.table == PENDING:
            yield from _of_topics(pending_rows(store, on_progress), request.topics)
            continue
        wanted = request.wanted
        store, facts = facts_for(store, wanted, shard or 0, is_pinned=False)
        part = Part.whole(store, request.table, shard or 0)
        place = _PLACES.get(request.table)
        for batch in read_part(part, wanted, facts):
            yield batch
            if place in wanted.columns and len(batch):
                at = batch.column(wanted.columns.index(place))[-1].as_py()
                on_progress(at - part.begin, part.end - part.begin)


def _of_topics(batches: Iterator[Any], topics: tuple[str, ...]) -> Iterator[Any]:
    for batch in batches:
        if not topics:
            yield batch
            continue
        names = batch.column(0).to_pylist()
        yield batch.take(
            pa.array([k for k, name in enumerate(names) if name in topics], pa.int64())
        )


def row_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON fields of a row: times in UTC, bytes as text or base64."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            [(kind, text)] = body_fields(value).items()
            fields[name + kind.removeprefix("body")] = text
        elif hasattr(value, "timestamp"):
            fields[name] = iso(round(value.timestamp() * 1000))
        elif name == "properties":
            fields[name] = dict(value or ())
        else:
            fields[name] = value
    return fields


# --- dump -----------------------------------------------------------------------------------------


@click.command("dump")
@files_argument("a table is read from the files of a store, also while it is served")
@click.argument("table", type=click.Choice([*TABLES, PENDING]), default="messages")
@click.option("-n", "--max", "max_count", type=COUNT, help="Write at most so many rows.")
@_table_options
@click.option("--json", "as_json", is_flag=True, help="No effect: the output is always JSON.")
def dump_command(
    path: Path,
    table: str,
    max_count: int | None,
    topics: tuple[str, ...],
    columns: str,
    on_corrupt: OnCorrupt,
    as_json: bool,  # noqa: ARG001 - every command has it
) -> None:
    """Write a table of a store's files as JSON lines.

    \b
    messages      records of the commit log
    timers        pending messages, without their bodies
    timer_units   units of the timer log
    slots         slots of the timing wheel that are in use
    deliveries    delivered messages
    transactions  ingested versions
    pending       pending messages with their bodies, as `import` reads them
    """  # noqa: D301 - click needs the character \b
    request = _request(table, topics, columns, on_corrupt)
    left = max_count
    for batch in _batches(path, request, lambda _done, _total: None):
        for row in batch.to_pylist():
            emit(row_fields(row))
            if left is not None:
                left -= 1
                if not left:
                    return


# --- export ---------------------------------------------------------------------------------------


@click.command("export")
@files_argument("a table is read from the files of a store, also while it is served")
@click.argument("target", type=FOLDER)
@click.option(
    "--table",
    type=click.Choice([PENDING, *TABLES]),
    default=PENDING,
    show_default=True,
    help="pending: pending messages, as `import` reads them; or a table of the files.",
)
@_table_options
@json_option
def export_command(
    path: Path,
    target: Path,
    table: str,
    topics: tuple[str, ...],
    columns: str,
    on_corrupt: OnCorrupt,
    as_json: bool,
) -> None:
    """Export pending messages, or a table, to TARGET, a .parquet or .jsonl file.

    TARGET appears when it is complete, and is durable on return. The export of pending messages
    from shards fails while their owners have not ingested all committed rows.
    """
    request = _request(table, topics, columns, on_corrupt)
    open_writer = _WRITERS.get(target.suffix.lower())
    if open_writer is None:
        raise CommandError(
            "unknown file format", where=target, wanted=f"a name with {', '.join(_WRITERS)}"
        )
    if table == PENDING:
        refuse_pending(path, _PENDING_WAIT_S)
    part = target.with_name(f"{target.name}.part")
    with _locked(part):
        try:
            rows = _write(path, request, part, open_writer)
            part.replace(target)
        except BaseException as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(part)  # a failed write has only a descriptor
            part.unlink(missing_ok=True)
            raise
    Disk().sync_name(target)
    size = target.stat().st_size
    if as_json:
        emit({"file": str(target), "table": table, "rows": rows, "bytes": size})
    else:
        say(f"wrote {plural(rows, 'row')} of {table} to {target}, {size_text(size)}")


def _write(path: Path, request: Request, part: Path, open_writer: Any) -> int:
    """Write all rows and return their number."""
    rows = 0
    with (
        stopping() as stop,
        progress(f"exporting {request.table}", stop=stop) as on_progress,
        open_writer(part, request.schema) as write,
    ):
        for batch in _batches(path, request, on_progress):
            write(batch)
            rows += len(batch)
            stop.check()
    return rows


@contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Lock the partial file, so that a second export to the same target cannot write to it.

    Without the lock the second export could also append to the file after it was renamed. On a file
    system without such locks nothing is locked.
    """
    with _opened(part) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _not_a_file(part)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(part.stat(), os.fstat(file.fileno()))
        except (BlockingIOError, FileNotFoundError):  # locked, or just renamed
            is_ours = False
        except OSError:
            is_ours = True
        if not is_ours:
            raise CommandError(
                "another export writes the same file",
                where=part,
                do="try again when it has ended",
                code=Exit.LATER,
            )
        yield


def _opened(part: Path) -> BinaryIO:
    """Open the file without blocking: opening a FIFO without a reader would block."""

    def open_nonblocking(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK, 0o666)

    try:
        return open(part, "ab", opener=open_nonblocking)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _not_a_file(part) from error
        raise


def _not_a_file(part: Path) -> CommandError:
    return CommandError(
        "the export needs this path for its partial file, but it is not a regular file",
        where=part,
        wanted="no file, or a regular file",
        got="a FIFO, a device or a socket",
    )


Write = Callable[[Any], None]


@contextmanager
def _parquet(part: Path, schema: Any) -> Iterator[Write]:
    with (
        pa.OSFile(os.fsencode(part), "wb") as file,  # also for a name that is not UTF-8
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        yield writer.write_batch
    _sync(part)


@contextmanager
def _lines(part: Path, _schema: Any) -> Iterator[Write]:
    with part.open("w", encoding="utf-8") as file:

        def write(batch: Any) -> None:
            for row in batch.to_pylist():
                file.write(json.dumps(row_fields(row), ensure_ascii=False) + "\n")

        yield write
    _sync(part)


def _sync(part: Path) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())


_WRITERS = {
    ".parquet": _parquet,
    ".pq": _parquet,
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".json": _lines,
}
