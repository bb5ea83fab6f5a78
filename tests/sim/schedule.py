"""A schedule: sizes and settings of one store, and what happens to it; drawn from a seed.

Holds:    (1) a schedule is plain JSON, and each operation carries all that it needs, so that any
          of them may be left out and the rest still runs (shrink.py); (2) the same seed gives the
          same schedule, whatever the engine does with it.

Swarm: each seed draws its own subset of operations, sizes and faults, since what every run does a
little of, no run does enough of (promises.md 3.2).
"""

from random import Random
from typing import Any, NamedTuple

from tests.sim.disk import KINDS
from timerstore.failpoint import NAMES

DAY_MS = 86_400_000
YEAR_MS = 31_557_600_000
PAGE = 4096

Op = list[Any]

SERVICES = (
    "dispatch", "enqueue_get", "enqueue_put", "dequeue_get", "dequeue_get_message",
    "dequeue_put", "schedule_deliver", "flush",
)  # fmt: skip
QUEUES = (("orders", 0), ("orders", 1), ("mail", 0))
# Not a listing, which is a read; nor start_writing, for which no write here is large enough.
FAULT_KINDS = tuple(kind for kind in KINDS if kind not in ("list", "start_writing"))
_RARE_KINDS = ("zero", "unlink", "make_directory", "rename", "resize")

GROUPS = {
    "put": 6, "put_many": 3, "same": 1, "level": 2, "cancel": 3, "reschedule": 3, "wait": 1,
    "flush": 1, "look": 2, "read": 3, "clock": 5, "back": 1, "far": 1, "reopen": 1, "die": 3,
    "lose": 1, "fault": 1, "full": 1,
}  # fmt: skip
"""Groups of operations, and how often each is drawn where it is on."""
_NOT_DYING = ("die", "lose", "clock", "fault", "full")
_ALWAYS = ("put", "clock")
OPERATIONS = (
    "put", "put_many", "put_level", "cancel", "reschedule", "wait", "flush", "pending", "filtered",
    "query", "query_one", "again", "verify", "reader", "advance", "back", "to_due", "to_slot",
    "step", "run", "settle", "reopen", "die", "lose", "fault",
    "fault_in_recovery", "full",
)  # fmt: skip
"""What the groups draw; operations.py has a method for each."""


class Schedule(NamedTuple):
    """What one run does."""

    seed: int
    config: dict[str, Any]  # of StoreConfig
    is_small: bool  # every batch of the engine is full after a few messages
    ops: list[Op]

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def log_uniform(draw: Random, low: float, high: float) -> float:
    return float(low * (high / low) ** draw.random())


def make_schedule(seed: int) -> Schedule:
    """Give the schedule of a seed."""
    draw = Random(seed)
    config = _config(draw)
    names = [name for name in GROUPS if name not in _ALWAYS]
    chosen = draw.sample(names, draw.randint(3, 9))
    on = {name: weight for name, weight in GROUPS.items() if name in chosen or name in _ALWAYS}
    return Schedule(seed, config, draw.random() < 0.4, _Ops(draw, config, on).make())


def _config(draw: Random) -> dict[str, Any]:
    pick = draw.choice
    segment = pick((4096, 8192, 16_384, 16_384, 65_536))
    checkpoint = pick((4096, 16_384, 65_536))
    config = {
        "precision_ms": pick((100, 1000, 100, 1000, 1, 7, 5000)),
        "wheel_slot_count": pick((16, 32, 128, 128, 128, 512)),
        "roll_window_slots": pick((0, 0, 2, 5, 40)),
        "commit_log_segment_bytes": segment,
        "queue_segment_bytes": 20 * pick((1, 3, 10, 10, 200)),
        "timer_log_segment_bytes": pick((128, 300, 4096, 4096)),
        "index_slot_count": pick((1, 5, 50)),
        "index_entry_count": pick((2, 40, 40, 400)),
        "index_enabled": draw.random() < 0.9,
        "checkpoint_log_bytes": checkpoint,
        "checkpoint_log_bytes_max": pick((checkpoint, 4 * checkpoint, 1 << 28)),
        "checkpoint_interval_ms": pick((10, 500, 5000)),
        "flush_interval_ms": pick((1, 500)),
        "staging_bytes": 4096,
        "reserve_bytes": pick((0, 4096)),
        "flush": pick(("sync", "sync", "async")),
        "visibility": pick(("durable",) * 7 + ("written",)),
        "level_async": draw.random() < 0.3,
        "level_pending_max": pick((1, 3, 2000)),
        "slot_messages_max": pick((0,) * 8 + (1, 20)),
        "start_delay_ms": pick((0,) * 9 + (3000,)),
        "property_crc": draw.random() < 0.9,
    }
    if config["index_enabled"] is False:
        config["flush"] = "sync"  # without an index nobody can ask what an asynchronous put became
    return config


class _Ops:
    """The operations of one schedule."""

    def __init__(self, draw: Random, config: dict[str, Any], on: dict[str, int]) -> None:
        self._draw = draw
        self._config = config
        self._on = on
        if not config["index_enabled"]:
            self._on = {k: w for k, w in on.items() if k not in ("fault", "full")}
        self._names, self._weights = list(self._on), list(self._on.values())
        self._death_rate = log_uniform(draw, 0.02, 0.3)
        self._step_rate = log_uniform(draw, 0.1, 1.0)
        self._policy = draw.choice(("uniform", "pct", "starve", "idle", "robin", "settle"))
        self._order = draw.sample(SERVICES, len(SERVICES))
        self._sizes = draw.choice(("small", "edges", "mixed", "mixed", "large"))
        self._queues = draw.sample(QUEUES, draw.randint(1, 3))

    def make(self) -> list[Op]:
        draw = self._draw
        ops: list[Op] = []
        for _ in range(int(log_uniform(draw, 6, 60))):
            name = draw.choices(self._names, self._weights)[0]
            made = getattr(self, f"_{name}")()
            if "die" in self._on and name not in _NOT_DYING and (
                draw.random() < self._death_rate
            ):  # fmt: skip
                made = self._dying(made)
            ops.append(made)
            if draw.random() < self._step_rate or made[0] in ("fault", "full"):
                ops.append(self._step())
        return ops

    # --- what is given ---

    def _due(self) -> Any:
        draw, edge = self._draw, self._draw.choice((-1, 0, 1))
        kind = draw.choices(("now", "slot", "ms", "roll", "lap", "far"), (2, 4, 4, 2, 2, 1))[0]
        if kind == "slot":
            return [kind, draw.choice((0, 1, 1, 2, 3, 7, 15, 16, 17)), edge]
        if kind in ("roll", "lap"):  # in windows of the roll, laps of the wheel
            return [kind, draw.choice((1, 1, 2, 3)), draw.choice((-1, 0, 1)), edge]
        if kind == "ms":
            return [kind, int(log_uniform(draw, 1, 20_000))]
        if kind == "far":
            return [kind, draw.choice((DAY_MS, 3 * DAY_MS + 1, 400 * DAY_MS, 30 * YEAR_MS)), edge]
        return None

    def _size(self) -> Any:
        draw = self._draw
        kind = self._sizes
        if kind == "mixed":
            kind = draw.choice(("small", "small", "edges", "log"))
        if kind == "edges":  # where the record ends, from a page's, sector's or segment's end
            where = draw.choice(("page", "page", "sector", "segment", "segment"))
            return [where, draw.choice((-40, -17, -16, -15, -1, 0, 1, 3, 16, 40))]
        if kind == "large":
            return draw.randint(500, 3500)
        if kind == "log":
            return int(log_uniform(draw, 6, 3500))
        return draw.randint(6, 90)

    def _queue(self) -> list[Any]:
        return list(self._draw.choice(self._queues))

    def _number(self) -> int:
        return self._draw.randrange(1 << 16)

    # --- callers ---

    def _put(self) -> Op:
        flush = self._draw.choice((None, None, None, "sync", "async"))
        if not self._config["index_enabled"]:
            flush = None
        return ["put", self._queue(), self._due(), self._size(), flush]

    def _put_many(self) -> Op:
        count = self._draw.choice((0, 1, 2, 5, 20, 60))
        items = [[self._due(), self._size() if count < 20 else 40] for _ in range(count)]
        return ["put_many", self._queue(), items, self._draw.random() < 0.5]

    def _same(self) -> Op:
        count = self._draw.choice((2, 10, 60))
        return ["put_many", self._queue(), [[self._due(), 40]] * count, True]

    def _level(self) -> Op:
        return ["put_level", self._queue(), self._draw.choice((1, 1, 2, 3, 5, 18, 99)), 30]

    def _cancel(self) -> Op:
        which = self._draw.choice(("waiting", "waiting", "any", "stranger", "old"))
        return ["cancel", which, self._number(), self._draw.choice(("receipt", "handle", "broker"))]

    def _reschedule(self) -> Op:
        which = self._draw.choice(("waiting", "waiting", "waiting", "any"))
        how = self._draw.choice(("receipt", "handle", "broker"))
        return ["reschedule", which, self._number(), self._due(), how]

    def _wait(self) -> Op:
        return ["wait", self._queue(), self._draw.choice((None, "Aa", "BB"))]

    def _flush(self) -> Op:
        return ["flush"]

    def _look(self) -> Op:
        kind = self._draw.choice(("pending", "filtered", "query", "query_one", "again", "verify"))
        return [kind, self._number()]

    def _read(self) -> Op:
        kind = self._draw.choice(("join", "leave", "read", "read", "commit", "commit", "seek"))
        return ["reader", kind, self._queue()[0], self._draw.randrange(3), self._draw.randint(0, 9)]

    # --- time ---

    def _clock(self) -> Op:
        draw = self._draw
        kind = draw.choice(("due", "due", "slot", "ms", "ms"))
        if kind == "due":
            return ["to_due", draw.randrange(4), draw.choice((-1, 0, 0, 1))]
        if kind == "slot":
            return ["to_slot", draw.choice((0, 1, 2, 15, 48, 64)), draw.choice((-1, 0, 1))]
        return ["advance", int(log_uniform(draw, 1, 20_000)), draw.random() < 0.1]

    def _far(self) -> Op:
        ms = self._draw.choice((DAY_MS, 3 * DAY_MS + 1, 400 * DAY_MS, 10 * YEAR_MS))
        return ["advance", ms, self._draw.random() < 0.5]

    def _back(self) -> Op:
        return ["back", self._draw.choice((1, 150, 5000, DAY_MS, 10 * YEAR_MS))]

    # --- the scheduler ---

    def _step(self) -> Op:
        draw, policy = self._draw, self._policy
        if policy == "settle" or draw.random() < 0.15:
            return ["settle"]
        if policy == "uniform":
            return ["step", [draw.choice(SERVICES) for _ in range(draw.randint(1, 12))]]
        if policy == "robin":
            return ["step", list(SERVICES) * draw.randint(1, 3)]
        if policy == "idle":
            return ["run", [draw.choice(SERVICES)], 100]
        order = list(self._order)
        if policy == "starve":
            return ["run", order[:-1], draw.randint(1, 30)]
        for _ in range(draw.randint(0, 2)):  # change points
            order.append(order.pop(0))
        return ["run", order, draw.randint(1, 12)]

    # --- ends and faults ---

    def _trigger(self) -> Op:
        draw = self._draw
        kind = draw.random()
        if kind < 0.45:
            return ["call", int(log_uniform(draw, 1, 60))]
        if kind < 0.55:
            return ["torn", draw.choice((1, 1, 2)), draw.randrange(3, 8)]
        return ["point", draw.choice(NAMES), int(log_uniform(draw, 1, 5))]

    def _end(self) -> Op:
        """How, its lottery, and how long nobody opens it again."""
        downtime_ms = self._draw.choice((0, 0, 0, 0, 0, 5000, DAY_MS, 3 * YEAR_MS))
        how = self._draw.choice(("kill", "kill", "cut", "cut", "kill_then_cut"))
        return [how, self._number(), downtime_ms]

    def _recovery_deaths(self) -> list[Op]:
        draw, found = self._draw, []
        while draw.random() < 0.3 and len(found) < 3:
            if draw.random() < 0.5:
                trigger = ["call", int(log_uniform(draw, 1, 120))]
            else:
                names = [name for name in NAMES if name.startswith(("recover", "checkpoint"))]
                trigger = ["point", draw.choice(names), draw.randint(1, 2)]
            found.append([trigger, self._end()[:2]])
        return found

    def _dying(self, made: Op) -> Op:
        return ["die", self._trigger(), self._end(), self._recovery_deaths(), made]

    def _die(self) -> Op:
        draw = self._draw
        made = draw.choice((["nothing"], ["settle"], ["settle"], self._step(), ["reopen", 0]))
        return self._dying(made)

    def _reopen(self) -> Op:
        return ["reopen", self._draw.choice((0, 0, 0, 5000, DAY_MS, 3 * YEAR_MS))]

    def _lose(self) -> Op:
        one, other = 1 << self._draw.randrange(11), 1 << self._draw.randrange(11)
        which = self._draw.choice((one, one, one | other, self._draw.randrange(1, 1 << 11)))
        return ["lose", which, self._draw.random() < 0.5]

    def _fault(self) -> Op:
        draw = self._draw
        if draw.random() < 0.2:
            return ["fault", "alloc", int(log_uniform(draw, 1, 40)), 12, True]
        kind = draw.choice((*FAULT_KINDS, "sync", "write", "reserve"))
        code = draw.choice((28, 5)) if kind in ("write", "reserve", "open", "resize") else 5
        nth = draw.randint(1, 3) if kind in _RARE_KINDS else int(log_uniform(draw, 1, 40))
        fault = ["fault", kind, nth, code, draw.random() < 0.6]
        if draw.random() < 0.4 or kind == "zero":  # nothing else zeroes
            return ["fault_in_recovery", self._end(), fault[1:]]
        return fault

    def _full(self) -> Op:
        return ["full", self._draw.choice((0, 0, 1, 2, 5, 20))]
