"""One version of a source as a test ingests it: its rows and their computed receipts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from timerstore import PutReceipt, RowBatch, StoreConfig
from timerstore.receipts import KeptOrigin

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
