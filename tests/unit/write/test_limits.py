"""Documented limits: a value at the limit works, and an error names a value above it."""

from typing import Any

import pytest

from tests.support.bench import NOW, SECOND, Bench
from timerstore import MessageError
from timerstore._engine.base.message_fields import PROPERTIES_HEADROOM_BYTES

KEY_ROOM = 32_767 - PROPERTIES_HEADROOM_BYTES - len("t") - len("KEYS\x01\x02")
WAYS: list[dict[str, Any]] = [{}, {"delay": 1}, {"level": 1}]


REFUSED_KEY = "keys: wanted text without spaces and control characters, not empty, got"


@pytest.mark.parametrize("given", WAYS, ids=str)
@pytest.mark.parametrize("many", [False, True])
def test_longest_key_works(bench: Bench, given: dict[str, Any], many: bool) -> None:
    def put(key: Any) -> None:
        if many:
            bench.store.put_many("t", [b"x"], keys=[key], **given)
        else:
            bench.store.put("t", b"x", keys=key, **given)

    longest = "k" * KEY_ROOM
    for wrong in (longest + "k", ["k" * (KEY_ROOM - 2), "k", "k"], "é" * (KEY_ROOM // 2 + 1)):
        with bench.refused(MessageError, f"properties: wanted at most {KEY_ROOM + 6} bytes"):
            put(wrong)
    put(longest)
    put(["k" * (KEY_ROOM - 2), "l"])
    bench.turn()
    assert [m.waits for m in bench.store.query("t", longest)] == [bool(given)]
    bench.turn(SECOND)
    assert [m.keys for m in bench.out()] == [(longest,), ("k" * (KEY_ROOM - 2), "l")]
    assert [m.waits for m in bench.store.query("t", longest)] == [False]
    assert len(bench.store.query("t", "l")) == 1


@pytest.mark.parametrize("given", WAYS, ids=str)
@pytest.mark.parametrize(
    "key", ["a b", " a", "a ", " ", "", "a\tb", "a\nb", "a\u00a0b", "a\u2003b", ["a", ""], [" "]]
)
def test_key_with_a_space_or_empty_is_rejected(
    bench: Bench, given: dict[str, Any], key: Any
) -> None:
    if key == "":
        bench.store.put("t", b"x", keys=key)  # no key at all
        return
    for call in (
        lambda: bench.store.put("t", b"x", keys=key, **given),
        lambda: bench.store.put_many("t", [b"x"], keys=[key], **given),
    ):
        with bench.refused(MessageError, REFUSED_KEY):
            call()


def test_commit_up_to_the_last_read_offset(bench: Bench) -> None:
    bench.store.put_many("t", [b"0", b"1", b"2"])
    bench.turn()
    consumer = bench.store.consumer("t", "g")
    assert consumer.commit({0: 0}) == {}
    with bench.refused(MessageError, "queue 0 was read to 0, got 1"):
        consumer.commit({0: 1})
    consumer.poll(2)
    with bench.refused(MessageError, "queue 0 was read to 2, got 3"):
        consumer.commit({0: 3})
    assert bench.store.committed("t", "g") == {}
    assert consumer.commit({0: 2}) == {0: 2}


def test_seek_to_both_ends_of_a_queue(bench: Bench) -> None:
    bench.store.put_many("t", [b"0", b"1", b"2"])
    bench.turn()
    consumer = bench.store.consumer("t", "g")
    for offset in (0, 1, 2, 3):
        assert consumer.seek(offset) == {0: offset}
        assert len(consumer.poll()) == 3 - offset
    for offset in (-1, 4):
        with bench.refused(MessageError, f"offset: queue 0 has 0 to 3, got {offset}"):
            consumer.seek(offset)
    for time_ms, wanted in ((-(2**62), 0), (0, 0), (NOW, 0), (NOW + 1, 3), (2**62, 3)):
        assert consumer.seek(time_ms=time_ms) == {0: wanted}
        assert bench.store.offset_at("t", 0, time_ms) == wanted


@pytest.mark.parametrize("name", ["a@b", "@", "a b", "a/b", "../a", "a\0", "é", "", "x" * 256])
def test_group_or_topic_with_a_separator_is_rejected(bench: Bench, name: str) -> None:
    bench.store.put("t", b"x")
    bench.turn()
    for call in (
        lambda: bench.store.consumer("t", name),
        lambda: bench.store.consumer(name, "g"),
        lambda: bench.store.committed("t", name),
        lambda: bench.store.committed(name, "g"),
    ):
        with bench.refused(MessageError, "(group|topic): wanted 1 to 255 of"):
            call()


@pytest.mark.parametrize("name", ["x" * 255, "%RETRY%g", "a|b_c-d"])
def test_longest_group_name_works(bench: Bench, name: str) -> None:
    bench.store.put("t", b"x")
    bench.turn()
    with bench.store.consumer("t", name) as consumer:
        consumer.poll()
        assert consumer.commit() == {0: 1}
    bench.reopen()
    assert bench.store.committed("t", name) == {0: 1}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tags": "a ||"}, "tags: wanted a tag at character"),
        ({"tags": "|| a"}, "tags: wanted a tag at character"),
        ({"tags": "a || || b"}, "tags: wanted a tag at character"),
        ({"tags": 5}, "tags: wanted text"),
        ({"sql": ""}, "sql"),
        ({"sql": "a >"}, "sql"),
        ({"sql": "a > 5)"}, "sql"),
        ({"sql": "a LIKE 5"}, "sql"),
        ({"sql": 5}, "sql: wanted text"),
        ({"tags": "a", "sql": "a > 5"}, "one of tags and sql"),
    ],
)
def test_invalid_filter_is_rejected(bench: Bench, given: dict[str, Any], match: str) -> None:
    bench.store.put("t", b"x")
    bench.turn()
    for call in (
        lambda: bench.store.pull("t", 0, 0, **given),
        lambda: bench.store.pull_batch("t", 0, 0, wait=5.0, **given),
        lambda: bench.store.begin_pull("t", 0, 0, **given),
        lambda: bench.store.consumer("t", "g", **given),
        lambda: bench.store.consumer("not-there-yet", "g", **given),
    ):
        with bench.refused(MessageError, match):
            call()


@pytest.mark.parametrize("level", [0, -1, -(2**70)])
def test_level_below_1_is_rejected(bench: Bench, level: int) -> None:
    for call in (
        lambda: bench.store.put("new", b"x", level=level),
        lambda: bench.store.put_many("new", [b"x"], level=level),
    ):
        with bench.refused(MessageError, f"level: wanted a whole number from 1 on, got {level}"):
            call()
