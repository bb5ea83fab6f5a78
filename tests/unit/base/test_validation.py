import array
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.support.inside import topics_checked_count, topics_checked_max
from timerstore._engine.base import due_times, message_fields
from timerstore.errors import MessageError
from timerstore.types import messages

NOW = 1_700_000_000_000
YEAR = 31_557_600_000
MAX = 40 * YEAR


def due(**given):
    values = {"delay": None, "deliver_at": None, "deliver_ms": None, **given}
    return due_times.resolve_due_ms(NOW, delay_ms_max=MAX, **values)


# --- topics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["a", "a" * 127, "A-Za_z0%9|", "%RETRY%group"])
def test_valid_topics_are_accepted(topic):
    assert message_fields.check_topic(topic) == topic.encode()
    assert message_fields.check_topic(topic) == topic.encode()


@pytest.mark.parametrize(
    "topic",
    ["", "a" * 128, "a" * 255, "a" * 256, "..", ".", "a/b", "a\\b", "a b", "a\x00", "é", "\ud800",
     "a\n", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", None, b"orders", 3, ["orders"]],
)  # fmt: skip
def test_invalid_topics_are_rejected(topic):
    for _ in range(2):
        with pytest.raises(MessageError, match="topic"):
            message_fields.check_topic(topic)


def test_topic_cache_is_bounded():
    for k in range(topics_checked_max() + 10):
        message_fields.check_topic(f"topic-{k}")
    assert topics_checked_count() <= topics_checked_max()


@pytest.mark.parametrize("queue_id", [0, 1023, np.int32(5)])
def test_valid_queue_ids_are_accepted(queue_id):
    assert message_fields.check_queue_id(queue_id) == queue_id


@pytest.mark.parametrize("queue_id", [-1, 1024, True, 1.0, "0", None])
def test_invalid_queue_ids_are_rejected(queue_id):
    with pytest.raises(MessageError, match="queue_id"):
        message_fields.check_queue_id(queue_id)


# --- bodies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"ab", bytearray(b"ab"), memoryview(b"ab"), np.zeros(2, np.int64), array.array("i", [1]),
     np.zeros((0, 3), np.int16)],
)  # fmt: skip
def test_valid_bodies_are_accepted(body):
    assert bytes(message_fields.check_body(body, 100)) == bytes(body)


@pytest.mark.parametrize("body", ["text", None, 7, [1, 2], memoryview(b"abcd")[::2]])
def test_invalid_bodies_are_rejected(body):
    with pytest.raises(MessageError, match="body"):
        message_fields.check_body(body, 100)


def test_buffers_without_bytes_are_rejected():
    released = memoryview(b"abc")
    released.release()
    for body in (released, np.zeros(2, "M8[s]")):
        with pytest.raises(MessageError, match="body: wanted bytes, got"):
            message_fields.check_body(body, 100)
        with pytest.raises(MessageError, match=r"bodies\[1\]: wanted bytes, got"):
            message_fields.gather_bodies([b"a", body], 100)
        with pytest.raises(MessageError, match="bodies: wanted bytes, got"):
            message_fields.gather_bodies((body, np.array([0])), 100)


def test_body_limit_counts_bytes():
    assert message_fields.check_body(b"x" * 100, 100)
    for body in (b"x" * 101, bytearray(101), np.zeros(13, np.int64)):
        with pytest.raises(MessageError, match="at most 100"):
            message_fields.check_body(body, 100)


def test_gather_bodies_returns_data_and_offsets():
    data, offsets, largest = message_fields.gather_bodies(
        [b"one", bytearray(b"two!"), memoryview(b"")], 10
    )
    assert bytes(data) == b"onetwo!"
    assert offsets.tolist() == [0, 3, 7, 7]
    assert largest == 4
    data, offsets, largest = message_fields.gather_bodies([b"a", np.array([1, 2], np.int64)], 16)
    assert offsets.tolist() == [0, 1, 17]
    assert len(data) == 17
    assert largest == 16
    data, offsets, largest = message_fields.gather_bodies([b"a", np.array(5, np.int16), b"bc"], 16)
    assert offsets.tolist() == [0, 1, 3, 5]
    # As many elements in all as there are bytes.
    odd = [np.zeros((4, 0), np.uint8), np.arange(4, dtype=np.int16)]
    data, offsets, largest = message_fields.gather_bodies(odd, 16)
    assert offsets.tolist() == [0, 0, 8]
    assert message_fields.gather_bodies((b"ab", b""), 16)[1].tolist() == [0, 2, 2]
    data, offsets, largest = message_fields.gather_bodies([], 10)
    assert (bytes(data), offsets.tolist(), largest) == (b"", [0], 0)
    data, offsets, largest = message_fields.gather_bodies([b"one", b"", b"two!"], 4)
    assert (bytes(data), offsets.tolist(), largest) == (b"onetwo!", [0, 3, 3, 7], 4)
    assert message_fields.gather_bodies((b"one", b"two!"), 4)[0] == b"onetwo!"
    buffer = bytearray(b"..onetwo")
    data, offsets, largest = message_fields.gather_bodies(
        (buffer, np.array([2, 5, 8], np.int32)), 10
    )
    assert offsets.tolist() == [2, 5, 8]
    assert largest == 3
    assert data.obj is buffer


@pytest.mark.parametrize(
    "bodies",
    [b"bytes", "text", 3, {b"a"}, [b"a", "b"], [b"a", None], [b"x" * 11],
     (b"abc", np.array([0, 4])), (b"abc", np.array([2, 1])), (b"abc", np.array([-1, 2])),
     (b"abc", np.array([0.0, 1.0])), (b"abc", np.zeros((2, 2), np.int64)),
     (b"abc", np.zeros(0, np.int64)), ("abc", np.array([0, 1]))],
)  # fmt: skip
def test_invalid_bodies_of_a_batch_are_rejected(bodies):
    with pytest.raises(MessageError, match="bodies"):
        message_fields.gather_bodies(bodies, 10)


def test_error_names_each_invalid_body():
    with pytest.raises(MessageError) as caught:
        message_fields.gather_bodies([b"a", "b", None], 10)
    assert [one[:9] for one in caught.value.problems] == ["bodies[1]", "bodies[2]"]


# --- properties -------------------------------------------------------------------------------


def test_keys_may_be_an_array():
    assert message_fields.encode_properties(None, np.array(["a", "b"]), None) == b"KEYS\x01a b\x02"
    assert message_fields.encode_properties(None, np.array([], str), None) == b""
    for wrong in (np.array(["a", ""]), np.array([1, 2]), np.array("a")):
        with pytest.raises(MessageError, match="keys"):
            message_fields.encode_properties(None, wrong, None)


def test_properties_are_encoded_as_on_disk():
    assert message_fields.encode_properties(None, (), None) == b""
    assert message_fields.encode_properties("TagA", (), {}) == b"TAGS\x01TagA\x02"
    text = message_fields.encode_properties(
        "t", ["k1", "k2"], {"naïve ключ": "välue – 1", "TS_ID": "x"}
    )
    want = {"TAGS": "t", "KEYS": "k1 k2", "naïve ключ": "välue – 1"}
    assert messages.parse_properties(text) == want
    assert message_fields.encode_properties(None, "one-key", None) == b"KEYS\x01one-key\x02"
    assert (
        message_fields.encode_properties(None, np.array(["k1", "k2"]), {}) == b"KEYS\x01k1 k2\x02"
    )
    assert message_fields.encode_properties(None, np.array([]), {}) == b""


@pytest.mark.parametrize(
    ("tags", "keys", "properties"),
    [("", (), None), ("a\x01b", (), None), (3, (), None), (None, ["a b"], None), (None, [""], None),
     (None, [None], None), (None, 3, None), (None, ["a\x02"], None), (None, ["a\u2003b"], None),
     (None, (), {"": "v"}), (None, (), {"n": ""}), (None, (), {"n": "a\x1f"}),
     (None, (), {"n\x00": "a"}), (None, (), {"n": 3}), (None, (), {3: "v"}),
     (None, (), {"n": "\ud800"}), (None, (), [("a", "b")]), (None, (), "text"), (None, (), 7),
     *((None, (), {name: "v"}) for name in message_fields.RESERVED_NAMES),
     (None, (), {"TIMER_DELIVER_MS": "1"}), (None, (), {"TIMER_ANYTHING": "1"}),
     (None, np.array([1, 2]), None), (None, (), np.array([1, 2]))],
)  # fmt: skip
def test_invalid_properties_are_rejected(tags, keys, properties):
    with pytest.raises(MessageError):
        message_fields.encode_properties(tags, keys, properties)


def test_error_names_each_invalid_property():
    with pytest.raises(MessageError) as caught:
        message_fields.encode_properties("", ["a b"], {"DELAY": "3", "x": "", "ok": "1"})
    assert len(caught.value.problems) == 4


def test_size_limits_leave_space_for_delivery():
    topic = b"t" * 127
    limit = 32_767 - message_fields.PROPERTIES_HEADROOM_BYTES - len(topic)
    sizes = {"properties_bytes_max": 32_767, "record_bytes_max": 4_259_840}
    message_fields.check_sizes(4_194_304, limit, topic, **sizes)
    with pytest.raises(MessageError, match=f"properties: wanted at most {limit} bytes"):
        message_fields.check_sizes(0, limit + 1, topic, **sizes)
    room = message_fields.room_bytes(16_368, topic)
    sizes["record_bytes_max"] = 16_368
    message_fields.check_sizes(room, 0, topic, **sizes)
    with pytest.raises(MessageError, match="message: wanted at most"):
        message_fields.check_sizes(room, 1, topic, **sizes)
    assert message_fields.body_bytes_limit(100, 16_368, topic) == 100
    assert message_fields.body_bytes_limit(2**22, 16_368, topic) == room


def test_headroom_covers_the_longest_delivery_properties():
    topic, big = "t" * 127, 2**63 - 1
    names = {
        "UNIQ_KEY": "F" * 32, "TIMER_DELIVER_MS": big, "TIMER_OUT_MS": big, "REAL_TOPIC": topic,
        "REAL_QID": 2**31 - 1, "TS_ID": "A" * 16, "TIMER_ENQUEUE_MS": big, "TIMER_DEQUEUE_MS": big,
        "TIMER_ROLL_TIMES": 2**31 - 1, "TS_PLACE": "A" * 16, "__CRC32#": "0123456789",
    }  # fmt: skip
    text = "".join(f"{name}\x01{value}\x02" for name, value in names.items())
    assert len(text) == message_fields.PROPERTIES_HEADROOM_BYTES + len(topic)


# --- times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "ahead_ms"),
    [({}, None), ({"delay": 0}, None), ({"delay": 0.0}, None), ({"delay": timedelta(0)}, None),
     ({"delay": 1}, 1000), ({"delay": 16.1}, 16_100), ({"delay": 2.3}, 2300),
     ({"delay": 0.0001}, 1), ({"delay": 0.0010001}, 1), ({"delay": 0.001001}, 2),
     ({"delay": np.float64(1.5)}, 1500), ({"delay": np.int64(2)}, 2000),
     ({"delay": timedelta(microseconds=1)}, 1), ({"delay": timedelta(days=15)}, 1_296_000_000),
     ({"delay": YEAR * 40 / 1000}, MAX), ({"delay": timedelta(milliseconds=MAX)}, MAX),
     ({"deliver_ms": NOW}, None), ({"deliver_ms": NOW + 1}, 1), ({"deliver_ms": NOW + MAX}, MAX),
     ({"deliver_ms": -5}, None), ({"deliver_ms": np.int64(NOW + 7)}, 7)],
)  # fmt: skip
def test_due_time_is_computed(given, ahead_ms):
    assert due(**given) == (None if ahead_ms is None else NOW + ahead_ms)


def test_deliver_at_is_rounded_up_to_a_millisecond():
    moment = datetime.fromtimestamp(NOW / 1000, UTC)
    assert due(deliver_at=moment) is None
    assert due(deliver_at=moment - timedelta(days=365)) is None
    assert due(deliver_at=moment + timedelta(microseconds=1)) == NOW + 1
    assert due(deliver_at=moment + timedelta(milliseconds=1)) == NOW + 1
    east = timezone(timedelta(hours=9))
    assert due(deliver_at=(moment + timedelta(hours=1)).astimezone(east)) == NOW + 3_600_000
    assert due(deliver_at=datetime(1, 1, 1, tzinfo=UTC)) is None


def test_deliver_at_is_not_early_when_a_change_of_clocks_skips_it() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    gap_end = datetime(2027, 3, 28, 1, tzinfo=UTC)  # 02:00 +01:00 is 03:00 +02:00
    for fold in (0, 1):
        skipped = datetime(2027, 3, 28, 2, 30, tzinfo=berlin, fold=fold)
        assert due_times.moment_ms("deliver_at", skipped) == (gap_end.timestamp() + 1800) * 1000
        twice = datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold)
        first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
        assert due_times.moment_ms("deliver_at", twice) == (first.timestamp() + 3600 * fold) * 1000


@pytest.mark.parametrize(
    "given",
    [{"delay": -1}, {"delay": -0.001}, {"delay": timedelta(microseconds=-1)},
     {"delay": float("nan")}, {"delay": float("inf")}, {"delay": float("-inf")}, {"delay": "5"},
     {"delay": True}, {"delay": 1e300}, {"delay": MAX / 1000 + 1}, {"delay": 10**30},
     {"deliver_ms": NOW + MAX + 1}, {"deliver_ms": 1.5}, {"deliver_ms": float("nan")},
     {"deliver_ms": "1"}, {"deliver_ms": True}, {"deliver_ms": 10**30},
     {"deliver_at": datetime(2030, 1, 1)}, {"deliver_at": "tomorrow"}, {"deliver_at": 5},  # noqa: DTZ001
     {"deliver_at": datetime(9999, 1, 1, tzinfo=UTC)},
     {"delay": 1, "deliver_ms": NOW}, {"delay": 0, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
     {"deliver_ms": NOW, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}],
)  # fmt: skip
def test_invalid_due_times_are_rejected(given):
    with pytest.raises(MessageError, match="wanted"):
        due(**given)


def many(count=3, delay=None, deliver_ms=None):
    return due_times.resolve_due_array(NOW, count, delay, deliver_ms, MAX).tolist()


def test_due_times_of_a_batch_are_computed():
    assert many() == [0, 0, 0]
    assert many(deliver_ms=NOW + 5) == [NOW + 5] * 3
    assert many(deliver_ms=[NOW - 1, NOW, NOW + 1]) == [0, 0, NOW + 1]
    assert many(deliver_ms=np.array([0, NOW + MAX, NOW], np.uint64)) == [0, NOW + MAX, 0]
    assert many(delay=1) == [NOW + 1000] * 3
    assert many(delay=[0, 16.1, 0.0001]) == [0, NOW + 16_100, NOW + 1]
    assert many(delay=timedelta(seconds=2)) == [NOW + 2000] * 3
    assert many(delay=np.array([MAX // 1000, 1, 2])) == [NOW + MAX, NOW + 1000, NOW + 2000]
    seconds = [16_777_215, 1, 0]
    for kind in (np.int32, np.uint32, ">i4", np.float32, np.longdouble):
        asked = [NOW + 16_777_215_000, NOW + 1000, 0]
        assert many(delay=np.array(seconds, kind)) == asked, kind
    for kind in (np.int8, np.int16, np.float16):
        assert many(delay=np.array([100, 2, 0], kind)) == [NOW + 100_000, NOW + 2000, 0], kind
    assert many(count=0, deliver_ms=[]) == []
    assert many(count=0, delay=[]) == []


@pytest.mark.parametrize(
    "given",
    [{"delay": 1, "deliver_ms": 1}, {"delay": [1, 2]}, {"delay": [[1, 2, 3]]}, {"delay": "abc"},
     {"delay": [1, -1, 2]}, {"delay": [1, float("nan"), 2]}, {"delay": [1.0, 1e300, 1.0]},
     {"delay": float("inf")}, {"delay": timedelta(days=99_999)}, {"delay": timedelta(-1)},
     {"delay": [True, False, True]}, {"delay": [1, None, 2]}, {"delay": 10**30},
     {"deliver_ms": [1.0, 2.0, 3.0]}, {"deliver_ms": [NOW + MAX + 1, 0, 0]},
     {"deliver_ms": [2**63, 0, 0]}, {"deliver_ms": np.array([2**64 - 1, 0, 0], np.uint64)},
     {"deliver_ms": [-(2**63), 0, 2**63 - 1]}, {"deliver_ms": [10**30, 0, 0]},
     {"deliver_ms": [[1], [2, 3], 4]}, {"delay": np.array([2**62] * 3)},
     {"delay": np.array([-(2**63)] * 3)}, {"delay": np.array([1, -1, 1], np.int8)},
     {"delay": np.array([1.0, -60_000.0, np.inf], np.float16)}, {"delay": [1.0, -1e300, 1.0]}],
)  # fmt: skip
def test_invalid_due_times_of_a_batch_are_rejected(given):
    with pytest.raises(MessageError, match="wanted"):
        many(**given)


def test_lowest_due_time_is_now():
    assert many(deliver_ms=[-(2**63), 0, NOW]) == [0, 0, 0]
