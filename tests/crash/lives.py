"""Choose the lives of a campaign: every fail point, random times, many rounds in one directory.

A life is one directory with several rounds of work that end in a kill.

Invariants:
    1. The same seed gives the same lives. Their course depends on threads and time.
"""

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

from tests.support.inside import failpoints

KIB = 1024

Round = dict[str, Any]

_CLOSES = [name for name in failpoints.NAMES if name.startswith("close_")]
_ANEW = [
    name
    for name in failpoints.NAMES
    if name.startswith("recover_rebuild_") or name == "recover_index_removed"
]
_RECOVERS = [name for name in failpoints.NAMES if name.startswith("recover_") and name not in _ANEW]
_SELDOM = {"topics_json_written", "segment_created", "log_rolled"}
_SHORT_CALLS = 8
_RELINKED = "recover_index_relinked"
_RETAINS = {
    "commit_log_segment_bytes": 16 * KIB,
    "queue_segment_bytes": 400,
    "timer_log_segment_bytes": 4 * KIB,
    "staging_bytes": 4 * KIB,
    "index_entry_count": 300,
    "checkpoint_interval_ms": 30,
    "flush_interval_ms": 50,
    "retention_ms": 1000,
}
# long enough for some messages to wait without a roll
_MOVES = {"wheel_slot_count": 128, "precision_ms": 100}
_PASSES = {"wheel_slot_count": 16, "precision_ms": 10}
_FAR = {
    "far_wheel": "shared",
    "wheel_slot_count": 32,
    "precision_ms": 10,
    "timer_log_segment_bytes": 300,
    "checkpoint_interval_ms": 10,
}
_NEEDS = {_RELINKED: {"checkpoint_log_bytes": 8 * KIB, "index_entry_count": 4000}} | {
    name: _RETAINS | (_PASSES if name == "retention_timer_log_unlinked" else _MOVES)
    for name in failpoints.NAMES
    if name.startswith("retention_")
}
_NEEDS |= {name: _FAR for name in failpoints.NAMES if "far_" in name}


def make_config(random: Random) -> dict[str, Any]:
    """Return a configuration with small files and wheels, and a flush mode."""
    is_tiny = random.random() < 0.7
    return {
        "commit_log_segment_bytes": 16 * KIB if is_tiny else random.choice((64, 1024)) * KIB,
        "queue_segment_bytes": random.choice((400, 2000)) if is_tiny else 20_000,
        "timer_log_segment_bytes": (4 if is_tiny else 64) * KIB,
        "wheel_slot_count": random.choice((16, 32, 128)),
        "index_slot_count": random.choice((1, 10, 1000)),
        "index_entry_count": random.choice((20, 300, 4000)),
        "precision_ms": random.choice((10, 20, 100)),
        "staging_bytes": random.choice((4, 8) if is_tiny else (16, 64)) * KIB,
        "reserve_bytes": random.choice((0, 4 * KIB, 64 * KIB)),
        "checkpoint_interval_ms": random.choice((10, 30, 500)),
        "checkpoint_log_bytes": random.choice((8 * KIB, 1024 * KIB)),
        "checkpoint_log_bytes_max": 1024 * KIB,
        "flush_interval_ms": random.choice((5, 50, 500)),
        "flush": random.choice(("sync", "async")),
        "visibility": random.choice(("durable", "durable", "written")),
        "topic_queue_count": random.choice((1, 1, 2)),
        "property_crc": random.random() < 0.8,
        "level_delays": "1s 2s",
        "level_async": random.random() < 0.3,
        "level_pending_max": random.choice((1, 20, 2000)),
        "retention_ms": random.choice((0, 0, 0, 1000)),
        "retention_disk_percent": 0,
        "far_wheel": random.choice(("off", "shared", "own")),
    }


def at_random(random: Random) -> Round:
    """Die at a time that the parent chooses: during the opening, at once, or later."""
    if random.random() < 0.3:
        return {"after_ms": 40 * random.random() ** 2, "step_ms": random.random()}
    return _while_open(random)


def _while_open(random: Random) -> Round:
    after_ms = 1.5 ** random.uniform(-2, 12.5)
    return {"after_ms": after_ms, "from_opened": True, "step_ms": random.choice((0.1, 1.0))}


def at_point(random: Random, point: str) -> list[Round]:
    """Die at a fail point, after the rounds that are needed to reach it."""
    if point in _CLOSES:
        return [{"point": point, "nth": random.choice((1, 1, 2)), "calls": _SHORT_CALLS}]
    if point in _ANEW:
        before = {"point": "close_wheel_restored", "calls": _SHORT_CALLS}
        how = random.choice(("closing", "lost", "lost"))
        if how == "closing":
            return [before, {"point": point}]
        return [_while_open(random), {"point": point, "lose": True}]
    if point == _RELINKED:  # an index that was saved while its newest file was filling
        return [{"point": "checkpoint_index_saved"}, {"point": point, "calls": _SHORT_CALLS}]
    if point in _RECOVERS:
        return [_while_open(random), {"point": point, "calls": _SHORT_CALLS}]
    if point.startswith("schedule_"):  # the shortest delay is a second
        return [{"point": point, "nth": random.randint(1, 3), "step_ms": 8.0, "calls": 250}]
    if point.startswith("retention_"):  # files must be a second old
        return [{"point": point, "nth": random.randint(1, 2), "step_ms": 8.0, "calls": 400}]
    if point in ("far_tidied", "far_unlinked"):  # when more timers are dead there than pending
        return [{"point": point, "nth": random.randint(1, 2), "step_ms": 4.0, "calls": 300}]
    if point.startswith(("backup_", "restore_")):
        calls = _SHORT_CALLS if point == "restore_built" else 60
        return [{"point": point, "nth": random.randint(1, 2), "calls": calls, "backup_share": 0.4}]
    nth = random.randint(1, 3) if point in _SELDOM else int(1.4 ** random.uniform(0, 10))
    return [{"point": point, "nth": nth, "step_ms": random.choice((0.1, 0.5))}]


def make_power_lives(seed: int, cuts: int) -> Iterator[dict[str, Any]]:
    """Return lives that end in power cuts, where acknowledged and visible messages are durable."""
    for life in make_lives(seed, 10 * cuts):
        # Without a watermark torn pages look like damage, which an opening must not ignore.
        if any(one.get("lose") for one in life["rounds"]):
            continue
        life["config"] |= {"flush": "sync", "visibility": "durable"}
        yield life
        cuts -= len(life["rounds"])
        if cuts <= 0:
            return


def make_lives(seed: int, kills: int) -> Iterator[dict[str, Any]]:
    """Return lives with about this many kills, half of them at fail points, each equally often."""
    random = Random(seed)
    numbers = count()

    def live(rounds: list[Round], point: str = "") -> dict[str, Any]:
        return {
            "number": next(numbers),
            "seed": random.randrange(1 << 30),
            # a sync takes no time there, which allows more kills
            "in_memory": random.random() < 0.75,
            "config": make_config(random) | _NEEDS.get(point, {}),
            "rounds": rounds,
        }

    planned = 0
    while planned < kills:
        for point in random.sample(failpoints.NAMES, len(failpoints.NAMES)):
            rounds = at_point(random, point)
            planned += len(rounds)
            yield live(rounds, point)
        for _ in range(15):
            planned += 1
            yield live([at_random(random)])
        for _ in range(4):
            rounds = _many_rounds(random)
            planned += len(rounds)
            yield live(rounds)


def make_few_lives(seed: int, lives: int) -> Iterator[dict[str, Any]]:
    """Return one life for each group of fail points, and others that end at random times."""
    families = {
        name.partition("_")[0]: name
        for name in Random(seed).sample(failpoints.NAMES, len(failpoints.NAMES))
    }
    chosen = set(families.values())
    at_points, others = [], []
    for life in make_lives(seed, 2 * len(failpoints.NAMES)):
        points = {one.get("point") for one in life["rounds"]}
        if points & chosen and len(life["rounds"]) <= 2:
            chosen -= points
            at_points.append(life)
        elif points == {None}:
            others.append(life)
    yield from (at_points + others)[:lives]


def _many_rounds(random: Random) -> list[Round]:
    """Return five to ten rounds, with deaths in recoveries of recoveries, and work between."""
    rounds: list[Round] = []
    while len(rounds) < random.randint(5, 9):
        kind = random.random()
        if kind < 0.35 and rounds:
            rounds += [{"point": random.choice(_RECOVERS), "calls": _SHORT_CALLS}]
        elif kind < 0.65:
            rounds += [at_random(random)]
        else:
            rounds += at_point(random, random.choice(failpoints.NAMES))
    return rounds[:10]
