"""Delay levels after openings, their files for a broker, and what `verify` finds."""

import json

import pytest

from tests.support import disk_reader as disk
from tests.support.bench import SECOND, Bench
from tests.support.inside import forget_levels, forget_runs, inside
from tests.support.level_bench import levels, no_side_files
from timerstore import PutReceipt
from timerstore._engine.queues.level_cursors import OFFSET_BITS
from timerstore.errors import CorruptError


@pytest.mark.parametrize("lost", [False, True])
def test_each_level_message_is_delivered_once_over_many_openings(bench: Bench, lost: bool) -> None:
    receipts: list[PutReceipt] = []
    for k in range(30):
        receipts.append(bench.store.put("t", b"%d" % k, level=1 + k % 4))
        bench.turn(700)
        if k % 5 == 4:
            no_side_files(bench) if lost else bench.reopen()
        due = [r for r in receipts if r.due_ms <= bench.clock.now_ms]
        bench.turn()
        assert {m.message_id for m in bench.out()} == {r.message_id for r in due}
        assert len(bench.out()) == len(due)
    bench.turn(60 * SECOND)
    assert sorted(int(body) for body in bench.bodies()) == list(range(30))
    assert bench.store.stats()["level_pending_messages"] == 0


def test_close_writes_offsets_for_a_broker(bench: Bench) -> None:
    for level in (1, 1, 2, 18):
        bench.store.put("t", b"x", level=level)
    bench.turn(SECOND)
    bench.close()
    assert disk.read_level_offsets(bench.root) == {1: 2, 2: 0, 18: 0}
    bench.open()
    bench.turn(4 * SECOND)
    bench.close()
    assert disk.read_level_offsets(bench.root) == {1: 2, 2: 1, 18: 0}
    bench.open()


def test_close_rewrites_damaged_offsets_file(bench: Bench) -> None:
    bench.store.put("t", b"x", level=2)
    bench.turn()
    (bench.root / "config" / "delayOffset.json").write_bytes(b"{")
    bench.close()
    assert disk.read_level_offsets(bench.root) == {2: 0}
    bench.open()


def test_close_writes_no_offsets_file_without_levels(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.close()
    assert not (bench.root / "config" / "delayOffset.json").exists()
    bench.open()


def test_opening_ignores_wrong_level_cursor(bench: Bench) -> None:
    for _ in range(4):
        bench.store.put("t", b"x", level=1)
    bench.turn(SECOND)
    bench.store.put("t", b"y", level=1)
    bench.close()
    counts = bench.root / "timerstore" / "counts"
    whole = json.loads(counts.read_text())
    for entry in whole["entries"]:
        entry["levels"] = {"0": [5]}
    counts.write_text(json.dumps(whole))
    bench.open()
    bench.turn(SECOND)
    assert bench.bodies() == [b"x"] * 4 + [b"y"]


def test_verify_reports_level_cursor_past_log(bench: Bench) -> None:
    bench.store.put("t", b"x", level=3)
    bench.turn()
    levels(bench).begin_at(2, 1)
    (problem,) = bench.store.verify().problems
    assert problem.what == "delivered of level 3"
    forget_levels(levels(bench))


def test_verify_reports_second_delivery_of_level_message(bench: Bench) -> None:
    import numpy as np

    bench.store.put("t", b"x", level=1)
    bench.turn(SECOND)
    forget_levels(levels(bench))  # so that it is delivered again
    forget_runs(inside(bench.store).schedule)
    bench.turn()
    assert len(bench.out()) == 2
    levels(bench).done(np.array([0 << OFFSET_BITS | 0]))
    problems = bench.store.verify().problems
    assert [problem.what for problem in problems] == [
        "a delivery beyond its source",
        "pending on levels of topic t queue 0",
    ]
    inside(bench.store).log.fail(CorruptError("the test is over"))
    bench.store.close()
