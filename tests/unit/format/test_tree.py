from pathlib import Path

import pytest

from timerstore._engine.format import store_paths
from timerstore._engine.format.store_paths import Tree
from timerstore.errors import CorruptError, MessageError


def test_store_files_have_their_names():
    store = Tree(Path("/s"))
    names = {
        "commitlog": store.commit_log,
        "consumequeue/orders/3": store.queue("orders", 3),
        "index": store.index,
        "timerlog": store.timer_log,
        "timerwheel": store.timer_wheel,
        "checkpoint": store.checkpoint,
        "abort": store.abort,
        "lock": store.lock,
        "config/topics.json": store.topics_json,
        "config/topics.json.bak": store_paths.backup_of(store.topics_json),
        "config/timercheck": store.timer_check,
        "config/timermetrics": store.timer_metrics,
        "timerstore/watermark": store.watermark,
        "timerstore/state": store.state,
        "timerstore/staging": store.staging,
        "timerstore/counts": store.counts,
    }
    for name, path in names.items():
        assert path == Path("/s") / name


@pytest.mark.parametrize("offset", [0, 1, 1_073_741_824, 2**63 - 1])
def test_segment_names_round_trip(offset):
    name = store_paths.segment_name(offset)
    assert len(name) == 20
    assert store_paths.segment_offset(name) == offset


@pytest.mark.parametrize("name", ["", "1", "0" * 19, "0" * 21, "9" * 20, "0" * 19 + "a", "٠" * 20])
def test_other_segment_names_are_rejected(name):
    with pytest.raises(CorruptError):
        store_paths.segment_offset(name)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_invalid_segment_offsets_are_rejected(offset):
    with pytest.raises(ValueError, match="segment offset"):
        store_paths.segment_name(offset)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "a" * 255, "A-b_c|9"])
def test_valid_topics_name_a_folder(topic):
    assert store_paths.topic_component(topic) == topic


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "a/b", "/", "a\\b", "a\x00", "a" * 256, "a.b", "é", "a\n", " "]
)
def test_invalid_topics_name_no_folder(topic):
    with pytest.raises(MessageError):
        store_paths.topic_component(topic)


def test_queue_number_is_parsed():
    assert store_paths.queue_number("17") == 17
    assert store_paths.queue_number("65535") == 65535
    for name in ("", "-1", "01", "a", "65536", "2147483648", "1.bak"):
        assert store_paths.queue_number(name) is None
    with pytest.raises(ValueError, match="queue"):
        Tree(Path("/s")).queue("t", -1)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("0", 0), ("+0", 0), ("-0", 0), ("7", 7), ("+7", 7), ("99", 99), ("0" * 5000 + "5", 5)],
        *[(one, -1) for one in ("", "+", "-", "-1", "+-1", " 1", "1 ", "x", "1.0", "1_0", "100")],
        *[(one, -1) for one in ("9" * 19, "9" * 20, "9" * 5000, "\u0661", "\u00b2")],
    ],
)
def test_whole_number_of_a_property_is_parsed(text: str, number: int) -> None:
    assert store_paths.whole_number(text, 99) == number
