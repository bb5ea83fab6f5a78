"""Create the messages of a benchmark from a fixed seed, and compare work by digests."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEED = 20131
"""The seed of all random numbers, so that runs with equal parameters do equal work."""

START_MS = 1_700_000_000_000
"""The start of manual clocks: a fixed day, and a multiple of the wheel's precision."""

_OVERHEAD_BYTES = 800  # of a message, in addition to twice its body; rounded up

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class WorkError(RuntimeError):
    """The store or a peer did other work than requested."""


def filled_bytes(n: int, body: int) -> int:
    """Return the maximum disk usage of `n` messages, from put until after delivery."""
    return n * (2 * body + _OVERHEAD_BYTES)


def need(condition: bool, what: str) -> None:
    """Raise WorkError(what) unless the condition holds, also under python -O."""
    if not condition:
        raise WorkError(what)


class Work(NamedTuple):
    """Messages to schedule: row i is body i of `buffer`, due at due_ms[i].

    A body starts with its row as a little-endian u64; the rest is noise that does not compress.
    """

    n: int
    body_bytes: int
    buffer: bytes
    offsets: Int64
    due_ms: Int64

    def bodies(self, begin: int, end: int) -> list[bytes]:
        """Return the bodies of rows begin to end as separate bytes objects."""
        size = self.body_bytes
        return [self.buffer[at * size : (at + 1) * size] for at in range(begin, end)]

    def part(self, begin: int, end: int) -> tuple[memoryview, Int64]:
        """Return the bodies of rows begin to end as one buffer, with n + 1 offsets."""
        size = self.body_bytes
        view = memoryview(self.buffer)[begin * size : end * size]
        return view, self.offsets[begin : end + 1] - self.offsets[begin]

    def due_order(self) -> Int64:
        """Return the rows in the required delivery order: by due time, then by put."""
        return np.argsort(self.due_ms, kind="stable").astype(np.int64)


def make_work(n: int, body_bytes: int, horizon_ms: int, *, start_ms: int = START_MS) -> Work:
    """Create messages with uniform due times in (start, start + horizon]."""
    need(body_bytes >= 8, "a body must hold its row number: 8 bytes")
    random = np.random.default_rng(SEED)
    matrix = random.integers(0, 256, size=(n, body_bytes), dtype=np.uint8)
    matrix[:, :8] = np.arange(n, dtype="<u8").view(np.uint8).reshape(n, 8)
    due = start_ms + random.integers(1, horizon_ms + 1, size=n, dtype=np.int64)
    offsets = np.arange(n + 1, dtype=np.int64) * body_bytes
    return Work(n, body_bytes, matrix.tobytes(), offsets, due)


def rows_of(bodies: bytes | bytearray | memoryview, body_bytes: int) -> Int64:
    """Return the row numbers of consecutive bodies of one length."""
    matrix = np.frombuffer(bodies, dtype=np.uint8).reshape(-1, body_bytes)
    return np.ascontiguousarray(matrix[:, :8]).view("<u8").reshape(-1).astype(np.int64)


def digest(*parts: bytes | bytearray | memoryview | NDArray[Any] | str) -> str:
    """Return 16 hex digits that depend on the parts, their order and their lengths."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, str):
            data: bytes | memoryview = part.encode()
        elif isinstance(part, np.ndarray):
            data = np.ascontiguousarray(part).tobytes()
        else:
            data = memoryview(part)
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()
