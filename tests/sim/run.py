"""Run a schedule from an empty disk to its end, and return the outcome."""

import gc
import hashlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.sim.disk import SimDisk
from tests.sim.operations import Operations
from tests.sim.schedule import Schedule, make_schedule
from tests.sim.seams import Allocations, replaced_seams
from tests.sim.shards.wide import Wide
from timerstore import StoreConfig
from timerstore.errors import ConfigError

_IMAGED_EACH = 8  # one of this many schedules
_IMAGES = 3  # crash images of a power cut
_LEASE_BYTES = 2000


@dataclass
class Outcome:
    """The outcome of a run."""

    seed: int
    # index of the operation at which it ended, or the number of operations if it completed
    step: int
    trace: str = ""  # a hash of all events
    error: BaseException | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    clock_ms: int = 0  # simulated time with messages pending
    lines: list[str] = field(default_factory=list)


def run_seed(
    seed: int, *, until: int | None = None, trace: bool = False, is_hashed: bool = False
) -> Outcome:
    """Run the schedule of a seed, or its first `until` operations."""
    return run_schedule(make_schedule(seed), until=until, trace=trace, is_hashed=is_hashed)


def run_schedule(
    schedule: Schedule,
    *,
    until: int | None = None,
    trace: bool = False,
    is_hashed: bool = False,
    finish: bool = True,
) -> Outcome:
    """Run a schedule on a new store.

    With `trace`, keep a text for each operation. With `is_hashed`, compute a hash of these texts.
    """
    allocations = Allocations()
    worlds: list[Operations | Wide] = []
    SimDisk.last_number = 0

    def disk() -> SimDisk:
        return worlds[0].disk

    outcome = Outcome(schedule.seed, 0)
    try:
        config = StoreConfig(**{"retention_ms": 0, "dedupe": "id", **schedule.config})
    except ConfigError as error:  # schedules that the shrinker made may be invalid
        outcome.error = error
        return outcome
    digest = hashlib.blake2b(digest_size=16)
    fails = allocations if any(map(_lacks_memory, schedule.ops)) else None
    with replaced_seams(schedule.seed, disk, fails, is_small=schedule.is_small):
        world = _world(schedule, config, allocations)
        worlds.append(world)
        if schedule.seed % _IMAGED_EACH == 0:
            world.image_count = _IMAGES
        try:
            world.begin()
            for op in schedule.ops[:until]:
                world.do(op)
                if trace or is_hashed:
                    line = world.line(outcome.step, op)
                    digest.update(line.encode())
                    outcome.lines.append(line)
                outcome.step += 1
            if finish:
                world.finish(is_thorough=schedule.seed % 4 == 0)
            digest.update(world.line(outcome.step, ["end"]).encode())
        except Exception as error:  # noqa: BLE001 - every kind of error counts as a failure
            outcome.error = error
        outcome.trace = digest.hexdigest()
        outcome.counts, outcome.reached = world.counts, world.reached
        outcome.clock_ms = world.waited_ms
    return outcome


def _world(schedule: Schedule, config: StoreConfig, allocations: Allocations) -> Operations | Wide:
    """Return the world for a schedule."""
    spare = _LEASE_BYTES if any(map(_leases, schedule.ops)) else 0
    if schedule.shards is not None:
        return Wide(config, allocations, spare, is_small=schedule.is_small, **schedule.shards)
    world = Operations(config, allocations, is_small=schedule.is_small)
    world.spare_bytes = spare
    return world


def _lacks_memory(op: list[Any]) -> bool:
    return op[:2] == ["fault", "alloc"] or (op[0] == "fault_in_close" and op[1][0] == "alloc")


def _leases(op: list[Any]) -> bool:
    if op[0] in ("die", "in"):
        return _leases(op[-1])
    return op[0] in ("receive", "receive_in_order", "receive_wide")


def seeds(first: int, count: int) -> range:
    return range(first, first + count)


def collect() -> None:
    """Collect the stores of earlier runs, which are cycles of objects."""
    gc.collect()


__all__ = ["Outcome", "Random", "run_schedule", "run_seed"]
