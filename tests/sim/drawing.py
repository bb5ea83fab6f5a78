"""Draw the operations of a schedule at random, each with all its arguments."""

from random import Random
from typing import Any

from tests.sim.disk import KINDS
from timerstore._engine.base.failpoints import LEASE_NAMES, NAMES

DAY_MS = 86_400_000
YEAR_MS = 31_557_600_000
PAGE = 4096

Op = list[Any]

SERVICES = (
    "dispatch", "enqueue_get", "enqueue_put", "dequeue_get", "dequeue_get_message",
    "dequeue_put", "schedule_deliver", "retention", "flush",
)  # fmt: skip
QUEUES = (("orders", 0), ("orders", 1), ("mail", 0), ("ranked", 0), ("ranked", 4), ("ranked", 9))
# Listings are reads, so they are missing here. So is start_writing: no write is large enough.
FAULT_KINDS = tuple(kind for kind in KINDS if kind not in ("list", "start_writing"))
_RARE_KINDS = ("zero", "unlink", "make_directory", "rename", "resize")

GROUPS = {
    "put": 6, "put_many": 3, "same": 1, "atomic": 2, "once": 4, "ingest": 2, "level": 2,
    "cancel": 3, "reschedule": 3, "wait": 1, "flush": 1, "look": 2, "read": 3, "clock": 5,
    "back": 1, "far": 1, "reopen": 1, "die": 3, "lose": 1, "fault": 2, "full": 1, "expire": 4,
    "backup": 2,
}  # fmt: skip
"""Groups of operations, and how often each one is drawn in a schedule that has it."""
MORE = {"lease": 8, "replace": 5, "recur": 3, "spread": 2, "pace": 2, "cancel_many": 2}
"""Further groups, which a schedule has or does not have."""
_SETTLING = ("ack", "ack", "ack_many", "nack", "extend", "renew", "bury", "give_back")
_NOT_DYING = ("die", "lose", "clock", "fault", "full", "pace")
ALWAYS = ("put", "clock")
OPERATIONS = (
    "put", "put_many", "put_once", "put_many_once", "put_level", "put_many_level", "ingest",
    "cancel", "reschedule", "wait", "flush", "pending", "pending_part", "filtered", "query",
    "query_part", "query_one", "again", "verify", "offset_at", "reader", "advance", "back",
    "to_due", "to_slot", "step", "run", "settle", "reopen", "die", "lose", "fault",
    "fault_in_recovery", "full", "crowd", "backup", "restore", "receive", "settle_lease", "leases",
    "requeue", "group_put", "receive_in_order",
    "replace", "unique", "rounds", "every", "cancel_every", "put_spread", "put_many_spread", "pace",
    "cancel_many", "write_back", "failed_sync", "half", "end_half", "checks", "scrap",
)  # fmt: skip
"""The operations of the groups and of schedule.py. operations.py and its base classes have a method
for each.
"""


def log_uniform(draw: Random, low: float, high: float) -> float:
    """Draw a number such that each order of magnitude is equally likely."""
    return float(low * (high / low) ** draw.random())


class Drawing:
    """Draw the operations of one schedule."""

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
        self._services = (*SERVICES, "recurring") if "recur" in on else SERVICES
        self._order = draw.sample(self._services, len(self._services))
        self._points = (*NAMES, *LEASE_NAMES * 3) if on.keys() & MORE.keys() else NAMES
        self._sizes = draw.choice(("small", "edges", "mixed", "mixed", "large"))
        self._queues = draw.sample(QUEUES, draw.randint(1, 4))

    def make(self) -> list[Op]:
        draw = self._draw
        ops: list[Op] = []
        for _ in range(int(log_uniform(draw, 6, 60))):
            name = draw.choices(self._names, self._weights)[0]
            made = getattr(self, f"_{name}")()
            more = made if isinstance(made[0], list) else [made]
            for one in more:
                may_die = "die" in self._on and name not in _NOT_DYING
                ops.append(self._dying(one) if may_die and self._falls(self._death_rate) else one)
            if draw.random() < self._step_rate or made[0] in ("fault", "full"):
                ops.append(self._step())
        return ops

    def _falls(self, rate: float) -> bool:
        return self._draw.random() < rate

    # --- arguments ---

    def _due(self) -> Any:
        draw, edge = self._draw, self._draw.choice((-1, 0, 1))
        kind = draw.choices(("now", "slot", "ms", "roll", "lap", "far"), (2, 4, 4, 2, 2, 1))[0]
        if kind == "slot":
            return [kind, draw.choice((0, 1, 1, 2, 3, 7, 15, 16, 17)), edge]
        if kind in ("roll", "lap"):  # in windows of the roll, or laps of the wheel
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
        # the end of the record, relative to the end of a page, sector or segment
        if kind == "edges":
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
        return ["put_many", self._queue(), items, self._falls(0.5), False]

    def _same(self) -> Op:
        count = self._draw.choice((2, 10, 60))
        return ["put_many", self._queue(), [[self._due(), 40]] * count, True, False]

    def _atomic(self) -> Op:
        count = self._draw.choice((0, 1, 2, 5, 9, 20))
        items = [[self._due(), self._size() if count < 9 else 200] for _ in range(count)]
        return ["put_many", self._queue(), items, self._falls(0.5), True]

    def _once(self) -> Op:
        draw = self._draw
        if draw.random() < 0.7:
            return ["put_once", self._queue(), draw.randrange(4), self._due(), self._size()]
        which = draw.sample(range(6), draw.randint(1, 4))
        items = [[one, self._due(), 60] for one in which]
        return ["put_many_once", self._queue(), items]

    def _ingest(self) -> Op:
        draw = self._draw
        items = [[self._due(), self._size()] for _ in range(draw.choice((0, 1, 3, 12)))]
        return ["ingest", draw.choice("ab"), draw.randrange(3), items, draw.randint(1, 12)]

    def _level(self) -> Op:
        level = self._draw.choice((1, 1, 2, 3, 5, 18, 99))
        if self._falls(0.4):
            return ["put_many_level", self._queue(), level, [30] * self._draw.choice((1, 3, 20))]
        return ["put_level", self._queue(), level, 30]

    def _cancel(self) -> Op:
        which = self._draw.choice(("waiting", "waiting", "any", "stranger", "old"))
        return ["cancel", which, self._number(), self._draw.choice(("receipt", "handle", "broker"))]

    def _cancel_many(self) -> Op:
        how = [
            self._draw.choice(("receipt", "handle", "broker"))
            for _ in range(self._draw.choice((1, 2, 5, 12)))
        ]
        return ["cancel_many", self._draw.choice(("waiting", "any")), self._number(), how]

    def _reschedule(self) -> Op:
        which = self._draw.choice(("waiting", "waiting", "waiting", "any"))
        how = self._draw.choice(("receipt", "handle", "broker"))
        return ["reschedule", which, self._number(), self._due(), how]

    def _wait(self) -> Op:
        return ["wait", self._queue(), self._draw.choice((None, "Aa", "BB"))]

    def _flush(self) -> Op:
        return ["flush"]

    def _look(self) -> Op:
        kinds = (
            "pending", "pending_part", "filtered", "query", "query_part", "query_one", "again",
            "verify", "offset_at",
        )  # fmt: skip
        return [self._draw.choice(kinds), self._number()]

    def _read(self) -> Op:
        kind = self._draw.choice(("join", "leave", "read", "read", "commit", "commit", "seek"))
        return ["reader", kind, self._queue()[0], self._draw.randrange(3), self._draw.randint(0, 9)]

    # --- leases, rounds, recurring messages, bursts ---

    def _lease(self) -> Any:
        draw = self._draw
        kinds = ("receive", "settle", "fill", "again", "leases", "requeue", "letters")
        kind = draw.choices(kinds, (10, 12, 4, 2, 2, 2, 1))[0]
        ms = draw.choice((1, 500, 500, 3000, 30_000))
        if kind == "settle":
            how = draw.choice(_SETTLING)
            return ["settle_lease", how, self._number(), ms]
        if kind == "leases":
            return ["leases", self._number()]
        if kind == "requeue":
            return ["requeue", self._number(), draw.choice((1, 1, 3, None))]
        queue = self._queue()
        topics = sorted({one[0] for one in self._queues})
        topic = draw.choice((queue[0], queue[0], draw.sample(topics, len(topics))))
        receive = ["receive", topic, draw.choice((1, 1, 2, 7, 40)), ms]
        if kind == "receive":
            return receive
        # without a settlement it is handed out again, and finally becomes a dead letter
        if kind == "again":
            over = ["advance", draw.choice((500, 5000, 30_000)), False]
            return [receive, over, ["settle"]] * draw.choice((2, 5))
        items = [[None, self._size()] for _ in range(draw.choice((1, 3, 12)))]
        filled = [["put_many", queue, items, False, False], ["settle"], receive]
        if kind == "fill":
            return filled
        # dead letters are requeued, some of them again after the next opening
        buried = [["settle_lease", "bury", number, ms] for number in range(draw.choice((1, 4)))]
        requeue = ["requeue", self._number(), draw.choice((1, 3, None))]
        again = [requeue] if draw.random() < 0.5 else [["reopen", 0], requeue]
        return [*filled, *buried, ["settle"], requeue, *again]

    def _replace(self) -> Op:
        draw = self._draw
        if draw.random() < 0.1:
            return ["rounds", self._number()]
        wait_ms = draw.choice((None, None, 0, 500, 5000, 60_000))
        flush = draw.choice((None, None, "sync", "async"))
        due = self._due()
        return ["replace", self._queue(), draw.randrange(2), due, self._size(), wait_ms, flush]

    def _recur(self) -> Op:
        draw = self._draw
        if draw.random() < 0.2:
            return ["cancel_every", draw.randrange(3)]
        every_ms = draw.choice((1000, 1500, 7000, 60_000, 3_600_000))
        begins = draw.choice((None, None, -35, -5, 0, 5, 20))
        missed = draw.choice(("skip", "one", "all"))
        return ["every", draw.randrange(3), every_ms, missed, begins]

    def _spread(self) -> Op:
        draw = self._draw
        window_ms = draw.choice((0, 1, 500, 20_000, 400_000))
        if draw.random() < 0.5:
            return ["put_spread", self._queue(), self._due(), self._size(), window_ms]
        count = draw.choice((1, 2, 10, 60))
        return ["put_many_spread", self._queue(), self._due(), count, window_ms]

    def _pace(self) -> Op:
        rate = self._draw.choice((0.5, 2.0, 30.0, 1000.0, None))
        return ["pace", self._queue()[0], rate]

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
            return ["step", [draw.choice(self._services) for _ in range(draw.randint(1, 12))]]
        if policy == "robin":
            return ["step", list(self._services) * draw.randint(1, 3)]
        if policy == "idle":
            return ["run", [draw.choice(self._services)], 100]
        order = list(self._order)
        if policy == "starve":
            return ["run", order[:-1], draw.randint(1, 30)]
        # change points, where the priorities of the services change
        for _ in range(draw.randint(0, 2)):
            order.append(order.pop(0))
        return ["run", order, draw.randint(1, 12)]

    # --- deaths and faults ---

    def _trigger(self) -> Op:
        draw = self._draw
        kind = draw.random()
        if kind < 0.45:
            return ["call", int(log_uniform(draw, 1, 60))]
        if kind < 0.55:
            return ["torn", draw.choice((1, 1, 2)), draw.randrange(3, 8)]
        return ["point", draw.choice(self._points), int(log_uniform(draw, 1, 5))]

    def _end(self) -> Op:
        """Draw how a process dies, the lottery of the cut, and the time until the store is opened
        again.
        """
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
        if draw.random() < 0.15:  # during a hand-over
            fault = ["fault", "alloc", draw.randint(1, 12), 12, True]
            return [["to_due", 0, draw.choice((0, 1000))], fault, ["settle"]]
        kind = draw.choice((*FAULT_KINDS, "sync", "write", "reserve"))
        if draw.random() < 0.35:
            kind = draw.choice(("zero", "zero", "make_directory", "unlink", "rename"))
        code = draw.choice((28, 5)) if kind in ("write", "reserve", "open", "resize") else 5
        nth = draw.choice((1, 1, 2, 3)) if kind in _RARE_KINDS else int(log_uniform(draw, 1, 40))
        fault = ["fault", kind, nth, code, draw.random() < 0.6]
        if draw.random() < 0.4 or kind == "zero":  # no other operation writes zeros
            return ["fault_in_recovery", self._end(), fault[1:]]
        return fault

    def _expire(self) -> list[Op]:
        """Fill files and let them expire, or fill the disk with other data."""
        draw = self._draw
        fill = [[None, draw.choice((1500, 3000))]] * draw.choice((2, 4, 8))
        ops: list[Op] = [["put_many", self._queue(), fill, True, False], ["settle"]]
        if self._config.get("retention_disk_percent"):
            ops += [["crowd", draw.choice((0, 95, 95))]]
        ops += [["advance", draw.choice((1000, 30_000, DAY_MS)), False]]
        names = draw.choice((["retention"], ["retention", "flush"], list(SERVICES)))
        return [*ops, draw.choice((["settle"], ["run", names, draw.randint(1, 60)]))]

    def _backup(self) -> Op:
        number = self._draw.randrange(2)
        return ["restore", number, self._falls(0.5)] if self._falls(0.3) else ["backup", number]

    def _full(self) -> Op:
        draw, pages = self._draw, self._draw.choice((0, 0, 1, 2, 5, 20))
        if draw.random() < 0.6:
            return ["full", pages]
        # The delivery of due messages finds the disk full. Then the store dies, or space is freed.
        level = ["put_level", self._queue(), draw.choice((1, 1, 2)), 30]
        fill = draw.choice(([level], [level] * 3, [self._put()], [self._put(), level]))
        due = draw.choice((["advance", 5000, False], ["to_due", 0, 0]))
        ops = [*fill, ["settle"], due, ["full", pages], ["run", list(SERVICES), draw.randint(1, 9)]]
        return [*ops, draw.choice((["full", 0], self._dying(["nothing"]), self._step()))]
