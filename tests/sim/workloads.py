"""Enumerate all workloads of a few operations for the exhaustive run, as ACE does (OSDI'18).

A workload consists of operations of a schedule, so that a failure is a schedule, too.

Invariants:
    1. Workloads with fewer operations come first. All workloads up to one depth are the first ones
       of the list up to a greater depth.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from tests.sim.drawing import Op

_QUEUE = ["orders", 0]
_BYTES = 40  # bytes of a body
_LATER_MS = 250
_PAST_MS = 300  # after this step of the clock, earlier puts are due

OPS: dict[str, list[Op]] = {
    "now": [["put", _QUEUE, None, _BYTES, None]],
    "later": [["put", _QUEUE, ["ms", _LATER_MS], _BYTES, None]],
    "cancel": [["cancel", "waiting", 0, "handle"]],
    "tick": [["advance", _PAST_MS, False], ["settle"]],
    "roll": [
        ["put", _QUEUE, ["roll", 2, 1, 0], _BYTES, None],
        ["settle"],
        ["to_slot", 7, 0],  # a roll window is six slots
        ["settle"],
    ],
    "flush": [["flush"]],
    "checkpoint": [["checkpoint"]],
    "reopen": [["reopen", 0]],
}
"""The operations by name, each made of some operations of a schedule. A service runs only where an
operation names it. After a flush a put is only in the log; a tick and a checkpoint bring it onto
the wheel.
"""

_TINY: dict[str, Any] = {
    "precision_ms": 100, "wheel_slot_count": 16, "roll_window_slots": 6,
    "commit_log_segment_bytes": 4096, "queue_segment_bytes": 200, "timer_log_segment_bytes": 300,
    "index_slot_count": 5, "index_entry_count": 40, "index_enabled": True,
    "checkpoint_log_bytes": 65_536, "checkpoint_interval_ms": 60_000, "flush_interval_ms": 500,
    "staging_bytes": 4096, "reserve_bytes": 0, "retention_ms": 0,
}  # fmt: skip


class Variant(NamedTuple):
    """Settings, and whether every batch of the engine is full after a few messages."""

    flush: str
    far_wheel: str
    is_small: bool

    @property
    def config(self) -> dict[str, Any]:
        """Return the settings for StoreConfig."""
        return {**_TINY, "flush": self.flush, "far_wheel": self.far_wheel}


VARIANTS = (
    Variant("sync", "off", is_small=False),
    Variant("async", "shared", is_small=True),
    Variant("async", "off", is_small=True),
    Variant("sync", "shared", is_small=False),
)


class Workload(NamedTuple):
    """Some operations. The process dies in the last one."""

    variant: Variant
    names: tuple[str, ...]

    def __str__(self) -> str:
        flush, far, _ = self.variant
        return f"{flush}, far wheel {far}: {' '.join(self.names)}"

    @property
    def before(self) -> list[Op]:
        """Return the operations of the schedule before the last one."""
        return [op for name in self.names[:-1] for op in OPS[name]]

    @property
    def last(self) -> list[Op]:
        """Return the operations of the schedule for the last one."""
        return OPS[self.names[-1]]


def workloads(depth: int, *, turns: int = len(VARIANTS)) -> Iterator[Workload]:
    """Return all workloads up to a depth, those with fewer operations first.

    Workloads of one operation run in all settings. Each longer workload comes once, with the
    settings in turn, before any comes again in others, `turns` times.
    """
    for count in range(1, depth + 1):
        named = [names for names in product(OPS, repeat=count) if not _is_idle(names)]
        for turn in range(len(VARIANTS) if count == 1 else turns):
            for at, names in enumerate(named):
                yield Workload(VARIANTS[(at + turn) % len(VARIANTS)], names)


def _is_idle(names: tuple[str, ...]) -> bool:
    """Return whether a cancel in the workload has no message to name, so that it equals a shorter
    one.
    """
    count = 0  # most pending messages at that time
    for name in names:
        if name == "cancel" and not count:
            return True
        count += (name in ("later", "roll")) - (name == "cancel")
    return False
