"""Which shard a message belongs to.

Holds:    CRC-32 (zlib's) of the key's UTF-8, modulo the number of shards. The key is the first of
          the message's keys; of one without keys its message id; one without either goes where its
          turn is. So what has one key is in one shard, in the order in which it was put, and a put
          that is repeated with the same keys and message id meets itself.
Source:   docs/decisions/0010-shards-and-spark.md.
"""

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import Lock, address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore.errors import MessageError

Shards = npt.NDArray[np.int32]


def shard_of_key(key: str, shard_count: int) -> int:
    """Give the shard of a key."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % shard_count


def first_key(keys: Any) -> str | None:
    """Give the key that decides, of what `put` takes as keys; what is wrong is for `put` to say."""
    if isinstance(keys, str):
        return keys or None
    is_row = isinstance(keys, Sequence) or (isinstance(keys, np.ndarray) and keys.ndim == 1)
    first = keys[0] if is_row and len(keys) else None
    return first if isinstance(first, str) else None


def shards_of_rows(data: Any, offsets: npt.NDArray[np.int64], shard_count: int) -> Shards:
    """Give the shard of each of many keys, which lie one behind the other; of an empty one -1."""
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


class Turns(Owner):
    """Whose turn it is. Threads: any."""

    def __init__(self, shard_count: int, first: int = 0) -> None:
        self._next = itertools.count(first)
        self.shard_count = shard_count
        self._lock = Lock()

    def take(self) -> int:
        """Give the shard whose turn it is."""
        with self._lock:
            return next(self._next) % self.shard_count
