"""offset_at: the first offset stored at a time, as a RocketMQ broker answers."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from tests.support.broker import fixtures as broker
from timerstore import MessageError, ReadOnlyStore, StoreConfig
from timerstore._engine.read import queue_reader
from timerstore.testing import ManualClock

ANSWERS = (
    Path(__file__).resolve().parents[2] / "fixtures" / "consumer_offsets" / "offset_by_time.json.gz"
)


@pytest.mark.more
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


def first_from(times: list[int], begin: int, wanted: int) -> int:
    """Return the answer by its definition: check one message after the other."""
    return next((k for k in range(begin, len(times)) if times[k] >= wanted), len(times))


@pytest.mark.parametrize("block_units", [1, 3, 16_384])
def test_offset_at_is_the_first_from_a_time_when_the_clock_went_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, block_units: int
) -> None:
    monkeypatch.setattr(queue_reader, "BLOCK_UNITS", block_units)
    chosen, times = random.Random(block_units), list[int]()
    for _ in range(40):
        times.append(chosen.randrange(40))
        bench.clock.set(NOW + times[-1])
        bench.store.put("t", b"x")
        bench.turn()
        for wanted in chosen.sample(range(-1, 42), 4):  # the remembered times stay valid
            at = bench.store.offset_at("t", 0, NOW + wanted)
            assert at == first_from(times, 0, wanted)
    bench.store.flush()
    with ReadOnlyStore(bench.root, clock=bench.clock) as reader:
        for wanted in range(-1, 42):
            at = first_from(times, 0, wanted)
            assert bench.store.offset_at("t", 0, NOW + wanted) == at
            assert reader.offset_at("t", 0, NOW + wanted) == at


def test_offset_at_is_the_first_kept_from_a_time_when_retention_removed_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "BLOCK_UNITS", 16)
    config = small(commit_log_segment_bytes=1 << 16, retention_log_bytes=200_000)
    bench = Bench(tmp_path / "s", config)
    times = []
    for n in range(600):
        times.append(n * 37 % 50)
        bench.clock.set(NOW + times[-1])
        bench.store.put("t", b"x" * 1000)
        if n % 50 == 0:
            bench.turn()
            assert bench.store.offset_at("t", 0, NOW + 60) == len(times)  # every block is read
    bench.turn()
    begin = bench.store.pull("t", 0, 0).min_offset
    assert begin > 100
    for ms in range(-1, 52):
        assert bench.store.offset_at("t", 0, NOW + ms) == first_from(times, begin, ms)
    bench.close()


def test_consumer_seek_by_time_skips_nothing_when_the_clock_went_back(bench: Bench) -> None:
    times = [1000, 0, 500, 2000, 1500, 3000]
    for ms in times:
        bench.clock.set(NOW + ms)
        bench.store.put("t", b"%d" % ms)
    bench.turn()
    consumer = bench.store.consumer("t", "g")
    for ms in (0, 400, 600, 1200, 1600, 2500, 3001):
        assert consumer.seek(time_ms=NOW + ms) == {0: first_from(times, 0, ms)}
    consumer.close()


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
def test_invalid_arguments_are_rejected(bench: Bench, args: tuple[Any, ...], match: str) -> None:
    bench.store.put("t", b"x")
    with bench.refused(MessageError, match):
        bench.store.offset_at(*args)
