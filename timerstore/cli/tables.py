"""dump, export: tables of a store's files, as JSON lines or Parquet; read beside its owner."""

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
from timerstore._engine.snapshot.columns.cancelled import cancelled_offsets
from timerstore._engine.snapshot.columns.damage_policy import ON_CORRUPT, OnCorrupt
from timerstore._engine.snapshot.columns.schemas import TABLES, chosen
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, Wanted
from timerstore._engine.snapshot.store_summary import look
from timerstore._engine.storage.disk import Disk
from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.import_rows import SCHEMA
from timerstore.cli.opening import stores_in
from timerstore.cli.output import emit, say
from timerstore.cli.params import COUNT, FOLDER, json_option, path_argument
from timerstore.cli.progress import Tell, progress
from timerstore.cli.stopping import stopping
from timerstore.cli.text import body_fields, iso, plural, size_text
from timerstore.cli.waiting import waiting
from timerstore.shards.pending_ingest import refuse_pending

WAITING = "waiting"
_PATIENCE_S = 10.0  # for who has shards open to take in what is committed
_PLACES = {
    "messages": "log_offset",
    "deliveries": "log_offset",
    "timers": "timer_pos",
    "slots": "slot",
}


class Asked(NamedTuple):
    """What is read."""

    table: str
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    on_corrupt: OnCorrupt

    @property
    def wanted(self) -> Wanted:
        """The same as the reader takes it."""
        names = tuple(one.name for one in chosen(self.table, self.columns or None))
        bounds = Bounds(topics=self.topics or None)
        return Wanted(self.table, names, bounds, on_corrupt=self.on_corrupt)

    @property
    def schema(self) -> Any:
        """Arrow's, of what comes out."""
        return SCHEMA if self.table == WAITING else schema_of(self.wanted)


def _table_options(command: Any) -> Any:
    for one in (
        click.option("--topic", "topics", multiple=True, help="Of this topic; may come again."),
        click.option("--columns", default="", help="These only: a,b,c."),
        click.option(
            "--on-corrupt",
            type=click.Choice(ON_CORRUPT),
            default="fail",
            show_default=True,
            help="At damage: fail, skip to the next record, or stop there.",
        ),
    ):
        command = one(command)
    return command


def _asked(table: str, topics: tuple[str, ...], columns: str, on_corrupt: OnCorrupt) -> Asked:
    names = tuple(one.strip() for one in columns.split(",") if one.strip())
    if table == WAITING and names:
        raise click.UsageError("--columns: what waits comes with all its columns")
    if topics and table not in ("messages", "deliveries", WAITING):
        raise click.UsageError(f"--topic: table {table} has none")
    if not all(map(is_utf8, topics)):
        raise click.UsageError(f"--topic: half a surrogate pair in {topics}")
    asked = Asked(table, topics, names, on_corrupt)
    if table != WAITING:
        chosen(table, names or None)  # raises
    return asked


def _batches(path: Path, asked: Asked, tell: Tell) -> Iterator[Any]:
    """Give the rows of every store in a folder."""
    for shard, one in stores_in(path).items():
        store = look(one).store
        if asked.table == WAITING:
            yield from _of_topics(waiting(store, tell), asked.topics)
            continue
        wanted = asked.wanted
        cancelled = None
        if "cancelled" in wanted.columns:
            cancelled = cancelled_offsets(store, on_corrupt=asked.on_corrupt)
        part = Part.whole(store, asked.table, shard or 0)
        place = _PLACES.get(asked.table)
        for batch in read_part(part, wanted, cancelled):
            yield batch
            if place in wanted.columns and len(batch):
                at = batch.column(wanted.columns.index(place))[-1].as_py()
                tell(at - part.begin, part.end - part.begin)


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
    """A row as JSON has it: times in UTC, texts where bytes are UTF-8, base64 else."""
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
@path_argument
@click.argument("table", type=click.Choice([*TABLES, WAITING]), default="messages")
@click.option("-n", "--max", "max_count", type=COUNT, help="End after so many rows.")
@_table_options
@click.option("--json", "as_json", is_flag=True, help="It is always JSON.")
def dump_command(
    path: Path,
    table: str,
    max_count: int | None,
    topics: tuple[str, ...],
    columns: str,
    on_corrupt: OnCorrupt,
    as_json: bool,  # noqa: ARG001 - as every command
) -> None:
    """Write a table of a store as JSON lines: its records as they lie in its files.

    messages: each record of the log; timers: each unit of the timer log; slots: the wheel's slots
    in use; deliveries: what came out; transactions: what was ingested; waiting: what waits.
    """
    asked = _asked(table, topics, columns, on_corrupt)
    left = max_count
    for batch in _batches(path, asked, lambda _done, _total: None):
        for row in batch.to_pylist():
            emit(row_fields(row))
            if left is not None:
                left -= 1
                if not left:
                    return


# --- export ---------------------------------------------------------------------------------------


@click.command("export")
@path_argument
@click.argument("target", type=FOLDER)
@click.option(
    "--table",
    type=click.Choice([WAITING, *TABLES]),
    default=WAITING,
    show_default=True,
    help="waiting: what waits, as `import` takes it; or a table of the files.",
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
    """Write what waits, or a table, into TARGET: .parquet, or .jsonl.

    TARGET is there only when it is whole, and durable on return. What waits of shards is refused
    while rows are handed to them that their owners have not taken in.
    """
    asked = _asked(table, topics, columns, on_corrupt)
    open_writer = _WRITERS.get(target.suffix.lower())
    if open_writer is None:
        raise CommandError(
            "cannot tell the format", where=target, wanted=f"a name with {', '.join(_WRITERS)}"
        )
    if table == WAITING:
        refuse_pending(path, _PATIENCE_S)
    part = target.with_name(f"{target.name}.part")
    with _alone(part):
        try:
            rows = _write(path, asked, part, open_writer)
            part.replace(target)
        except BaseException as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(part)  # a write's, which has but a descriptor
            part.unlink(missing_ok=True)
            raise
    Disk().sync_name(target)
    size = target.stat().st_size
    if as_json:
        emit({"file": str(target), "table": table, "rows": rows, "bytes": size})
    else:
        say(f"wrote {plural(rows, 'row')} of {table} to {target}, {size_text(size)}")


def _write(path: Path, asked: Asked, part: Path, open_writer: Any) -> int:
    """Write all rows; how many."""
    rows = 0
    with (
        stopping() as stop,
        progress(f"exporting {asked.table}", stop=stop) as tell,
        open_writer(part, asked.schema) as write,
    ):
        for batch in _batches(path, asked, tell):
            write(batch)
            rows += len(batch)
            stop.check()
    return rows


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Hold it: another export into the same file would write among its rows, also behind its end,
    when it has its name. Where the file system has no such lock there is none.
    """
    with _opened(part) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _no_file(part)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(part.stat(), os.fstat(file.fileno()))
        except (BlockingIOError, FileNotFoundError):  # at work, or just through
            is_ours = False
        except OSError:
            is_ours = True
        if not is_ours:
            raise CommandError(
                "another export writes the same file",
                where=part,
                do="try again when it is done",
                code=Exit.LATER,
            )
        yield


def _opened(part: Path) -> BinaryIO:
    """Open it without waiting: a FIFO of that name would be one that nobody reads."""

    def without_waiting(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK, 0o666)

    try:
        return open(part, "ab", opener=without_waiting)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _no_file(part) from error
        raise


def _no_file(part: Path) -> CommandError:
    return CommandError(
        "the export is written beside its target, where something else stands",
        where=part,
        wanted="a file, or nothing",
        got="a FIFO, a device or a socket",
    )


Write = Callable[[Any], None]


@contextmanager
def _parquet(part: Path, schema: Any) -> Iterator[Write]:
    with (
        pa.OSFile(os.fsencode(part), "wb") as file,  # of a name that is no UTF-8, too
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
