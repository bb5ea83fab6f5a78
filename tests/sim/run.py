"""Runs schedules: one seed, from nothing to the end, and what came of it."""

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

_IMAGED_EACH = 8  # of so many schedules one
_IMAGES = 3  # of a power cut
_LEASE_BYTES = 2000


@dataclass
class Outcome:
    """What a run did."""

    seed: int
    step: int  # the operation at which it ended; as many as there are: it went through
    trace: str = ""  # a hash of everything that happened
    error: BaseException | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    clock_ms: int = 0  # simulated, with work pending
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
    """Run a schedule on a store of its own. `trace`: with a line for each operation; `is_hashed`:
    with a hash of those lines.
    """
    allocations = Allocations()
    worlds: list[Operations | Wide] = []
    SimDisk.last_number = 0

    def disk() -> SimDisk:
        return worlds[0].disk

    outcome = Outcome(schedule.seed, 0)
    try:
        config = StoreConfig(**{"retention_ms": 0, **schedule.config})
    except ConfigError as error:  # of a shrinker's making
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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            outcome.error = error
        outcome.trace = digest.hexdigest()
        outcome.counts, outcome.reached = world.counts, world.reached
        outcome.clock_ms = world.waited_ms
    return outcome


def _world(schedule: Schedule, config: StoreConfig, allocations: Allocations) -> Operations | Wide:
    """What the schedule is about."""
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
    return op[0] in ("receive", "receive_wide")


def seeds(first: int, count: int) -> range:
    return range(first, first + count)


def collect() -> None:
    """Stores are cycles of objects: let go of those of the last runs."""
    gc.collect()


__all__ = ["Outcome", "Random", "run_schedule", "run_seed"]
