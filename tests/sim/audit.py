"""Audit the generator: check that random schedules reach the states in which bugs are likely.

Each put, delay, death and fault falls into buckets. A bucket that stays empty over a run of the
CI's length means that the tests no longer cover that state, and the audit fails.
"""

from collections.abc import Iterator

from tests.sim.drawing import FAULT_KINDS, OPERATIONS
from tests.sim.lottery import PAGE, SECTOR
from tests.sim.shards.drawing import OPERATIONS as OF_SHARDS
from timerstore import StoreConfig
from timerstore._engine.base.failpoints import LEASE_NAMES, NAMES

_NEAR = ("on", "behind by 1 to 15", "before by 1 to 15", "behind by 16 to 40", "before by 16 to 40")
_EDGES = ("page", "sector")
_DELAYS = (
    "none", "present slot", "next slot", "a later slot", "below the roll window",
    "first of the roll window", "beyond the roll window", "a lap to a slot", "beyond a lap",
    "a day and more",
)  # fmt: skip
_PLACES = ("on a slot's edge", "1 ms behind a slot's edge", "1 ms before a slot's edge", "inside")


def _near(where: int, width: int) -> str | None:
    behind, before = where % width, -where % width
    if not behind:
        return "on"
    for name, distance in (("behind", behind), ("before", before)):
        if distance <= 15:
            return f"{name} by 1 to 15"
        if distance <= 40:
            return f"{name} by 16 to 40"
    return None


def end_buckets(end: int, config: StoreConfig) -> Iterator[str]:
    """Name the buckets for the place where a record ends in the log."""
    widths = {"page": PAGE, "sector": SECTOR, "segment": config.commit_log_segment_bytes}
    for edge, width in widths.items():
        near = _near(end, width)
        if near is not None:
            yield f"a record ends {near} of a {edge}"


def due_buckets(due_ms: int | None, now_ms: int, config: StoreConfig) -> Iterator[str]:
    """Name the buckets for a due time, by its distance from now and from the edges of slots."""
    if due_ms is None or due_ms <= now_ms:
        yield "delay: none"
        return
    width = config.precision_ms
    slots = (due_ms - 1) // width - now_ms // width
    yield f"delay: {_delay(slots, due_ms - now_ms, config)}"
    places = {0: _PLACES[0], 1: _PLACES[1], width - 1: _PLACES[2]}
    yield f"due {places.get(due_ms % width, _PLACES[3])}"


def _delay(slots: int, delay_ms: int, config: StoreConfig) -> str:
    roll, lap = config.roll_slots, config.wheel_slot_count
    if delay_ms >= 86_400_000:
        return "a day and more"
    if slots <= 0:
        return "present slot"
    if slots > lap + 1:
        return "beyond a lap"
    if lap - 1 <= slots <= lap + 1:
        return "a lap to a slot"
    if slots == roll:
        return "first of the roll window"
    if slots > roll:
        return "beyond the roll window"
    if slots == 1:
        return "next slot"
    return "below the roll window" if slots == roll - 1 else "a later slot"


def all_buckets() -> Iterator[str]:
    """Return all buckets that must not stay empty, except for the fail points."""
    yield "a record ends before by 16 to 40 of a segment"  # a segment keeps 16 bytes for its blank
    for edge in _EDGES:
        yield from (f"a record ends {near} of a {edge}" for near in _NEAR)
    yield from (f"delay: {name}" for name in _DELAYS)
    yield from (f"due {place}" for place in _PLACES)
    yield from (f"fault met: {kind}" for kind in (*FAULT_KINDS, "alloc"))
    yield from (f"op_{name}" for name in (*OPERATIONS, *OF_SHARDS))
    yield "continued after a shard failed"
    yield from ("kill", "cut", "kill_then_cut", "drop", "deaths_in_recovery", "torn writes")


def missing(counts: dict[str, int], reached: dict[str, int], reached_min: int) -> list[str]:
    """Return the buckets that stayed empty, and the fail points that were reached too rarely."""
    empty = [name for name in all_buckets() if not counts.get(name)]
    seldom = [
        f"fail point {name}: reached {reached.get(name, 0)} times, wanted {reached_min}"
        for name in (*NAMES, *LEASE_NAMES)
        if reached.get(name, 0) < reached_min
    ]
    return empty + seldom
