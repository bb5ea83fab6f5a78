"""Keep the memory of released pages and reuse it for new ones.

Memory that is returned to the system comes back zeroed, one page at a time. For a pull of 10,000
messages this takes as long as reading them. At most `_KEPT_BYTES_MAX` bytes are kept.

Thread safety: any thread.
Invariants:
    1. No other array or memoryview refers to a buffer that `take` returns.
"""

import sys
from typing import Any

import numpy as np

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner

_SMALL_BYTES = 1 << 16  # smaller buffers are fast to allocate
_KEPT_MAX = 8  # rows, bodies and properties of the last two pages, and two more
_KEPT_BYTES_MAX = 32 << 20


class Buffers(Owner):
    """The buffers of one store."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: list[Any] = []

    def take(self, size: int) -> Any:
        """Return an array of at least `size` bytes with arbitrary content."""
        if not _SMALL_BYTES <= size <= _KEPT_BYTES_MAX // 2:
            return np.empty(size, np.uint8)
        with self._lock:
            free = [at for at in range(len(self._kept)) if self._is_free(at)]
            fitting = [at for at in free if len(self._kept[at]) >= size]
            if fitting:
                return self._kept[min(fitting, key=lambda at: len(self._kept[at]))]
            for at in reversed(free):
                del self._kept[at]
            made = np.empty(size + size // 4, np.uint8)  # the next page may be a little larger
            kept_bytes = sum(map(len, self._kept))
            if len(self._kept) < _KEPT_MAX and kept_bytes + len(made) <= _KEPT_BYTES_MAX:
                self._kept.append(made)
            return made

    def _is_free(self, at: int) -> bool:
        # Two references are the list's and this call's; every array or memoryview adds one.
        return sys.getrefcount(self._kept[at]) == 2
