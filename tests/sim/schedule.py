"""Draw a schedule from a seed: sizes and settings of a store, and the operations made on it.

Each seed draws its own subset of operations, sizes and faults (swarm testing). If every run had a
few of each, no run would have enough of any.

Invariants:
    1. A schedule is plain JSON. Each operation carries all its arguments, so that any of them can
       be left out and the rest still runs (shrink.py).
    2. The same seed gives the same schedule, whatever the engine does.
"""

from random import Random
from typing import Any, NamedTuple

from tests.sim.drawing import ALWAYS, DAY_MS, GROUPS, MORE, Drawing, Op
from tests.sim.shards.drawing import draw_shards
from timerstore._engine.base.failpoints import DELETION_NAMES


class Schedule(NamedTuple):
    """The settings and operations of one run."""

    seed: int
    config: dict[str, Any]  # of StoreConfig
    is_small: bool  # whether every batch of the engine is full after a few messages
    ops: list[Op]
    shards: dict[str, Any] | None = None  # number of shards, and the deaths during their creation

    def to_json(self) -> dict[str, Any]:
        found = self._asdict()
        if self.shards is None:
            del found["shards"]
        return found


def make_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    draw = Random(seed)
    config = _config(draw)
    names = [name for name in GROUPS if name not in ALWAYS]
    chosen = draw.sample(names, draw.randint(3, 10))
    on = {name: weight for name, weight in GROUPS.items() if name in chosen or name in ALWAYS}
    if "expire" in on:
        _forget(draw, config)
    # a generator of its own, so that older seeds keep their schedules
    more = Random(f"{seed} more")
    is_sharded = seed % _SHARDED_OF in _SHARDED
    if more.random() < (_MORE_SHARDED_RATE if is_sharded else _MORE_RATE):
        chosen = more.sample(list(MORE), more.choice((1, 1, 2, 3)))
        if is_sharded:
            chosen += [name for name in ("lease", "pace") if more.random() < 0.3]
        on |= {name: MORE[name] for name in MORE if name in chosen}
        _fit(more, config, chosen)
    is_small = draw.random() < 0.4
    ops = Drawing(draw, config, on).make()
    _with_far_wheel(Random(f"{seed} far"), config, ops)
    _with_cron(Random(f"{seed} cron"), ops)
    if seed % _FULL_EVERY == _FULL_EVERY // 2:
        _with_full_wheel(Random(f"{seed} full"), config, ops)
    kernel = Random(f"{seed} kernel")
    if not is_sharded:
        _with_unique(Random(f"{seed} unique"), ops)
        _with_half_messages(Random(f"{seed} half"), ops)
        _with_message_groups(Random(f"{seed} message groups"), ops)
        _with_failed_sync(kernel, config, ops)
        _with_write_back(kernel, ops)
        if seed % 19 == 14 or seed % 23 == 22 or seed % 29 == 16:
            _with_scrap(Random(f"{seed} scrap"), config, ops)
        return Schedule(seed, config, is_small, ops)
    config["dedupe"] = "id"  # a conflict in one shard does not keep others from storing their parts
    shards = draw_shards(Random(f"{seed} shards"), ops)
    _with_write_back(kernel, shards.ops)
    return Schedule(seed, config, is_small, shards.ops, shards.made)


_SHARDED_OF, _SHARDED = 30, (9, 17)  # remainders of seeds; no killer or regression has one of them
_MORE_RATE = 0.45
_MORE_SHARDED_RATE = 0.8  # calls for several shards are in this group
_FULL_EVERY = 11  # one of this many seeds has a full wheel


def _with_far_wheel(draw: Random, config: dict[str, Any], ops: list[Op]) -> None:
    """Configure a far wheel in most schedules.

    At some openings another far wheel is chosen, and its files can be lost.
    """
    config["far_wheel"] = draw.choice(("off", "shared", "shared", "own"))
    for made in ops:
        op = made[-1] if made[0] == "die" else made
        if op[0] == "reopen":
            op.append(draw.choice((None, None, "off", "shared", "own")))
        elif op[0] == "lose" and draw.random() < 0.5:
            op[1] |= draw.randrange(1, 8) << 11


def _with_cron(draw: Random, ops: list[Op]) -> None:
    """Give some of the recurring messages as cron expressions."""
    for made in ops:
        op = made[-1] if made[0] == "die" else made
        if op[0] == "every" and op[2] in (60_000, 3_600_000) and draw.random() < 0.5:
            op[4:] = [None, True]


def _with_unique(draw: Random, ops: list[Op]) -> None:
    """Make some of the messages unique, in most schedules that lease."""
    inner = [made[-1] if made[0] == "die" else made for made in ops]
    if draw.random() < 0.3 or all(op[0] != "receive" for op in inner):
        return
    for op in inner:
        if op[0] == "put" and draw.random() < 0.6:
            op[:] = ["unique", op[1], draw.randrange(2), *op[2:]]


def _with_half_messages(draw: Random, ops: list[Op]) -> None:
    """Put half messages in some schedules, and end them; the process may die in each call."""
    if draw.random() < 0.7:
        return
    for _ in range(draw.choice((3, 8, 20, 40))):
        kind = draw.choices(("half", "end_half", "checks", "advance"), (4, 5, 3, 2))[0]
        op: Op = [kind]
        if kind == "half":
            op += [draw.choice((0, 1, 500, 5000, 60_000, DAY_MS))]
        elif kind == "end_half":
            op += [draw.choice(("commit", "commit", "rollback"))]
            op += [draw.randrange(1 << 16), draw.choice(("handle", "check"))]
        elif kind == "checks":
            op += [draw.choice((1, 3)), draw.choice((1000, 60_000))]
        else:
            op += [draw.choice((1000, 3000, 40_000, DAY_MS)), False]
        if draw.random() < 0.25:
            point = draw.choice(("half_appended", "reschedule_encoded", "reschedule_appended"))
            trigger = draw.choice((["point", point, 1], ["call", draw.randint(1, 12)]))
            end = [draw.choice(("kill", "cut", "kill_then_cut")), draw.randrange(1 << 16), 0]
            op = ["die", trigger, end, [], op]
        ops.insert(draw.randrange(len(ops) + 1), op)


def _with_message_groups(draw: Random, ops: list[Op]) -> None:
    """Receive in order in some schedules that lease, and put some of the messages in groups."""
    inner = [made[-1] if made[0] == "die" else made for made in ops]
    if draw.random() < 0.6 or all(op[0] != "receive" for op in inner):
        return
    for op in inner:
        if op[0] == "receive":
            op[0] = "receive_in_order"
        elif op[0] == "put" and op[1][0] != "ranked" and draw.random() < 0.8:
            op[:] = ["group_put", op[1], draw.randrange(3), *op[2:]]


def _with_full_wheel(draw: Random, config: dict[str, Any], ops: list[Op]) -> None:
    """Fill all slots with messages that are due laps later, because the clock was set back."""
    slots = config["wheel_slot_count"] = draw.choice((16, 16, 32))
    ahead_ms = draw.choice((1, 2, 50)) * slots * int(config["precision_ms"])
    queue = draw.choice((["orders", 1], ["mail", 0]))
    held = [[["slot", slot, 0], 20] for slot in range(slots + 1)]
    new = [[["slot", draw.randrange(slots), draw.choice((-1, 0, 1))], 20] for _ in range(12)]
    at = draw.randrange(len(ops) + 1)
    ops[at:at] = [
        ["advance", ahead_ms, False],
        ["put_many", queue, held, False, False],
        ["settle"],
        ["back", ahead_ms + draw.choice((0, 0, 1, 150))],
        ["put_many", queue, new, False, False],
    ]


def _with_write_back(draw: Random, ops: list[Op]) -> None:
    """Let the kernel write back pages on its own."""
    for _ in range(draw.choice((0, 0, 1, 2, 6))):
        ops.insert(draw.randrange(len(ops) + 1), ["write_back", draw.randrange(1 << 31)])


def _with_scrap(draw: Random, config: dict[str, Any], ops: list[Op]) -> None:
    """Delete a topic some times, in schedules without faults: then its deletion is always ended.

    No planted bug is found by a seed that calls this, so all of them keep their seeds.
    """
    names = {made[-1][0] if made[0] == "die" else made[0] for made in ops}
    if names & {"fault", "full", "fault_in_recovery", "failed_sync", "crowd"}:
        return
    if config["slot_messages_max"] or config["visibility"] == "written":
        return
    for _ in range(draw.choice((1, 3, 6))):
        scrap: Op = ["scrap", draw.randrange(1 << 16)]
        if draw.random() < 0.8:
            point = ["point", draw.choice((*DELETION_NAMES, "checkpoint_watermark_written")), 1]
            trigger = draw.choice((point, ["call", draw.randint(1, 120)]))
            end = [draw.choice(("kill", "cut")), draw.randrange(1 << 16)]
            deaths = [[draw.choice((point, ["call", draw.randint(1, 200)])), end]]
            scrap = ["die", trigger, [*end, 0], draw.choice(([], deaths)), scrap]
        ops.insert(draw.randrange(len(ops) + 1), scrap)


def _with_failed_sync(draw: Random, config: dict[str, Any], ops: list[Op]) -> None:
    """Add a failed sync, a death, a lost derived file and a power cut in short order."""
    if config["index_enabled"] and draw.random() < 0.2:
        names = ("put", "put_many", "cancel", "flush", "settle")
        chosen = [op for op in ops if op[0] in names] or [["settle"]]
        op = [draw.choice(chosen), draw.choice((1, 1, 2, 3, 8)), 1 << draw.randrange(11)]
        ops.insert(draw.randrange(len(ops) + 1), ["failed_sync", *op, draw.randrange(1 << 31)])


def _fit(draw: Random, config: dict[str, Any], chosen: list[str]) -> None:
    """Adjust the settings to the chosen operations, and to the model's limits."""
    config["visibility"] = "durable"
    config["spread_seed"] = draw.randrange(1, 1 << 31)
    if "replace" in chosen:
        config["index_enabled"] = True
    if "recur" in chosen:
        config["slot_messages_max"] = 0
    if "pace" in chosen and draw.random() < 0.3:
        config["topic_rates"] = draw.choice(("orders=2", "orders=0.5 mail=100"))


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
    # Without a draw of its own, so that earlier seeds keep their schedules.
    is_short = config["timer_log_segment_bytes"] == 300
    config["delivered_properties"] = "needed" if is_short else "all"
    config["dedupe"] = "content" if config["reserve_bytes"] else "id"
    config["dedupe_window_ms"] = pick((0, 20_000, 20_000, 3_600_000))
    if config["index_enabled"] is False:
        # without an index, the result of an asynchronous put cannot be queried
        config["flush"] = "sync"
    return config


def _forget(draw: Random, config: dict[str, Any]) -> None:
    """Configure retention by age, by size, or both."""
    segment = config["commit_log_segment_bytes"] = draw.choice((4096, 8192, 8192, 16_384))
    limits = {
        "retention_ms": draw.choice((1000, 30_000, DAY_MS)),
        "retention_log_bytes": segment * draw.choice((1, 3, 8)),
        "retention_disk_percent": 80,
    }
    chosen = draw.sample(sorted(limits), draw.choice((1, 1, 1, 2, 3)))
    config.update({name: limits[name] for name in chosen})
