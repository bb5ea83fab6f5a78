"""Memory that the host has given already: touched and freed just before a run, for all alike.

A virtual machine may give back what it has freed within seconds (free page reporting), and has to
ask for it again page by page: here a write into a new file cost 0.15 ns a byte, or 0.7 to 1.0 where
the memory was given back, whatever was measured. A run of a second or two finds what it needs warm.

Data:     anonymous memory of a child that ends.
Threads:  none.
"""

from __future__ import annotations

import mmap
import os
import time

import numpy as np

WARM_BYTES = 3 << 29
"""Files and memory of a run of a million messages; half of the memory at most."""

_PAGE_BYTES = 4096


def warm_memory() -> float:
    """Touch it all; how long a page took, microseconds: about 0.2 where it was warm."""
    free = os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES
    size = min(WARM_BYTES, free // 2) // _PAGE_BYTES * _PAGE_BYTES
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        memory = mmap.mmap(-1, size)
        np.frombuffer(memory, dtype=np.uint8)[::_PAGE_BYTES] = 1
        os._exit(0)
    os.waitpid(child, 0)
    return (time.perf_counter() - began) * 1e6 / (size // _PAGE_BYTES)
