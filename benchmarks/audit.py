"""Counts what came out against what went in. Nothing here asks the store what it thinks it did.

Data:     ids are small integers that the bodies carry; arrays are indexed by them.
Holds:    (1) every figure is counted from ids and times of messages that were pulled;
          (2) a delivery of an id that was never put, or whose body differs, is counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Pulled:
    """Collects what was pulled, batch by batch."""

    def __init__(self) -> None:
        self._ids: list[Int64] = []
        self._delivered: list[Int64] = []
        self._seen: list[Int64] = []
        self.altered = 0
        self.count = 0

    def add(self, ids: Int64, delivered_ms: Int64, seen_ms: int, altered: int = 0) -> None:
        """One batch, and what the clock showed when it was pulled."""
        self._ids.append(np.array(ids, dtype=np.int64))
        self._delivered.append(np.array(delivered_ms, dtype=np.int64))
        self._seen.append(np.full(len(ids), seen_ms, dtype=np.int64))
        self.altered += altered
        self.count += len(ids)

    @property
    def ids(self) -> Int64:
        """In the order in which they came."""
        return _joined(self._ids)

    @property
    def delivered_ms(self) -> Int64:
        """As each message tells it."""
        return _joined(self._delivered)

    @property
    def seen_ms(self) -> Int64:
        """What the clock showed when each was pulled."""
        return _joined(self._seen)


def _joined(parts: list[Int64]) -> Int64:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class Counts(NamedTuple):
    """What the pulled messages show."""

    delivered: int
    """Ids that came out at least once and were wanted."""
    lost: int
    """Ids that had to come out and did not."""
    duplicated: int
    """Deliveries of an id beyond its first."""
    early: int
    """Deliveries stamped, or seen, before the id was due."""
    unwanted: int
    """Deliveries of an id whose reminder had been cancelled."""
    unknown: int
    """Deliveries that carry no id that was ever put."""
    altered: int
    """Deliveries whose body is not the one that was put."""

    @property
    def faults(self) -> int:
        """Sum of all but delivered."""
        return sum(self) - self.delivered


def count(pulled: Pulled, due_ms: Int64, must: Bools, may: Bools, cancelled: Bools) -> Counts:
    """Compare: `must` come out once, `may` come out at most once, `cancelled` not at all.

    A message that was never acknowledged, because its writer was killed, may come out: it is in
    `may` alone.
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
    """Delivered less due, of each known delivery."""
    ids = pulled.ids
    known = (ids >= 0) & (ids < len(due_ms))
    return pulled.delivered_ms[known] - due_ms[ids[known]]


def digits(bodies: NDArray[np.uint8], begins: Int64, columns: tuple[int, int]) -> Int64:
    """The decimal number, padded with spaces, in the given columns of each body; -1 where none."""
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
    """Bodies as they were put, to compare with."""

    buffer: NDArray[np.uint8]
    offsets: Int64

    @classmethod
    def of(cls, bodies: list[bytes]) -> Expected:
        """One buffer, and n + 1 offsets."""
        sizes = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies))
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        return cls(np.frombuffer(b"".join(bodies), dtype=np.uint8), offsets)

    def altered(self, ids: Int64, bodies: NDArray[np.uint8], offsets: Int64) -> int:
        """How many of the pulled bodies differ from the ones put under their ids."""
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
