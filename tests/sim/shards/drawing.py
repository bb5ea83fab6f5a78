"""Convert the operations of a schedule to operations of a ShardedStore.

    ["in", 1, ["put", ...]]    an operation of one shard, through the whole if it has the call
    ["put_many_wide", ...]     one call for several shards
    ["reopen", 0]              an operation of the whole: deaths, faults, readers

Invariants:
    1. One operation becomes one operation, so that a death stays around it. A rate is the
       exception: no process dies in it, and operations follow that check it.
"""

from random import Random
from typing import Any, NamedTuple

from tests.sim.drawing import Op, log_uniform

COUNTS = (2, 2, 3)
OPERATIONS = (
    "in", "whole", "put_many_wide", "put_named_wide", "put_turn", "cancel_many_wide",
    "receive_wide", "ack_many_wide", "pace_wide", "fault_in_close",
)  # fmt: skip
"""In addition to the operations of one store."""
_OF_ALL = ("reopen", "full", "nothing", "reader")
_WIDE_RATE = 0.6
_NUMBERS = 1 << 16


class Drawn(NamedTuple):
    """The part of a schedule that concerns shards."""

    made: dict[str, Any]
    ops: list[Op]


def draw_shards(draw: Random, ops: list[Op]) -> Drawn:
    """Add several shards to a schedule."""
    count = draw.choice(COUNTS)
    births = []
    while draw.random() < 0.3 and len(births) < 3:
        how = draw.choice(("kill", "cut", "cut", "kill_then_cut"))
        births.append([["call", int(log_uniform(draw, 1, 60))], [how, draw.randrange(_NUMBERS)]])
    sharding = _Sharding(draw, count)
    made = [sharding.turn(op) for op in ops]
    paced = [[op, *(_steps(draw, op, count) if op[0] == "pace_wide" else ())] for op in made]
    return Drawn({"count": count, "births": births}, [op for some in paced for op in some])


def _steps(draw: Random, op: Op, count: int) -> list[Op]:
    """Make more messages due than a rate allows, and check often.

    A check comes as soon as a shard may deliver one message. With longer intervals, a share that is
    too large would not show.
    """
    topic, rate = op[1:]
    if rate is None or draw.random() < 0.5:
        return []
    rows = [[draw.randrange(count), ["ms", 1], 40] for _ in range(20)]
    step: list[Op] = [["in", 0, ["advance", max(1, int(600 / rate)), False]], ["settle"]]
    return [["put_many_wide", [topic, 0], rows, False], ["settle"], *step * draw.choice((3, 8))]


class _Sharding:
    def __init__(self, draw: Random, count: int) -> None:
        self._draw = draw
        self._count = count
        self._rest = draw.choice((0.0, 0.5, 1.0))  # operations that may go to any shard
        self._hot = draw.randrange(count)

    def _shard(self) -> int:
        is_any = self._draw.random() < self._rest
        return self._draw.randrange(self._count) if is_any else self._hot

    def _number(self) -> int:
        return self._draw.randrange(_NUMBERS)

    def turn(self, op: Op) -> Op:
        """Convert one operation."""
        name = op[0]
        if name == "die":
            return [*op[:-1], self.turn(op[-1])]
        if name in ("fault", "fault_in_recovery"):
            return self._later(op)
        if name in _OF_ALL:
            return op
        if name in ("backup", "restore"):
            return ["whole", self._number()]
        if name == "pace":
            return ["pace_wide", *op[1:]]
        if name == "lose":
            return [*op, self._shard()]
        if self._draw.random() < _WIDE_RATE and (made := self._wide(op)) is not None:
            return made
        return ["in", self._shard(), op]

    def _later(self, op: Op) -> Op:
        """Return a fault that may meet any shard. Shards are opened and closed in their order."""
        fault = op[2] if op[0] == "fault_in_recovery" else op[1:]
        kind, nth, code, once = fault
        met = [kind, nth * self._draw.choice((1, 1, self._count, 2 * self._count)), code, once]
        if op[0] == "fault_in_recovery":
            return [op[0], op[1], met]
        return ["fault_in_close", met] if self._draw.random() < 0.2 else [op[0], *met]

    def _wide(self, op: Op) -> Op | None:
        """Return one call for several shards, if there is such a call."""
        draw, name = self._draw, op[0]
        if name in ("settle", "flush"):
            return op
        if name == "verify":
            return ["whole", self._number()]
        if name == "pending" and draw.random() < 0.5:
            return ["whole", self._number()]
        if name == "put" and draw.random() < 0.3:
            return ["put_turn", op[1], op[2], op[3]]
        if name == "put_many" and not op[4]:
            rows = [[draw.randrange(self._count), *one] for one in op[2]]
            return ["put_many_wide", op[1], rows, op[3]]
        if name == "put_many_once":
            return ["put_named_wide", op[1], op[2]]
        if name in ("cancel", "cancel_many"):
            which = op[1] if op[1] in ("waiting", "any") else "any"
            picks = [
                [draw.randrange(self._count), self._number(), draw.choice(("receipt", "handle"))]
                for _ in range(draw.choice((1, 2, 5, 12)))
            ]
            return ["cancel_many_wide", which, picks]
        if name == "receive":
            return ["receive_wide", *op[1:]]
        if name == "settle_lease" and op[1] in ("ack", "ack_many"):
            picks = [[k, self._number()] for k in range(self._count)] * draw.choice((1, 2))
            return ["ack_many_wide", picks]
        return None
