"""Replace everything that could differ between two runs of one seed.

The replaced parts are the disk, the process id, the random numbers and time of day that make ids,
numpy's allocations (which can fail), the sizes of batches, and the threads that call several
shards. The rest of the engine, Python and C, is the shipped code.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.sim.disk import Fault, SimDisk
from tests.sim.paths import SimPath
from tests.sim.pool import SteppedPool
from tests.support.inside import engine
from tests.support.inside.parts import held_directories, open_stores
from tests.support.inside.sizes import (
    LEAST_HANDED_ON,
    LITTLE_HANDED_ON,
    SMALL,
    USUAL,
    Sizes,
    replaced,
)
from timerstore._engine.base import failpoints

_FRESH = 10**9
"""Larger seeds are not used by killers."""


class Allocations:
    """Count calls of numpy.empty and numpy.zeros, and let the n-th raise MemoryError."""

    def __init__(self) -> None:
        self.count = 0
        self.fault: Fault | None = None
        self._real = {"empty": np.empty, "zeros": np.zeros}

    def _checked(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*args: Any, **given: Any) -> Any:
            self.count += 1
            if self.fault is not None and self.fault.meets("alloc"):
                raise MemoryError("by the simulator")
            return real(*args, **given)

        return allocate

    def install(self) -> None:
        for name, real in self._real.items():
            setattr(np, name, self._checked(real))

    def restore(self) -> None:
        for name, real in self._real.items():
            setattr(np, name, real)


class _System:
    """The os module, with some names replaced."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def _handed_on(seed: int) -> Sizes:
    """Return how much of the appended data stays in memory for dispatch and enqueue-get.

    They read the rest from the log. Most seeds use the store's usual sizes, the others little or
    almost nothing.
    """
    if seed % 5 == 4:
        return LEAST_HANDED_ON
    if seed % 5 == 3 and seed > _FRESH:
        return LITTLE_HANDED_ON
    return {}


@contextmanager
def replaced_seams(
    seed: int, disk: Callable[[], SimDisk], allocations: Allocations | None, *, is_small: bool
) -> Iterator[Random]:
    """Open stores on a simulated disk, in one run at a time, and yield the engine's random numbers.

    allocations: counts numpy's allocations and may let one fail.
    """
    draw = Random(seed)
    chance = SimpleNamespace(
        randbits=draw.getrandbits, token_hex=lambda size: draw.randbytes(size).hex()
    )
    turns = Random(f"{seed} turns")
    system = _System(getpid=lambda: 4242, urandom=turns.randbytes)
    replacements = (
        (engine.assembly, "Disk", disk),
        (engine.restore_backup, "Disk", disk),
        (engine.restore_backup, "Path", SimPath),
        (engine.open_store, "Path", SimPath),
        (engine.anchor, "Path", SimPath),
        (engine.assembly, "os", SimpleNamespace(getpid=lambda: 4242)),
        (engine.recovery, "secrets", chance),
        (engine.assembly, "secrets", chance),
        (engine.leases, "secrets", chance),
        (engine.recurring_given, "secrets", chance),
        (engine.assembly, "time", SimpleNamespace(time=lambda: 1.7e9)),
        (engine.disk, "os", system),
        (engine.sharded, "os", system),
        (engine.sharded, "Disk", disk),
        (engine.sharded, "Path", SimPath),
        (engine.shard_calls, "ThreadPoolExecutor", lambda *_given, **_named: SteppedPool(turns)),
        (engine.shard_ingest, "Disk", disk),
    )
    saved = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    others = set(open_stores())
    with replaced(SMALL if is_small else USUAL), replaced(_handed_on(seed)):
        try:
            for module, name, value in replacements:
                setattr(module, name, value)
            held_directories().clear()  # of stores that were never closed
            if allocations is not None:
                allocations.install()
            yield draw
        finally:
            if allocations is not None:
                allocations.restore()
            for module, name, value in saved:
                setattr(module, name, value)
            failpoints.hook = None
            # The interpreter's end must not close those of dead processes: their arrays have the
            # replaced sizes, and C would write past the end of them.
            open_stores().intersection_update(others)
