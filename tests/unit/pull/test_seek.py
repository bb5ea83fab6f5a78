"""offset_at: from a time to an offset, as the ancestor answers."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support import broker_fixtures as broker
from tests.support.bench import NOW, Bench
from timerstore import MessageError, StoreConfig
from timerstore.testing import ManualClock

ANSWERS = (
    Path(__file__).resolve().parents[2] / "fixtures" / "consumer_offsets" / "offset_by_time.json.gz"
)


@pytest.mark.slow
def test_answers_of_a_broker(tmp_path: Path) -> None:
    name = "clean-small-segments"
    root = broker.unpack(name, tmp_path)
    config = StoreConfig(**broker.about(name)["store_config"], flush="async")
    rows: list[dict[str, Any]] = json.loads(gzip.decompress(ANSWERS.read_bytes()))
    now_ms = min(t for row in rows for t in row["store_ms"])  # nothing new becomes due
    with timerstore.open(root, config, clock=ManualClock(now_ms), threads=False) as store:
        asked = 0
        for row in rows:
            where = row["topic"], row["queue_id"]
            answers = list(zip(row["times"], row["lower"], strict=True))
            for time_ms, wanted in answers[:: 1 + len(answers) // 300]:
                assert store.offset_at(*where, time_ms) == wanted, (where, time_ms)
                asked += 1
    assert asked > 1500


def test_edges(bench: Bench) -> None:
    store = bench.store
    store.put("t", b"a")
    store.put("t", b"b")  # of the same time
    bench.turn(10)
    store.put("t", b"c")
    store.put("t", b"d", queue_id=1)
    bench.turn(10)
    store.put("t", b"e")
    store.put("t", b"waits", delay=5, queue_id=2)
    bench.turn()
    asked = [-1, 0, NOW - 1, NOW, NOW + 1, NOW + 10, NOW + 11, NOW + 20, NOW + 21, 2**63 - 1]
    assert [store.offset_at("t", 0, ms) for ms in asked] == [0, 0, 0, 0, 2, 2, 3, 3, 4, 4]
    assert [store.offset_at("t", 1, ms) for ms in asked] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert [store.offset_at("t", 2, ms) for ms in asked] == [0] * 10  # empty
    bench.turn(5000)
    assert store.offset_at("t", 2, NOW + 5020) == 0  # delivered: stored when it was due
    assert store.offset_at("t", 2, NOW + 5021) == 1
    assert store.offset_at("t", 0, np.int64(NOW + 20)) == 3


def test_a_clock_that_was_set_back_gives_one_of_the_places(bench: Bench) -> None:
    times = [0, 30, 60, 10, 40, 50, 20, 70]
    for ms in times:
        bench.clock.set(NOW + ms)
        bench.store.put("t", b"x")
    bench.turn()
    for ms in range(-1, 72):
        at = bench.store.offset_at("t", 0, NOW + ms)
        assert at == 0 or times[at - 1] < ms
        assert at == len(times) or times[at] >= ms


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (("t", 0, 1.5), "time_ms"),
        (("t", 0, None), "time_ms"),
        (("t", 0, True), "time_ms"),
        (("t", 0, "now"), "time_ms"),
        (("t", 1, 0), "has 1 queues"),
        (("u", 0, 0), "has 0 queues"),
    ],
)
def test_what_is_wrong_is_refused(bench: Bench, args: tuple[Any, ...], match: str) -> None:
    bench.store.put("t", b"x")
    with bench.refused(MessageError, match):
        bench.store.offset_at(*args)
