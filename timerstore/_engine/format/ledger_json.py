"""Records of the ingest ledger: the bodies of the messages of its topic.

Raises: CorruptError on a body that is neither kind of record.
On-disk format: JSON in ASCII, without spaces. The header of a chunk is the first record of the
    chunk's atomic group:

        {"format":1,"source":"orders","version":7,"chunk":0,"rows":4000,"rows_so_far":4000,
         "bytes":1234567,"digest":"0123456789abcdef","last":false}

        bytes       size of the chunk's messages in the log
        digest      of all rows of the version so far (ts_batch_digest)

    The state of a source replaces all headers before it:

        {"format":1,"source":"orders","versions":[[0,7]],"done":[[6,9000,"..."],...],
         "open":[[7,2,8000,"..."]]}

        versions    complete versions, as ranges [first, end)
        done        version, rows and digest of the last complete versions
        open        version, chunks, rows and digest of incomplete versions
"""

from typing import NamedTuple

from timerstore._engine.format.json_text import Json, as_int, as_table, loads, one_line
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore.errors import CorruptError, newer_format

FORMAT = 1


class ChunkHeader(NamedTuple):
    """The header of a chunk."""

    source: str
    version: int
    chunk: int
    rows: int
    rows_so_far: int
    bytes: int
    digest: int
    last: bool


class Done(NamedTuple):
    """A complete version."""

    version: int
    row_count: int
    digest: int


class Begun(NamedTuple):
    """A version with missing chunks."""

    version: int
    chunk_count: int
    row_count: int
    digest: int


class SourceState(NamedTuple):
    """The state of a source."""

    source: str
    versions: tuple[tuple[int, int], ...]
    done: tuple[Done, ...]
    open: tuple[Begun, ...]


def write_chunk(header: ChunkHeader) -> bytes:
    """Return a header's text."""
    fields = header._asdict() | {"digest": f"{header.digest:016x}"}
    return one_line({"format": FORMAT, **fields})


def state_table(state: SourceState) -> Json:
    """Return a source's state as a JSON object."""
    return {
        "source": state.source,
        "versions": [list(each) for each in state.versions],
        "done": [[d.version, d.row_count, f"{d.digest:016x}"] for d in state.done],
        "open": [[b.version, b.chunk_count, b.row_count, f"{b.digest:016x}"] for b in state.open],
    }


def write_state(state: SourceState) -> bytes:
    """Return a state's text."""
    return one_line({"format": FORMAT, **state_table(state)})


def read(text: bytes) -> ChunkHeader | SourceState:
    """Parse a record of either kind.

    Raises:
        CorruptError: it is neither.
        FormatVersionError: its format is unknown.
    """
    table = loads(text)
    if (version := as_int(table.get("format"), "format")) != FORMAT:
        raise newer_format(
            "ledger: a record of another version",
            table.get("release"),
            where=INGEST_TOPIC,
            wanted=FORMAT,
            got=version,
        )
    try:
        return state_of(table) if "versions" in table else _chunk_of(table)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"ledger: an invalid record ({error!r})", got=text[:200]) from error


def state_of(table: object) -> SourceState:
    """Parse a state.

    Raises:
        KeyError, TypeError, ValueError: it is not a state.
    """
    fields = as_table(table, "source")
    return SourceState(
        _text(fields["source"]),
        tuple((_number(begin), _number(end)) for begin, end in fields["versions"]),
        tuple(Done(_number(v), _number(n), int(d, 16)) for v, n, d in fields["done"]),
        tuple(
            Begun(_number(v), _number(k), _number(n), int(d, 16)) for v, k, n, d in fields["open"]
        ),
    )


def _chunk_of(table: Json) -> ChunkHeader:
    return ChunkHeader(
        source=_text(table["source"]),
        version=_number(table["version"]),
        chunk=_number(table["chunk"]),
        rows=_number(table["rows"]),
        rows_so_far=_number(table["rows_so_far"]),
        bytes=_number(table["bytes"]),
        digest=int(table["digest"], 16),
        last=table["last"] is True,
    )


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
