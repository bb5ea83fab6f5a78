"""Compute the shard that a message belongs to.

The shard is `crc32(key) % n`, with zlib's CRC-32 of the UTF-8 text of the message's group, or else
of its first key, or else of its message id. Messages with none are distributed round robin.

Invariants: all messages with one key, or of one message group, are in one shard, in the order in
which they were put. Messages of different groups may have the same key. A put
that is repeated with the same keys and message id goes to the same shard.
See also: docs/decisions/0010-shards-and-spark.md.
"""

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import Lock, address, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import MessageError

Shards = npt.NDArray[np.int32]


def shard_of_key(key: str, shard_count: int) -> int:
    """Return the shard of a key."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % shard_count


def first_key(keys: Any) -> str | None:
    """Return the key that decides the shard, from the `keys` of a put. An invalid one is left to
    `put`.
    """
    if isinstance(keys, str):
        return keys or None
    is_row = isinstance(keys, Sequence) or (isinstance(keys, np.ndarray) and keys.ndim == 1)
    first = keys[0] if is_row and len(keys) else None
    return first if isinstance(first, str) else None


def shards_of_rows(data: Any, offsets: npt.NDArray[np.int64], shard_count: int) -> Shards:
    """Return the shard of each of many keys, which are stored one after another; -1 for an empty
    key.
    """
    count = len(offsets) - 1
    shards = np.empty(count, np.int32)
    spans = np.ascontiguousarray(offsets, np.int64)
    source = address(data) if len(data) else ffi.NULL
    status = lib.ts_shards_of_rows(
        source,
        len(data),
        ffi.from_buffer("int64_t[]", spans),
        count,
        shard_count,
        ffi.from_buffer("int32_t[]", shards),
    )
    if status < 0:
        raise MessageError(f"keys: wanted offsets that rise within {len(data)} bytes")
    return shards


class Turns(NotCopyable):
    """Distributes messages round robin.

    Thread safety: any thread.
    """

    def __init__(self, shard_count: int, first: int = 0) -> None:
        self._next = itertools.count(first)
        self.shard_count = shard_count
        self._lock = Lock()

    def take(self) -> int:
        """Return the next shard in turn."""
        with self._lock:
            return next(self._next) % self.shard_count
