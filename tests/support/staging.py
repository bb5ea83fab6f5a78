"""Rows to stage, and a taker that counts what it was given."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import timerstore
from tests.support.bench import NOW, small
from tests.support.inside import Disk
from timerstore._engine.write.row_batch import RowBatch, StagedBatch
from timerstore.shards import Committed, Staged, StagedFile, WriteOptions, commit, row_staging
from timerstore.shards.staged_files import pairs_of, read_staged
from timerstore.testing import ManualClock

UTC_US = pa.timestamp("us", tz="UTC")


def make_root(path: Path, n: int = 3, **changes: Any) -> Path:
    """Make a directory of small shards, and close them."""
    clock = ManualClock(NOW)
    timerstore.open_shards(path, n, small(**changes), clock=clock, threads=False).close()
    return path


def batch_of(count: int = 20, first: int = 0, **columns: Any) -> pa.RecordBatch:
    """Return rows from number `first` on, of topic t, due second by second."""
    numbers = range(first, first + count)
    table: dict[str, Any] = {
        "topic": pa.array(["t"] * count),
        "body": pa.array([b"body-%d" % k for k in numbers], pa.binary()),
        "deliver_at": pa.array([(NOW + 1000 * (k + 1)) * 1000 for k in numbers], UTC_US),
        "key": pa.array([f"key-{k}" for k in numbers]),
    }
    table |= {
        name: one if isinstance(one, pa.Array) else pa.array(one) for name, one in columns.items()
    }
    return pa.record_batch({name: one for name, one in table.items() if len(one)})


class Row(tuple[Any, ...]):
    """One row as it is stored: topic, body, due time, keys, tags, message id, properties."""

    __slots__ = ()


def rows_of(batches: Iterable[RowBatch]) -> list[Row]:
    """Return every row of some batches."""
    found = []
    for batch in batches:
        for k in range(len(batch)):
            texts = [
                _text(data, offsets, k)
                for data, offsets in (
                    (batch.keys, batch.key_offsets),
                    (batch.tags, batch.tag_offsets),
                    (batch.message_ids, batch.message_id_offsets),
                )
            ]
            body = bytes(batch.bodies[batch.body_offsets[k] : batch.body_offsets[k + 1]])
            properties = tuple(sorted(_properties(batch, k).items()))
            found.append(Row((batch.topic, body, int(batch.due_ms[k]), *texts, properties)))
    return found


def _properties(batch: RowBatch, k: int) -> dict[str, str]:
    found = dict(batch.properties or {})
    if isinstance(batch, StagedBatch):
        found |= pairs_of(_text(batch.property_texts, batch.property_offsets, k))
    return found


def _text(data: Any, offsets: Any, k: int) -> str:
    return "" if data is None else bytes(data[offsets[k] : offsets[k + 1]]).decode()


def staged_rows(root: Path, files: Sequence[StagedFile], shard: int | None = None) -> list[Row]:
    """Return every row that files have for a shard, or for all shards."""
    mine = [one for one in files if one.shard == shard or (shard is None and one.shard >= 0)]
    return rows_of(read_staged(Disk(), root, mine))


def counted(rows: Iterable[Row]) -> Counter[bytes]:
    """Count the rows of each body."""
    return Counter(row[1] for row in rows)


_attempts = iter(range(1_000_000))


def stage(
    root: Path, batches: list[Any], version: int = 0, source: str = "s", **options: Any
) -> Staged:
    """Stage batches as a new attempt of a version."""
    attempt = f"a{next(_attempts)}"
    given = WriteOptions(**options)
    return row_staging.stage(root, source, version, attempt, batches, given, clock=ManualClock(NOW))


def write_rows(
    root: Path, batches: list[Any], version: int = 0, source: str = "s", **options: Any
) -> Committed:
    """Stage batches as a new attempt, and commit the version."""
    staged = stage(root, batches, version, source, **options)
    return commit(root, source, version, [staged], clock=ManualClock(NOW))


def staged_names(root: Path) -> list[str]:
    """Return the names of all staged files."""
    return sorted(one.name for one in (root / "_ingest/staging").rglob("*.arrow"))


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return Disk().list(folder)


def flipped(data: bytes, at: int) -> bytes:
    """Return data with one bit changed."""
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
