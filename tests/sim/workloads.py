"""All workloads of a few operations: what the exhaustive run goes through, in order.

Data:     a workload is made of operations of a schedule, so that what fails is a schedule, too.
Holds:    workloads of fewer operations come first: all of them up to a depth are the first of
          those up to a greater one.
Source:   as ACE does (OSDI'18).
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from tests.sim.drawing import Op

_QUEUE = ["orders", 0]
_BYTES = 40  # of a body
_LATER_MS = 250
_PAST_MS = 300  # from then on what was put later is due

OPS: dict[str, list[Op]] = {
    "now": [["put", _QUEUE, None, _BYTES, None]],
    "later": [["put", _QUEUE, ["ms", _LATER_MS], _BYTES, None]],
    "cancel": [["cancel", "waiting", 0, "handle"]],
    "tick": [["advance", _PAST_MS, False], ["settle"]],
    "roll": [
        ["put", _QUEUE, ["roll", 2, 1, 0], _BYTES, None],
        ["settle"],
        ["to_slot", 7, 0],  # a window is six slots
        ["settle"],
    ],
    "flush": [["flush"]],
    "checkpoint": [["checkpoint"]],
    "reopen": [["reopen", 0]],
}
"""By name, each made of some of a schedule's. No service runs but where one says so: a flush leaves
in the log alone what was put; a tick and a checkpoint have it on the wheel."""

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
        """Of StoreConfig."""
        return {**_TINY, "flush": self.flush, "far_wheel": self.far_wheel}


VARIANTS = (
    Variant("sync", "off", is_small=False),
    Variant("async", "shared", is_small=True),
    Variant("async", "off", is_small=True),
    Variant("sync", "shared", is_small=False),
)


class Workload(NamedTuple):
    """Some operations, of which the last one is died in."""

    variant: Variant
    names: tuple[str, ...]

    def __str__(self) -> str:
        flush, far, _ = self.variant
        return f"{flush}, far wheel {far}: {' '.join(self.names)}"

    @property
    def before(self) -> list[Op]:
        """What a schedule has of it before the last one."""
        return [op for name in self.names[:-1] for op in OPS[name]]

    @property
    def last(self) -> list[Op]:
        """What a schedule has of the last one."""
        return OPS[self.names[-1]]


def workloads(depth: int, *, turns: int = len(VARIANTS)) -> Iterator[Workload]:
    """All of one operation to so many; those of one first, in all settings. Of several operations
    each comes once, in settings by turns, before any comes again in others; `turns`: so often.
    """
    for count in range(1, depth + 1):
        named = [names for names in product(OPS, repeat=count) if not _is_idle(names)]
        for turn in range(len(VARIANTS) if count == 1 else turns):
            for at, names in enumerate(named):
                yield Workload(VARIANTS[(at + turn) % len(VARIANTS)], names)


def _is_idle(names: tuple[str, ...]) -> bool:
    """Whether a cancel in it has nothing to name: what is left is shorter."""
    count = 0  # of what waits, at most
    for name in names:
        if name == "cancel" and not count:
            return True
        count += (name in ("later", "roll")) - (name == "cancel")
    return False
