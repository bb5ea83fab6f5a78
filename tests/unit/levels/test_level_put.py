"""Put messages with a delay level, and deliver each on its millisecond."""

import time
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import inside
from tests.support.level_bench import DEFAULT
from timerstore import MessageError
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore.testing import Stepper


@pytest.mark.parametrize("level", range(1, 19))
def test_each_level_is_delivered_on_its_millisecond(bench: Bench, level: int) -> None:
    receipt = bench.store.put("t", b"x", level=level, tags="a", keys=["k"], properties={"p": "v"})
    due_ms = NOW + DEFAULT[level - 1]
    assert (receipt.due_ms, receipt.queue_offset, receipt.queue_id) == (due_ms, None, 0)
    bench.turn(DEFAULT[level - 1] - 1)
    assert bench.out() == []
    bench.turn(1)
    (message,) = bench.out()
    assert (message.body, message.tags, message.keys) == (b"x", "a", ("k",))
    assert message.properties["p"] == "v"
    assert message.properties["DELAY"] == str(level)
    assert message.message_id == receipt.message_id
    assert message.born_ms == NOW
    assert message.due_ms == message.delivered_ms == message.store_ms == due_ms


@pytest.mark.parametrize("level", [18, 19, 1000, 10**30])
def test_level_past_the_table_is_the_last_level(bench: Bench, level: int) -> None:
    receipt = bench.store.put("t", b"x", level=level)
    assert receipt.due_ms == NOW + DEFAULT[-1]
    bench.turn()
    (waiting,) = bench.out(SCHEDULE_TOPIC, 17)
    assert waiting.properties["DELAY"] == "18"
    assert waiting.due_ms == receipt.due_ms
    assert bench.store.topics()[SCHEDULE_TOPIC] == 18


@pytest.mark.parametrize("level", [0, -1, -(10**30), True, 1.0, "1", b"1"])
def test_put_rejects_invalid_level(bench: Bench, level: Any) -> None:
    with bench.refused(MessageError, match=r"level: wanted a whole number from 1 on, got"):
        bench.store.put("new", b"x", level=level)


@pytest.mark.parametrize("time", [{"delay": 1.0}, {"deliver_ms": NOW + 5}, {"deliver_ms": 0}])
def test_put_rejects_level_with_due_time(bench: Bench, time: dict[str, Any]) -> None:
    with bench.refused(MessageError, match=r"time: wanted one of .*level, got .*, level"):
        bench.store.put("new", b"x", level=1, **time)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"queue_id": -1}, "queue_id"),
        ({"flush": "x"}, "flush"),
        ({"tags": "\x01"}, "TAGS"),
        ({"properties": {"DELAY": "1"}}, "DELAY.*level="),
    ],
)
def test_put_with_level_rejects_other_invalid_arguments(
    bench: Bench, wrong: dict[str, Any], why: str
) -> None:
    with bench.refused(MessageError, match=why):
        bench.store.put("new", b"x", level=1, **wrong)


def test_size_limits_leave_space_for_delivered_copy(bench: Bench) -> None:
    limit = bench.config.properties_bytes_max
    found = 0
    for size in range(limit - 400, limit):
        try:
            bench.store.put("t", b"", level=1, properties={"p": "v" * size})
        except MessageError:
            break
        found += 1
    assert 50 < found < 399, "the limit is in between"
    bench.turn(SECOND)
    assert len(bench.out()) == found


def test_level_message_has_no_handle_and_cannot_be_cancelled(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", level=1)
    assert receipt.handle == ""
    assert receipt.waits_for_level
    for given in (receipt, receipt.handle):
        with pytest.raises(MessageError):
            bench.store.cancel(given)
    bench.turn(SECOND)
    assert bench.bodies() == [b"x"]


def test_level_mark_of_caller_is_dropped(bench: Bench) -> None:
    bench.store.put("t", b"x", level=1)
    bench.turn(SECOND)
    (first,) = bench.out()
    mark = {"TS_LEVEL": first.properties["TS_LEVEL"]}
    bench.store.put("t", b"y", level=1, properties=mark)
    bench.turn()
    (_, waiting) = bench.out(SCHEDULE_TOPIC, 0)
    assert "TS_LEVEL" not in waiting.properties


def test_level_mark_has_store_place_and_due_time(bench: Bench) -> None:
    for _ in range(3):
        bench.store.put("t", b"x", level=2)
    bench.turn(5 * SECOND)
    store_id = inside(bench.store).store_id
    marks = [disk.decode_ts_level(message.properties["TS_LEVEL"]) for message in bench.out()]
    assert marks == [(store_id, 1, k, NOW + 5 * SECOND) for k in range(3)]


@pytest.mark.parametrize("queue_count", [1, 2])
def test_fast_put_with_level_has_the_same_result(tmp_path: Path, queue_count: int) -> None:
    """With the system's clock and `flush="async"`, a second put of a level is made in C."""
    config = small(topic_queue_count=queue_count)
    with timerstore.open(tmp_path, config, threads=False) as store:
        for level in (1, 2, 18, 19, 2**70):
            found = []
            for _ in range(2 * queue_count):
                before_ms = time.time_ns() // 1_000_000
                receipt = store.put("t", b"x", level=level)
                delay_ms = DEFAULT[min(level, 18) - 1]
                assert before_ms <= receipt.due_ms - delay_ms <= time.time_ns() // 1_000_000
                found.append((receipt.queue_offset, receipt.timer_id, receipt.handle))
            assert set(found) == {(None, -1, "")}
        for wrong in (0, -1, True, "1", None, 1.0):
            if wrong is None:
                assert store.put("t", b"x", level=wrong).queue_offset == 0
                continue
            with pytest.raises(MessageError, match="level: wanted"):
                store.put("t", b"x", level=wrong)
        with pytest.raises(MessageError, match="time: wanted one of"):
            store.put("t", b"x", level=1, delay=1.0)
        Stepper(store).settle()
        assert store.verify().clean
        waiting = store.pull(SCHEDULE_TOPIC, 17, 0).messages
        assert {m.properties["DELAY"] for m in waiting} == {"18"}
        assert {m.queue_id for m in waiting} == {17}
        assert len(waiting) == 3 * 2 * queue_count
        assert all(m.due_ms == m.store_ms + DEFAULT[17] for m in waiting)
