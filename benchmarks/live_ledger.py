"""The schedule, message bodies and ledger that the processes of demo_live share.

The ledger is a file of 24-byte records. The child appends each with one write(): INTENT before
put_many and ACKED after it returned, the same for each cancel, and OPENED when a store is ready.
After SIGKILL the ledger is still in the page cache, as the files of the store are.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import audit, harness

TOPIC = "live-reminder"
PULL_COUNT_MAX = 10_000
PUT_EVERY_S = 0.01
POLL_S = 0.002
"""Sleep of the consumer after an empty pull. Its own lateness is at least half of this."""

DELAY_MS_MAX = 3_000
"""The maximum delay after the planned put. The minimum is a third of it."""

GRACE_S = 30.0
"""Time for the child to deliver everything after the last due time."""

STARTING_MS = 1_500
"""Time for the first child to start before the first put."""

LIVES_MAX = 9
LEDGER = "ledger"
SEEN = "seen"
STORE = "store"
RECORD = struct.Struct("<bxxxIQq")
"""Kind, life, first row or 0, and a count or a time in epoch ms. A life is one child process."""

INTENT, ACKED, OPENED, CANCEL_INTENT, CANCELLED, TOO_LATE, REFUSED = range(1, 8)
CANCEL_EVERY = 100

Int64 = NDArray[np.int64]
RECORD_TYPE = np.dtype(
    [("kind", "i1"), ("pad", "V3"), ("life", "<u4"), ("row", "<u8"), ("value", "<i8")]
)
SEEN_TYPE = np.dtype([("offset", "<i8"), ("id", "<i8"), ("seen_ms", "<i8")])


def wall_ms() -> int:
    """Return the wall clock, which all lives share."""
    return time.time_ns() // 1_000_000


class Schedule(NamedTuple):
    """Planned put time and due time of each row; the seed makes them equal in every process."""

    put_ms: Int64
    due_ms: Int64

    @classmethod
    def of(cls, n: int, seconds: float, start_ms: int, delay_ms: int) -> Schedule:
        """Plan evenly spaced puts with random delays."""
        put = start_ms + (np.arange(n) * (seconds * 1000.0 / n)).astype(np.int64)
        random = np.random.default_rng(harness.SEED)
        return cls(put, put + random.integers(delay_ms // 3, delay_ms + 1, size=n))


def body_of(row: int, life: int) -> bytes:
    """Return a body of 128 bytes, with the row in eight columns and the life in one."""
    text = f'{{"row":{row:8d},"life":{life:1d},"text":"remember number {row}"'
    return text.ljust(127).encode() + b"}"


def ids_of(bodies: NDArray[np.uint8], offsets: Int64, n: int) -> Int64:
    """Return life * n + row of each body, or -1 if the body has none."""
    begins = offsets[:-1]
    rows = audit.digits(bodies, begins, (7, 15))
    lives = audit.digits(bodies, begins, (23, 24))
    good = (rows >= 0) & (rows < n) & (lives >= 0) & (lives < LIVES_MAX)
    return np.where(good, lives * n + rows, -1)


def ledger_of(root: Path) -> NDArray[Any]:
    """Read the complete records. A kill can cut off the last write()."""
    path = root / LEDGER
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data[: len(data) // RECORD.size * RECORD.size], dtype=RECORD_TYPE)
