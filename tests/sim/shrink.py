"""Shrink a failing schedule to fewer and simpler operations that fail in the same way.

Two failures are the same if their errors have the same class and were raised in the same function
of the same file.
"""

import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.sim.drawing import Op
from tests.sim.run import Outcome, run_schedule
from tests.sim.schedule import Schedule

REGRESSIONS = Path(__file__).parent / "regressions"
_TRIES_MAX = 3000


def signature(outcome: Outcome) -> str | None:
    """Return the kind of a failure, or None if there is no failure."""
    if outcome.error is None:
        return None
    frame = traceback.extract_tb(outcome.error.__traceback__)[-1]
    return f"{type(outcome.error).__name__} in {Path(frame.filename).name}:{frame.name}"


class Shrinker:
    """Shrink one failing schedule."""

    def __init__(
        self,
        schedule: Schedule,
        run: Callable[[Schedule], Outcome] = run_schedule,
        tries_max: int = _TRIES_MAX,
    ) -> None:
        self._run = run
        self._tries_max = tries_max
        self.tries = 0
        first = run(schedule)
        wanted = signature(first)
        assert wanted is not None, "this schedule does not fail"
        self.signature = wanted
        self.best = schedule._replace(ops=schedule.ops[: first.step + 1])

    def _fails(self, ops: list[Op]) -> bool:
        return self._fails_as(self.best._replace(ops=ops))

    def _fails_as(self, schedule: Schedule) -> bool:
        if self.tries >= self._tries_max:
            return False
        self.tries += 1
        if signature(self._run(schedule)) != self.signature:
            return False
        self.best = schedule
        return True

    def shrink(self) -> Schedule:
        """Drop ranges of operations, halving them (ddmin), and simplify the rest, until nothing
        helps.
        """
        before = None
        while before != self.best and self.tries < self._tries_max:
            before = self.best
            self._drop_ranges()
            self._plainer()
            self._usual_settings()
        return self.best

    def _drop_ranges(self) -> None:
        size = max(1, len(self.best.ops) // 2)
        while size:
            at = 0
            while at < len(self.best.ops):
                ops = self.best.ops
                if not self._fails(ops[:at] + ops[at + size :]):
                    at += size
            size //= 2

    def _plainer(self) -> None:
        for at in range(len(self.best.ops)):
            for op in _plainer(self.best.ops[at]):
                ops = list(self.best.ops)
                ops[at] = op
                if ops != self.best.ops and self._fails(ops):
                    break

    def _usual_settings(self) -> None:
        if self.best.shards is not None:
            self._fails_as(self.best._replace(shards={**self.best.shards, "births": []}))
        if self.best.is_small:
            self._fails_as(self.best._replace(is_small=False))
        for name, value in _USUAL.items():
            if self.best.config.get(name, value) != value:
                config = {**self.best.config, name: value}
                self._fails_as(self.best._replace(config=config))


_USUAL = {
    "precision_ms": 1000, "wheel_slot_count": 128, "roll_window_slots": 0,
    "commit_log_segment_bytes": 65_536, "queue_segment_bytes": 4000, "index_slot_count": 50,
    "timer_log_segment_bytes": 4096, "index_entry_count": 400, "index_enabled": True,
    "checkpoint_log_bytes_max": 1 << 28, "checkpoint_log_bytes": 65_536, "flush": "sync",
    "visibility": "durable", "level_async": False, "slot_messages_max": 0, "start_delay_ms": 0,
    "reserve_bytes": 4096, "checkpoint_interval_ms": 500, "level_pending_max": 2000,
    "retention_ms": 0, "retention_log_bytes": 0, "retention_disk_percent": 0,
    "dedupe_window_ms": 20_000, "dedupe": "content", "topic_rates": "", "spread_seed": 1,
}  # fmt: skip


def _plainer(op: Op) -> Iterator[Op]:
    name = op[0]
    if name == "die":
        _, trigger, end, deaths, inner = op
        yield inner
        yield ["die", trigger, end, [], inner]
        yield ["die", trigger, ["kill", end[1], 0], deaths, inner]
        yield ["die", trigger, [*end[:2], 0], deaths, inner]
        for one in _plainer(inner):
            yield ["die", trigger, end, deaths, one]
    elif name == "in":
        for one in _plainer(op[2]):
            yield [name, op[1], one]
    elif name == "step":
        for at in range(len(op[1])):
            yield ["step", op[1][:at] + op[1][at + 1 :]]
    elif name == "run":
        yield ["settle"]
        if op[2] > 1:
            yield [name, op[1], op[2] // 2]
            yield [name, op[1], op[2] - 1]
    else:
        yield from _plainer_put(op)
        yield from _plainer_wide(op)


def _plainer_put(op: Op) -> Iterator[Op]:
    name = op[0]
    if name == "put_many":
        items = op[2]
        for size in (len(items) // 2, len(items) - 1):
            if size > 0:
                yield [name, op[1], items[:size], *op[3:]]
                yield [name, op[1], items[-size:], *op[3:]]
        if len(items) == 1:
            yield ["put", op[1], *items[0], None]
        yield [name, op[1], [[due, 20] for due, _ in items], *op[3:]]
    elif name == "ingest":
        for size in range(len(op[3])):
            yield [*op[:3], op[3][:size], op[4]]
        yield [*op[:3], [[None, 20] for _ in op[3]], op[4]]
    elif name == "receive":
        yield [name, op[1], 1, op[3]]
        yield [name, op[1], op[2], 1]
    elif name == "replace":
        yield [*op[:4], 20, op[5], op[6]]
        yield [*op[:6], None]
    elif name == "put_many_spread":
        yield [*op[:3], 1, op[4]]
    elif name == "put_once":
        yield [*op[:4], 20]
        yield [*op[:3], None, 20]
    elif name == "put":
        yield ["put", op[1], op[2], 20, None]
        yield ["put", op[1], op[2], op[3], None]


def _plainer_wide(op: Op) -> Iterator[Op]:
    """Return simpler forms of a call for several shards."""
    name = op[0]
    if name in ("put_many_wide", "put_named_wide"):
        for at in range(len(op[2])):
            yield [name, op[1], op[2][:at] + op[2][at + 1 :], *op[3:]]
        yield [name, op[1], [[*one[:-1], 20] for one in op[2]], *op[3:]]
    elif name in ("cancel_many_wide", "ack_many_wide"):
        for at in range(len(op[-1])):
            yield [*op[:-1], op[-1][:at] + op[-1][at + 1 :]]


def write_regression(schedule: Schedule, says: str, why: str) -> Path:
    """Write a failing schedule to the folder that every test run replays."""
    path = REGRESSIONS / f"{schedule.seed}.json"
    path.write_text(regression_text(schedule, says, why))
    return path


def regression_text(schedule: Schedule, says: str, why: str) -> str:
    """Return the text of a regression, with one operation in each row."""
    head: dict[str, Any] = {"why": why, "says": says, **schedule.to_json()}
    ops = head.pop("ops")
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ",\n".join(f"    {json.dumps(op)}" for op in ops)
    return "{\n" + "\n".join(lines) + '\n  "ops": [\n' + body + "\n  ]\n}\n"


def read_regression(path: Path) -> Schedule:
    found = json.loads(path.read_text())
    return Schedule(
        found["seed"], found["config"], found["is_small"], found["ops"], found.get("shards")
    )
