"""Compare delivered messages with the messages that were put, without using the store's own counts.

Ids are small integers in the bodies, and index the arrays.

Invariants:
    1. Every figure is computed from ids and times of pulled messages.
    2. Deliveries of unknown ids and of changed bodies are counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Pulled:
    """Collect the pulled messages, batch by batch."""

    def __init__(self) -> None:
        self._ids: list[Int64] = []
        self._delivered: list[Int64] = []
        self._seen: list[Int64] = []
        self.altered = 0
        self.count = 0

    def add(self, ids: Int64, delivered_ms: Int64, seen_ms: int, altered: int = 0) -> None:
        """Add one batch, with the clock time of its pull."""
        self._ids.append(np.array(ids, dtype=np.int64))
        self._delivered.append(np.array(delivered_ms, dtype=np.int64))
        self._seen.append(np.full(len(ids), seen_ms, dtype=np.int64))
        self.altered += altered
        self.count += len(ids)

    @property
    def ids(self) -> Int64:
        """The ids in the order of their pulls."""
        return _joined(self._ids)

    @property
    def delivered_ms(self) -> Int64:
        """The delivery time in each message."""
        return _joined(self._delivered)

    @property
    def seen_ms(self) -> Int64:
        """The clock time of the pull of each message."""
        return _joined(self._seen)


def _joined(parts: list[Int64]) -> Int64:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class Counts(NamedTuple):
    """The counts of an audit."""

    delivered: int
    """Expected ids with at least one delivery."""
    lost: int
    """Required ids without a delivery."""
    duplicated: int
    """Deliveries of an id after its first."""
    early: int
    """Deliveries with a delivery time, or a pull, before the due time."""
    unwanted: int
    """Deliveries of a cancelled id."""
    unknown: int
    """Deliveries without an id that was put."""
    altered: int
    """Deliveries with a changed body."""

    @property
    def faults(self) -> int:
        """The sum of all counts but delivered."""
        return sum(self) - self.delivered


def count(pulled: Pulled, due_ms: Int64, must: Bools, may: Bools, cancelled: Bools) -> Counts:
    """Count faults: `must` ids are delivered once, `may` ids at most once, `cancelled` ids never.

    A message whose writer was killed before the acknowledgement is in `may` only.
    """
    ids, delivered = pulled.ids, pulled.delivered_ms
    known = (ids >= 0) & (ids < len(due_ms))
    inside = ids[known]
    seen = np.bincount(inside, minlength=len(due_ms))
    first_of = np.minimum(delivered, pulled.seen_ms)[known]
    strangers = ~(must | may | cancelled)
    return Counts(
        delivered=int(np.count_nonzero((seen > 0) & (must | may))),
        lost=int(np.count_nonzero(must & (seen == 0))),
        duplicated=int(np.maximum(seen - 1, 0).sum()),
        early=int(np.count_nonzero(first_of < due_ms[inside])),
        unwanted=int(seen[cancelled].sum()),
        unknown=int(np.count_nonzero(~known)) + int(seen[strangers].sum()),
        altered=pulled.altered,
    )


def lateness_ms(pulled: Pulled, due_ms: Int64) -> Int64:
    """Return delivery time minus due time of each delivery with a known id."""
    ids = pulled.ids
    known = (ids >= 0) & (ids < len(due_ms))
    return pulled.delivered_ms[known] - due_ms[ids[known]]


def digits(bodies: NDArray[np.uint8], begins: Int64, columns: tuple[int, int]) -> Int64:
    """Return the space-padded decimal number in the columns of each body, or -1."""
    first, last = columns
    if not len(begins):
        return np.zeros(0, dtype=np.int64)
    places = begins[:, None] + np.arange(first, last)
    inside = places[:, -1] < len(bodies)
    cells = bodies[np.minimum(places, len(bodies) - 1)].astype(np.int64) - ord("0")
    blank = cells == ord(" ") - ord("0")
    good = inside & ((((cells >= 0) & (cells <= 9)) | blank).all(axis=1)) & ~blank[:, -1]
    powers = 10 ** np.arange(last - first - 1, -1, -1)
    return np.where(good, np.where(blank, 0, cells) @ powers, -1)


class Expected(NamedTuple):
    """The bodies that were put."""

    buffer: NDArray[np.uint8]
    offsets: Int64

    @classmethod
    def of(cls, bodies: list[bytes]) -> Expected:
        """Join bodies into one buffer with n + 1 offsets."""
        sizes = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies))
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        return cls(np.frombuffer(b"".join(bodies), dtype=np.uint8), offsets)

    def altered(self, ids: Int64, bodies: NDArray[np.uint8], offsets: Int64) -> int:
        """Return the number of pulled bodies that differ from the bodies put under their ids."""
        known = (ids >= 0) & (ids < len(self.offsets) - 1)
        safe = np.where(known, ids, 0)
        wanted = self.offsets[safe + 1] - self.offsets[safe]
        sizes = np.diff(offsets)
        same = known & (wanted == sizes)
        begins, lengths = offsets[:-1][same], sizes[same]
        if not lengths.sum():
            return int(np.count_nonzero(~same))
        steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        got = bodies[np.repeat(begins, lengths) + steps]
        put = self.buffer[np.repeat(self.offsets[safe[same]], lengths) + steps]
        wrong = np.add.reduceat(got != put, np.cumsum(lengths) - lengths)
        return int(np.count_nonzero(~same)) + int(np.count_nonzero(wrong))
