"""Buffers: memory of pages that nobody looks at any more, for the pages that come.

Memory that is given back to the system comes again page by page, zeroed: for a pull of 10,000
messages that takes as long as reading them.

Threads:  any.
Holds:    what is given is referred to by nobody else: no array or memoryview of it is left.
Cost:     _KEPT_BYTES_MAX, once larger pages were asked for.
"""

import sys
from typing import Any

import numpy as np

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner

_SMALL_BYTES = 1 << 16  # below that the allocator has it at hand
_KEPT_MAX = 8  # of the last page and of the one before: rows, bodies, properties
_KEPT_BYTES_MAX = 32 << 20


class Buffers(Owner):
    """The buffers of one store."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: list[Any] = []

    def take(self, size: int) -> Any:
        """Give an array of `size` bytes or more, of whatever content."""
        if not _SMALL_BYTES <= size <= _KEPT_BYTES_MAX // 2:
            return np.empty(size, np.uint8)
        with self._lock:
            free = [at for at in range(len(self._kept)) if self._is_free(at)]
            fitting = [at for at in free if len(self._kept[at]) >= size]
            if fitting:
                return self._kept[min(fitting, key=lambda at: len(self._kept[at]))]
            for at in reversed(free):
                del self._kept[at]
            made = np.empty(size + size // 4, np.uint8)  # the next page is not quite of this size
            kept_bytes = sum(map(len, self._kept))
            if len(self._kept) < _KEPT_MAX and kept_bytes + len(made) <= _KEPT_BYTES_MAX:
                self._kept.append(made)
            return made

    def _is_free(self, at: int) -> bool:
        # The list and this call refer to it. So does each array or memoryview of it.
        return sys.getrefcount(self._kept[at]) == 2
