"""Rows that a test ingests, their computed receipts, and an end at a fail point."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.inside import failpoints
from timerstore import PutReceipt, RowBatch, StoreConfig
from timerstore.types.receipts import KeptOrigin

TOPIC = "bulk"


def id_of(body: bytes) -> str:
    """Return the message id of a row."""
    return f"row-{body[:6].decode()}"


def version_of(body: bytes, due_ms: int, waits: bool, config: StoreConfig) -> PutReceipt:
    """What a receipt of a row would say, but for its place."""
    origin = KeptOrigin(TOPIC, id_of(body), config.broker_name, config.precision_ms)
    return PutReceipt(origin, 0, 0 if waits else -1, 0, None if waits else 0, 2**62, due_ms)


@dataclass
class Version:
    """Rows: body and due time, 0 for now."""

    rows: list[tuple[bytes, int]]
    is_sure: bool = False  # an ingest answered for it

    def batches(self, cut: int) -> Iterator[RowBatch]:
        """The rows, so many a batch."""
        for at in range(0, len(self.rows), cut):
            part = self.rows[at : at + cut]
            bodies = [body for body, _ in part]
            keys = [b"key-%d" % (int(body[:6]) % 5) for body in bodies]
            ids = [id_of(body).encode() for body in bodies]
            yield RowBatch(
                TOPIC,
                b"".join(bodies),
                np.cumsum([0, *map(len, bodies)]),
                np.array([due_ms for _, due_ms in part], np.int64),
                keys=b"".join(keys),
                key_offsets=np.cumsum([0, *map(len, keys)]),
                message_ids=b"".join(ids),
                message_id_offsets=np.cumsum([0, *map(len, ids)]),
            )


def column(texts: list[bytes]) -> tuple[bytes, Any]:
    return b"".join(texts), np.cumsum([0, *map(len, texts)])


def batch_of(
    bodies: list[bytes], due_ms: list[int] | None = None, topic: str = "t", **given: Any
) -> RowBatch:
    """Return a batch of rows, with `keys`, `tags` and `ids` as lists of bytes."""
    columns: dict[str, Any] = {}
    for name, texts, offsets in (
        ("keys", "keys", "key_offsets"),
        ("tags", "tags", "tag_offsets"),
        ("ids", "message_ids", "message_id_offsets"),
    ):
        if name in given:
            columns[texts], columns[offsets] = column(given.pop(name))
    data, offsets = column(bodies)
    due = np.array(due_ms if due_ms is not None else [0] * len(bodies), np.int64)
    return RowBatch(topic, data, offsets, due, **columns, **given)


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"row-%06d" % k for k in range(begin, end)]


class StopError(Exception):
    pass


def stop_at(point: str, nth: int) -> None:
    passed = iter(range(1, 1000))

    def hook(name: str) -> None:
        if name == point and next(passed) == nth:
            raise StopError

    failpoints.hook = hook
