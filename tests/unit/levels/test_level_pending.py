"""Pending messages on delay levels: counts by topic, `pending()`, and `put_many`."""

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.amounts import sample
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import inside
from tests.support.level_bench import raw_level_put
from timerstore import Message, MessageError, PendingTimer, StoreConfig
from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.delay_levels import parse_level_delays, real_queue
from timerstore._engine.format.store_paths import Tree

DELAYS = parse_level_delays(StoreConfig().level_delays)
HERE = {"REAL_TOPIC": "t", "REAL_QID": "0", "UNIQ_KEY": "K", "DELAY": "1"}


def listed(bench: Bench, **given: Any) -> list[tuple[str, int, int]]:
    return [(one.topic, one.queue_id, one.due_ms - NOW) for one in bench.store.pending(**given)]


def counted(bench: Bench) -> tuple[dict[str, int], int, int]:
    stats = bench.store.stats()
    topics = Counter(one.topic for one in bench.store.pending())
    assert stats["pending_by_topic"] == topics
    assert stats["pending_messages"] == sum(topics.values())
    return stats["pending_by_topic"], stats["pending_messages"], stats["level_pending_messages"]


@pytest.fixture
def mixed(bench: Bench) -> Bench:
    """Timers and levels, of two topics and several queues."""
    bench.store.put("t", b"level 2", level=2)  # 5 s
    bench.store.put("t", b"timer", delay=4)
    bench.store.put("u", b"level 1", level=1, queue_id=3)
    bench.store.put_many("u", [b"level 3"] * 2, level=3, queue_id=1)  # 10 s
    bench.store.put("u", b"timer", delay=5)
    bench.store.put("t", b"now")
    return bench


# --- pending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dispatched", [False, True])
def test_pending_lists_levels_and_timers_in_order_of_due_time(
    mixed: Bench, dispatched: bool
) -> None:
    if dispatched:
        mixed.turn()
    assert listed(mixed) == [
        ("u", 3, 1000),
        ("t", 0, 4000),
        ("u", 0, 5000),
        ("t", 0, 5000),
        ("u", 1, 10_000),
        ("u", 1, 10_000),
    ]
    assert listed(mixed, topic="t") == [("t", 0, 4000), ("t", 0, 5000)]
    assert listed(mixed, begin_ms=NOW + 5000, end_ms=NOW + 10_000) == [
        ("u", 0, 5000),
        ("t", 0, 5000),
    ]
    assert listed(mixed, topic="no such") == []
    assert counted(mixed) == ({"t": 2, "u": 4}, 6, 4)


def test_pending_agrees_with_receipt(mixed: Bench) -> None:
    receipt = mixed.store.put("v", b"x", level=4, queue_id=2)
    (one,) = mixed.store.pending(topic="v")
    assert one == PendingTimer(
        receipt.message_id, "v", 2, NOW + DELAYS[3], -1, receipt.log_offset, ""
    )


def test_counts_decrease_with_deliveries(mixed: Bench) -> None:
    mixed.turn(999)
    assert counted(mixed)[1:] == (6, 4)
    mixed.turn(1)
    assert counted(mixed) == ({"t": 2, "u": 3}, 5, 3)
    mixed.turn(9000)
    assert counted(mixed) == ({}, 0, 0)
    assert listed(mixed) == []


def test_pending_iterator_continues_during_deliveries(mixed: Bench) -> None:
    mixed.turn()
    found = mixed.store.pending()
    assert next(found).due_ms == NOW + 1000
    mixed.turn(10_000)
    assert len(list(found)) == 5, "those pending when the iteration began"


def test_undeliverable_message_does_not_count_as_pending(bench: Bench) -> None:
    bench.store.put("t", b"x", level=18)
    for wrong in ({"REAL_TOPIC": ""}, {"REAL_TOPIC": "a/b"}, {"REAL_QID": "-1"}, {"DELAY": "0"},
                  {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"}):  # fmt: skip
        properties = {name: value for name, value in {**HERE, **wrong}.items() if value}
        assert real_queue(properties) is None
        raw_level_put(bench, 0, properties)
    assert counted(bench) == ({"t": 1}, 1, 1)
    bench.turn(SECOND)
    assert counted(bench) == ({"t": 1}, 1, 1)


def test_pending_due_time_is_earlier_when_clock_was_set_back(bench: Bench) -> None:
    """A message is due its level's delay after it was stored, if that is earlier.

    See docs/decisions/0007-delay-levels.md.
    """
    bench.store.put("t", b"x", level=3)
    bench.clock.set(NOW - 60_000)
    assert listed(bench) == [("t", 0, 10_000)]
    bench.clock.set(NOW)


def test_pending_due_time_is_earlier_with_shorter_delay(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(level_delays="1h"))
    bench.store.put("t", b"x", level=1)
    bench.close()
    bench.config = small(level_delays="5s")
    bench.open()
    assert listed(bench) == [("t", 0, 5000)]
    bench.turn(5000)
    assert bench.bodies() == [b"x"]
    assert counted(bench) == ({}, 0, 0)
    bench.close()


# --- exact after any crash ------------------------------------------------------------------------


class Died(BaseException):
    """Stands for a crash of the process."""


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        *itertools.product(
            ["schedule_encoded", "schedule_placed", "put_level_appended", "put_many_part_appended"],
            [1, 2, 3],
        ),
        *itertools.product(
            ["checkpoint_log_synced", "checkpoint_counts_written", "checkpoint_watermark_written"],
            [1, 2],
        ),
    ],
)
@pytest.mark.parametrize("lost", sample(["nothing", "counts", "watermark"], "ends"))
def test_counts_are_exact_after_crash_at_any_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str, nth: int, lost: str
) -> None:
    from timerstore._engine.base import failpoints

    left = [nth]

    def die(name: str) -> None:
        if name == point:
            left[0] -= 1
            if not left[0]:
                shutil.copytree(bench.root, bench.root.with_name("after"))
                raise Died

    def work() -> None:
        for _ in range(3):
            bench.store.put("t", b"x", level=1)
            bench.store.put_many("u", [b"y"] * 1500, level=2, queue_id=1)
            bench.store.put("t", b"z", delay=3)
            bench.turn(1500)
            bench.store.flush()
        bench.turn(60_000)

    monkeypatch.setattr(failpoints, "hook", die)
    with pytest.raises(Died):
        work()
    monkeypatch.setattr(failpoints, "hook", None)
    inside(bench.store).log.fail(MessageError("died"))
    bench.store.close()
    bench.root = bench.root.with_name("after")
    if lost != "nothing":
        tree = Tree(bench.root)
        (tree.counts if lost == "counts" else tree.watermark).unlink(missing_ok=True)
    bench.open()
    counted(bench)  # agrees with `pending`; `verify` compares the counts with the log
    report = bench.store.verify()
    assert report.clean, report
    bench.turn(60_000)
    assert counted(bench) == ({}, 0, 0)


def test_counts_are_rebuilt_when_counts_file_lacks_them(mixed: Bench) -> None:
    mixed.turn(1000)
    mixed.close()
    path = Tree(mixed.root).counts
    text = path.read_bytes()
    mark = counts_json.read_counts(text, _log_end(mixed.root))
    assert mark is not None
    assert mark.level_pending == {"t": {0: 1}, "u": {1: 2}}
    path.write_bytes(text.replace(b'"level_pending"', b'"no_such_thing"'))
    mixed.open()
    assert counted(mixed) == ({"t": 2, "u": 3}, 5, 3)


def _log_end(root: Path) -> int:
    mark = watermark.read(Tree(root).watermark.read_bytes())
    assert mark is not None
    return mark.log_end


@pytest.mark.parametrize("where", ["memory", "file"])
def test_verify_reports_wrong_count(mixed: Bench, where: str) -> None:
    mixed.turn()
    mixed.store.flush()
    route = inside(mixed.store).routes.get("u", 1)
    assert route is not None
    route.native.level_pending += 1
    if where == "file":
        mixed.store.put("t", b"more")
        mixed.store.flush()
        route.native.level_pending -= 1
        (problem,) = mixed.store.verify().problems
        assert "level_pending" in problem.what
        mixed.store.put("t", b"more")
        mixed.store.flush()
    else:
        (problem,) = mixed.store.verify().problems
        assert problem.what == "pending on levels of topic u queue 1"
        route.native.level_pending -= 1


# --- put_many with a level ------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("level", [1, 18, 19, np.int64(2), 2**70])
def test_put_many_with_level_agrees_with_put(bench: Bench, buffer: bool, level: int) -> None:
    one = bench.store.put("t", b"a", level=level, tags="A", keys=["k"])
    bodies: Any = (b"abbccc", np.array([0, 1, 3, 6])) if buffer else [b"a", b"bb", b"ccc"]
    batch = bench.store.put_many("t", bodies, level=level, tags="A", keys=["k", ["l", "m"], ()])
    assert [receipt.due_ms for receipt in batch] == [one.due_ms] * 3
    assert all(r.waits_for_level and r.queue_offset is None and not r.handle for r in batch)
    assert len({one.message_id, *batch.message_ids}) == 4
    assert counted(bench) == ({"t": 4}, 4, 4)
    bench.turn()
    found = bench.store.query("t", "l")
    assert [(m.body, m.waits, m.due_ms) for m in found] == [(b"bb", True, one.due_ms)]
    bench.turn(one.due_ms - NOW - 1)
    assert bench.out() == []
    bench.turn(1)
    messages = bench.out()
    assert [m.body for m in messages] == [b"a", b"a", b"bb", b"ccc"]
    assert [m.keys for m in messages] == [("k",), ("k",), ("l", "m"), ()]
    assert {m.tags for m in messages} == {"A"}
    assert {m.properties["DELAY"] for m in messages} == {str(min(level, 18))}
    assert [m.message_id for m in messages[1:]] == batch.message_ids
    assert [bench.store.query("t", r.message_id) for r in batch] == [[m] for m in messages[1:]]


def test_put_many_with_level_keeps_order_over_many_critical_sections(bench: Bench) -> None:
    bodies = [b"%d" % k for k in range(5000)]
    assert len(bench.store.put_many("t", bodies, level=1)) == 5000
    assert len(bench.store.put_many("t", [], level=1)) == 0
    bench.turn(SECOND)
    assert bench.bodies() == bodies


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"level": 0}, "level: wanted a whole number from 1 on, got 0"),
        ({"level": -1}, "level"),
        ({"level": True}, "level"),
        ({"level": 1.0}, "level"),
        ({"level": "1"}, "level"),
        ({"level": [1, 2, 3]}, "level"),
        ({"level": 1, "delay": 1}, "wanted one of delay, deliver_at, deliver_ms, level"),
        ({"level": 1, "deliver_ms": 0}, "wanted one of"),
        ({"level": 1, "flush": "maybe"}, "flush"),
        ({"level": 1, "queue_id": 1024}, "queue_id"),
        ({"level": 1, "keys": ["a"]}, "keys"),
        ({"level": 1, "tags": "\x02"}, "property"),
    ],
)
def test_put_many_with_level_rejects_invalid_arguments(
    bench: Bench, given: dict[str, Any], match: str
) -> None:
    with bench.refused(MessageError, match):
        bench.store.put_many("new", [b"a", b"b", b"c"], **given)


def test_batch_with_level_delivers_messages(bench: Bench) -> None:
    bench.store.put_many("t", [b"a"], level=1)
    bench.turn(SECOND)
    (message,) = bench.out()
    assert isinstance(message, Message)
    assert message.due_ms == NOW + SECOND == message.delivered_ms
