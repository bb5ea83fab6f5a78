"""Everything that could differ between two runs of one seed is replaced here, for a while.

Replaced: the disk, process id, random numbers and time of day that make ids; numpy's
allocations, which may be told to fail; sizes of batches; the threads that call several shards.
Nothing else of the engine: Python and C are those that are shipped.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import timerstore.backup.restoring
import timerstore.files.directory
import timerstore.files.disk
import timerstore.files.paths
import timerstore.leases.leases
import timerstore.opening
import timerstore.recurring.given
import timerstore.shards.sharded
import timerstore.store
from tests.sim.disk import Fault, SimDisk
from tests.sim.paths import SimPath
from tests.sim.pool import SteppedPool
from tests.support.small_batches import SMALL, replaced
from timerstore import failpoint
from timerstore.commitlog import commit_log
from timerstore.queues import dispatch
from timerstore.timer import dequeue_get, dequeue_put, enqueue_get, far, linker

USUAL: dict[ModuleType, dict[str, int]] = {
    dequeue_get: {"_BATCH": 512},
    dequeue_put: {"_BATCH": 512, "_CHUNK": 256},
    enqueue_get: {"_BATCH": 256},
    linker: {"_BATCH": 256},
    far: {"_BATCH": 256},
    dispatch: {"_BATCH": 512},
}
"""No batch of a schedule fills these; the real ones would only be allocated."""
_FRESH = 10**9
"""Seeds beyond are no killer's."""


class Allocations:
    """numpy.empty and numpy.zeros, of which the n-th may find no memory."""

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


def _handed_on(seed: int) -> dict[ModuleType, dict[str, int]]:
    """How much of what was appended is kept in memory for dispatch and enqueue-get; the rest they
    read: mostly what a store keeps, else next to nothing, or a little.
    """
    if seed % 5 == 4:
        return {commit_log: {"_NOTES": 1}, enqueue_get: {"_HANDED_MAX": 0}}
    if seed % 5 == 3 and seed > _FRESH:
        return {commit_log: {"_NOTES": 8}, enqueue_get: {"_HANDED_MAX": 1}}
    return {}


@contextmanager
def replaced_seams(
    seed: int, disk: Callable[[], SimDisk], allocations: Allocations | None, *, is_small: bool
) -> Iterator[Random]:
    """Have stores open on a simulated disk; one run at a time. `allocations`: that may fail. Given
    is what draws for the engine.
    """
    draw = Random(seed)
    opening = timerstore.opening
    chance = SimpleNamespace(
        randbits=draw.getrandbits, token_hex=lambda size: draw.randbytes(size).hex()
    )
    ingest = import_module("timerstore.shards.ingest")  # a function has that name there
    sharded, turns = timerstore.shards.sharded, Random(f"{seed} turns")
    system = _System(getpid=lambda: 4242, urandom=turns.randbytes)
    replacements = (
        (opening, "Disk", disk),
        (timerstore.backup.restoring, "Disk", disk),
        (timerstore.backup.restoring, "Path", SimPath),
        (timerstore.store, "Path", SimPath),
        (timerstore.files.paths, "Path", SimPath),
        (opening, "os", SimpleNamespace(getpid=lambda: 4242)),
        (opening, "secrets", chance),
        (timerstore.leases.leases, "secrets", chance),
        (timerstore.recurring.given, "secrets", chance),
        (opening, "time", SimpleNamespace(time=lambda: 1.7e9)),
        (timerstore.files.disk, "os", system),
        (sharded, "os", system),
        (sharded, "Disk", disk),
        (sharded, "Path", SimPath),
        (sharded, "ThreadPoolExecutor", lambda *_given, **_named: SteppedPool(turns)),
        (ingest, "Disk", disk),
    )
    saved = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    with replaced(SMALL if is_small else USUAL), replaced(_handed_on(seed)):
        try:
            for module, name, value in replacements:
                setattr(module, name, value)
            timerstore.files.directory._held.clear()  # of lives that nobody closed
            if allocations is not None:
                allocations.install()
            yield draw
        finally:
            if allocations is not None:
                allocations.restore()
            for module, name, value in saved:
                setattr(module, name, value)
            failpoint.hook = None
