"""put at its limits: each invalid argument has its own error, and nothing is stored."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, Bench, small
from timerstore import MessageError, StoreConfig
from timerstore._engine.base import message_fields

MAX = StoreConfig().delay_ms_max

WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("topic", (None, b"x"), {}),
    ("topic", (b"t", b"x"), {}),
    ("topic", (["t"], b"x"), {}),
    ("topic", ("", b"x"), {}),
    ("topic", ("a/b", b"x"), {}),
    ("topic", ("..", b"x"), {}),
    ("topic", ("../t", b"x"), {}),
    ("topic", ("a\x00b", b"x"), {}),
    ("topic", ("a" * 128, b"x"), {}),
    ("topic", ("a" * 255, b"x"), {}),
    ("topic", ("a" * 256, b"x"), {}),
    ("topic", ("rmq_sys_wheel_timer", b"x"), {}),
    ("body", ("new", "text"), {}),
    ("body", ("new", None), {}),
    ("body", ("new", 7), {}),
    ("time", ("new", b"x"), {"delay": 1, "deliver_ms": NOW + 5}),
    ("time", ("new", b"x"), {"delay": 1, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}),
    ("deliver_at", ("new", b"x"), {"deliver_at": datetime(2030, 1, 1)}),  # noqa: DTZ001 - naive
    ("deliver_at", ("new", b"x"), {"deliver_at": "2030-01-01"}),
    ("deliver_ms", ("new", b"x"), {"deliver_ms": 1.5}),
    ("deliver_ms", ("new", b"x"), {"deliver_ms": NOW + MAX + 1}),
    ("deliver_ms", ("new", b"x"), {"deliver_ms": 2**70}),
    ("delay", ("new", b"x"), {"delay": float("nan")}),
    ("delay", ("new", b"x"), {"delay": float("inf")}),
    ("delay", ("new", b"x"), {"delay": -0.001}),
    ("delay", ("new", b"x"), {"delay": timedelta(microseconds=-1)}),
    ("delay", ("new", b"x"), {"delay": "1"}),
    ("delay", ("new", b"x"), {"delay": True}),
    ("delay", ("new", b"x"), {"delay": MAX / 1000 + 0.001}),
    ("property", ("new", b"x"), {"tags": "a\x01b"}),
    ("property", ("new", b"x"), {"tags": 5}),
    ("keys", ("new", b"x"), {"keys": ["a b"]}),
    ("keys", ("new", b"x"), {"keys": 5}),
    ("keys", ("new", b"x"), {"keys": np.array([1, 2])}),
    ("property", ("new", b"x"), {"properties": {"a": "b\x02"}}),
    ("property", ("new", b"x"), {"properties": {"a\n": "b"}}),
    ("property", ("new", b"x"), {"properties": {"": "b"}}),
    ("property", ("new", b"x"), {"properties": {"a": ""}}),
    ("property", ("new", b"x"), {"properties": {"a": 1}}),
    ("property", ("new", b"x"), {"properties": {"a": "\ud800"}}),
    ("reserved", ("new", b"x"), {"properties": {"TIMER_OUT_MS": "1"}}),
    ("reserved", ("new", b"x"), {"properties": {"UNIQ_KEY": "1"}}),
    ("reserved", ("new", b"x"), {"properties": {"KEYS": "1"}}),
    ("properties", ("new", b"x"), {"properties": ["a"]}),
    ("properties", ("new", b"x"), {"properties": np.array([1, 2])}),
    ("properties", ("new", b"x"), {"properties": {"a": "b" * 32_767}}),
    ("queue_id", ("new", b"x"), {"queue_id": -1}),
    ("queue_id", ("new", b"x"), {"queue_id": 1024}),
    ("queue_id", ("new", b"x"), {"queue_id": "0"}),
    ("queue_id", ("new", b"x"), {"queue_id": True}),
    ("flush", ("new", b"x"), {"flush": "maybe"}),
    ("flush", ("new", b"x"), {"flush": 1}),
    ("flush", ("new", b"x"), {"flush": np.array([1, 2])}),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_put_rejects_invalid_arguments_and_stores_nothing(shared_bench: Bench, number: int) -> None:
    match, args, given = WRONG[number]
    with shared_bench.refused(MessageError, match):
        shared_bench.store.put(*args, **given)


def test_error_lists_all_problems_of_an_argument(bench: Bench) -> None:
    with pytest.raises(MessageError) as caught:
        bench.store.put("t", b"", tags="\x01", keys=[""], properties={"TIMER_X": "1", "b": ""})
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("topic", ["a", "a" * 127, "%RETRY%group", "A-b_c|9"])
def test_topics_at_their_edge(bench: Bench, topic: str) -> None:
    bench.store.put(topic, b"now")
    bench.store.put(topic, b"later", delay=3)
    bench.turn(3000)
    assert bench.bodies(topic) == [b"now", b"later"]
    bench.reopen()
    assert bench.bodies(topic) == [b"now", b"later"]


@pytest.mark.parametrize(
    "body",
    [b"", b"ab", bytearray(b"ab"), memoryview(b"abcd")[1:3], np.arange(3, dtype=np.int16)],
)
def test_body_may_be_any_contiguous_buffer(bench: Bench, body: Any) -> None:
    bench.store.put("t", body, delay=1)
    bench.turn(1000)
    assert bench.bodies() == [bytes(body)]


def test_body_must_not_be_a_strided_view(bench: Bench) -> None:
    with bench.refused(MessageError, "contiguous"):
        bench.store.put("t", memoryview(b"abcd")[::2])


@pytest.mark.parametrize("delay", [None, 2.5])
def test_bodies_at_the_limit_of_message_bytes_max(tmp_path: Path, delay: float | None) -> None:
    bench = Bench(tmp_path, small(message_bytes_max=1000))
    bench.store.put("t", b"x" * 1000, delay=delay)
    with bench.refused(MessageError, "at most 1000 bytes, got 1001"):
        bench.store.put("t", b"x" * 1001, delay=delay)
    bench.turn(2500)
    assert bench.bodies() == [b"x" * 1000]
    bench.close()


@pytest.mark.parametrize("delay", [None, 2.5, 400.0])
def test_bodies_at_the_limit_of_a_segment(tmp_path: Path, delay: float | None) -> None:
    """What just fits a record still fits when it is delivered, and when it rolls."""
    bench = Bench(tmp_path, small(commit_log_segment_bytes=8192))
    room = message_fields.room_bytes(bench.config.record_bytes_max, b"t")
    for _ in range(3):
        bench.store.put("t", b"x" * room, delay=delay)
    with bench.refused(MessageError, "message: wanted at most"):
        bench.store.put("t", b"x" * (room + 1), delay=delay)
    for _ in range(10):
        bench.turn(50_000)
    assert bench.bodies() == [b"x" * room] * 3
    assert bench.store.stats()["pending_messages"] == 0
    bench.close()


@pytest.mark.parametrize("delay", [None, 2.5, 400.0])
def test_properties_at_the_limit_leave_the_headroom_that_delivery_needs(
    bench: Bench, delay: float | None
) -> None:
    limit = bench.config.properties_bytes_max - message_fields.PROPERTIES_HEADROOM_BYTES - len("t")
    value = "v" * (limit - len("name") - 2)
    bench.store.put("t", b"x", delay=delay, properties={"name": value})
    with bench.refused(MessageError, f"wanted at most {limit} bytes"):
        bench.store.put("t", b"x", delay=delay, properties={"name": value + "v"})
    for _ in range(10):
        bench.turn(50_000)
    (message,) = bench.out()
    assert message.properties["name"] == value
    if delay == 400.0:
        assert int(message.properties["TIMER_ROLL_TIMES"]) >= 3


@pytest.mark.parametrize("tags", [None, "a"])
@pytest.mark.parametrize("wrong", [False, 0])
def test_properties_that_are_no_mapping_are_named(
    bench: Bench, wrong: Any, tags: str | None
) -> None:
    with bench.refused(MessageError, f"properties: wanted a mapping, got {type(wrong).__name__}"):
        bench.store.put("t", b"x", properties=wrong, tags=tags)


def test_delivered_message_has_the_given_fields(bench: Bench) -> None:
    given = {"colour": "blue", "größe": "groß", "TS_ID": "of another store", "a b": "=;,"}
    receipt = bench.store.put(
        "t", b"body", delay=1, tags="tag", keys=["k1", "k2"], properties=given, queue_id=2
    )
    assert (receipt.queue_id, receipt.queue_offset, receipt.due_ms) == (2, None, NOW + 1000)
    assert not receipt.duplicate
    bench.turn(1000)
    (message,) = bench.out("t", 2)
    assert (message.tags, message.keys, message.body) == ("tag", ("k1", "k2"), b"body")
    for name in ("colour", "größe", "a b"):
        assert message.properties[name] == given[name]
    assert message.properties["TS_ID"] != given["TS_ID"]
    assert message.message_id == receipt.message_id
    assert (message.born_ms, message.due_ms, message.delivered_ms) == (NOW, NOW + 1000, NOW + 1000)


def test_message_without_a_time_is_delivered_at_once(bench: Bench) -> None:
    receipt = bench.store.put("t", b"now")
    assert (receipt.queue_offset, receipt.due_ms) == (0, NOW)
    bench.turn()
    (message,) = bench.out()
    assert message.due_ms == message.delivered_ms == message.store_ms == NOW


@pytest.mark.parametrize(
    "given",
    [
        {"delay": 0},
        {"delay": 0.0},
        {"delay": timedelta(0)},
        {"deliver_ms": NOW},
        {"deliver_ms": NOW - 1},
        {"deliver_ms": 0},
        {"deliver_ms": -(2**70)},
        {"deliver_at": datetime(1970, 1, 1, tzinfo=UTC)},
    ],
)
def test_past_due_time_means_now(bench: Bench, given: dict[str, Any]) -> None:
    assert bench.store.put("t", b"x", **given).queue_offset == 0
    bench.turn()
    assert bench.bodies() == [b"x"]


@pytest.mark.parametrize(
    ("given", "due_ms"),
    [
        ({"delay": 0.0001}, NOW + 1),
        ({"delay": 1e-9}, None),
        ({"delay": 16.1}, NOW + 16_100),
        ({"delay": timedelta(microseconds=1)}, NOW + 1),
        ({"delay": np.int64(2)}, NOW + 2000),
        ({"deliver_ms": np.int64(NOW + 7)}, NOW + 7),
        ({"deliver_ms": NOW + MAX}, NOW + MAX),
        ({"delay": MAX / 1000}, NOW + MAX),
    ],
)
def test_due_times_are_exact_to_the_millisecond(
    bench: Bench, given: dict[str, Any], due_ms: int | None
) -> None:
    receipt = bench.store.put("t", b"x", **given)
    if due_ms is None:
        assert receipt.queue_offset == 0
    else:
        assert receipt.due_ms == due_ms
        assert [one.due_ms for one in bench.store.pending()] == [due_ms]


def test_delayed_put_is_rejected_when_timers_are_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(timer_enabled=False))
    with bench.refused(MessageError, "timer_enabled"):
        bench.store.put("t", b"x", delay=1)
    with bench.refused(MessageError, "timer_enabled"):
        bench.store.put_many("t", [b"x"], delay=1)
    bench.store.put("t", b"x", delay=0)
    bench.turn()
    assert bench.bodies() == [b"x"]
    bench.close()


# --- queues ---------------------------------------------------------------------------------------


def test_higher_queue_id_adds_queues_to_the_topic(bench: Bench) -> None:
    bench.store.put("t", b"0")
    bench.store.put("t", b"5", queue_id=5)
    assert bench.store.topics()["t"] == 6
    bench.store.put("t", b"1023", delay=1, queue_id=1023)
    assert bench.store.topics()["t"] == 1024
    bench.turn(1000)
    assert [bench.bodies("t", q) for q in (0, 1, 5, 1023)] == [[b"0"], [], [b"5"], [b"1023"]]
    bench.reopen()
    assert bench.store.topics() == {"t": 1024, "rmq_sys_wheel_timer": 1}
    assert bench.bodies("t", 1023) == [b"1023"]


def test_puts_without_a_queue_id_are_distributed_round_robin(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(topic_queue_count=3))
    for k in range(7):
        assert bench.store.put("t", b"%d" % k, delay=k % 2).queue_id == k % 3
    bench.turn(1000)
    assert [len(bench.out("t", q)) for q in range(3)] == [3, 2, 2]
    bench.close()


def test_queue_id_may_be_a_numpy_integer(bench: Bench) -> None:
    assert bench.store.put("t", b"x", queue_id=np.int32(2)).queue_id == 2  # type: ignore[arg-type]


def test_keys_may_be_an_array(bench: Bench) -> None:
    """Its truth is an error of numpy's."""
    for given in (["a", "b"], ["a"], []):
        bench.store.put("t", b"x", delay=1, keys=np.array(given))  # type: ignore[arg-type]
    rows = np.array([["c", "d"], ["e", "f"]])
    bench.store.put_many("t", [b"x"] * 2, delay=1, keys=rows)  # type: ignore[arg-type]
    bench.turn(1000)
    wanted = [("a", "b"), ("a",), (), ("c", "d"), ("e", "f")]
    assert [one.keys for one in bench.out("t")] == wanted


# --- durability -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "put"), [("sync", None), ("async", "sync")])
def test_sync_put_is_durable_on_return(tmp_path: Path, config: str, put: str | None) -> None:
    bench = Bench(tmp_path, small(flush=config))
    receipt = bench.store.put("t", b"x", delay=1, flush=put)
    assert bench.store.stats()["log_durable_bytes"] > receipt.log_offset
    batch = bench.store.put_many("t", [b"x"] * 3, flush=put)
    assert bench.store.stats()["log_durable_bytes"] > batch[2].log_offset
    bench.close()


@pytest.mark.parametrize(("config", "put"), [("async", None), ("sync", "async")])
def test_async_put_is_durable_after_a_flush(tmp_path: Path, config: str, put: str | None) -> None:
    bench = Bench(tmp_path, small(flush=config))
    before = bench.store.stats()["log_durable_bytes"]
    bench.store.put("t", b"x", delay=1, flush=put)
    bench.store.put_many("t", [b"x"] * 3, flush=put)
    stats = bench.store.stats()
    assert stats["log_durable_bytes"] == before < stats["log_end_bytes"]
    bench.store.flush()
    stats = bench.store.stats()
    assert stats["log_durable_bytes"] == stats["log_end_bytes"]
    bench.close()
