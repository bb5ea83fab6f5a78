"""Distributions and gauges in `stats()`."""

import numpy as np
import pytest

from tests.support.bench import Bench
from tests.support.exported_work import some_work
from tests.support.inside import inside
from timerstore._engine.base.metrics import Distribution

prometheus_client = pytest.importorskip("prometheus_client")


def test_lateness_is_that_of_each_message(bench: Bench) -> None:
    some_work(bench)
    told = bench.store.stats()["lateness_ms"]
    assert sum(count for bound, count in told.items() if bound != "sum") == 6
    assert {bound: n for bound, n in told.items() if n} == {5: 6, "sum": 24}


def test_lateness_excludes_rolled_and_cancelled_messages(bench: Bench) -> None:
    far = bench.store.put("a", b"x", delay=600)
    gone = bench.store.put("a", b"x", delay=1)
    bench.turn()
    bench.store.cancel(gone)
    for _ in range(20):
        bench.turn(10_000)
    assert sum(bench.store.stats()["lateness_ms"].values()) == 0
    assert bench.store.explain(far).state == "pending"


def test_syncs_and_checkpoints_are_counted(bench: Bench) -> None:
    before = bench.store.stats()
    bench.store.put("a", b"x", flush="sync")
    bench.store.flush()
    after = bench.store.stats()
    for name in ("sync_ms", "checkpoint_ms"):
        grown = {k: after[name][k] - before[name][k] for k in after[name] if k != "sum"}
        assert sum(grown.values()) >= 1


@pytest.mark.parametrize("values", [[], [1], [2, 2], [0, 1, 2, 5, 6, 10, 11], [11, 11], [-3, 10]])
def test_distribution_counts_value_at_or_below_bound(values: list[int]) -> None:
    one, many = Distribution((1, 5, 10)), Distribution((1, 5, 10))
    many.add(np.array(values, np.int64))
    for value in values:
        one.add_one(value)
    wanted = {
        1: sum(v <= 1 for v in values),
        5: sum(1 < v <= 5 for v in values),
        10: sum(5 < v <= 10 for v in values),
        None: sum(v > 10 for v in values),
        "sum": sum(values),
    }
    assert many.counts() == one.counts() == wanted


def test_disk_and_memory_gauges_follow_contents(bench: Bench) -> None:
    before = bench.store.stats()
    bench.store.put_many("a", [bytes(100)] * 100, delay=60)
    bench.turn()
    after = bench.store.stats()
    grown = after["disk_bytes"] - before["disk_bytes"]
    assert grown == after["log_end_bytes"] - before["log_end_bytes"] + (52 + 20) * 100
    assert 0 <= after["disk_used_percent"] <= 100
    bench.store.histogram()
    counted = bench.store.stats()["memory_bytes"]
    assert counted == after["memory_bytes"] + inside(bench.store).calendar.bytes
    bench.store.pace("a", 1)
    bench.turn(60_000)
    assert bench.store.stats()["memory_bytes"] == counted + 99 * 64
