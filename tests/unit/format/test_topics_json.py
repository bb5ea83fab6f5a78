import tarfile

import pytest

from tests.support.broker import fixtures as broker_fixtures
from timerstore._engine.format import topics_json
from timerstore.errors import CorruptError

TEXT = b"""{
	"dataVersion":{
		"counter":2,
		"stateVersion":0,
		"timestamp":5
	},
	"topicConfigTable":{
		"orders":{
			"attributes":{},
			"order":false,
			"perm":6,
			"readQueueNums":4,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"orders",
			"topicSysFlag":0,
			"writeQueueNums":4
		}
	}
}"""


def sample(name, file):
    path = broker_fixtures.FOLDER / name / "store.tar.xz"
    with tarfile.open(path) as archive:
        for one in archive:
            if one.name.endswith(file):
                return archive.extractfile(one).read()
    raise AssertionError(f"{name} has no {file}")


@pytest.mark.parametrize("name", ["clean-small-segments", "version-5.1.4"])
def test_brokers_file_round_trips_byte_by_byte(name):
    text = sample(name, "config/topics.json")
    topics = topics_json.read(text, None)
    assert topics.topics["orders"].queue_count == 4
    assert topics.topics["SCHEDULE_TOPIC_XXXX"].queue_count == 18
    assert topics_json.write(topics) == text


def test_newer_brokers_file_has_the_same_contents_after_writing():
    topics = topics_json.read(sample("version-5.4.0", "config/topics.json"), None)
    assert "rmq_sys_wheel_timer" in topics.topics
    assert topics_json.read(topics_json.write(topics), None) == topics


def test_topics_are_added_and_grow():
    topics = (
        topics_json.Topics().with_topic("orders", 4, now_ms=1).with_topic("orders", 2, now_ms=2)
    )
    assert topics.version == (0, 1, 1)
    grown = topics.with_topic("orders", 6, now_ms=5)
    assert grown.topics["orders"].queue_count == grown.topics["orders"].read_queue_count == 6
    assert grown.version == (0, 2, 5)
    smaller = grown.topics["orders"]._replace(queue_count=4, read_queue_count=4)
    assert topics_json.write(topics_json.Topics(grown.version, {"orders": smaller})) == TEXT


def test_unknown_fields_are_kept():
    text = TEXT.replace(b'"order":false', b'"later":{1:[true,null]},"order":false')
    topics = topics_json.read(text, None)
    assert topics.topics["orders"].other == {"later": {"1": [True, None]}}
    assert b'"later":{' in topics_json.write(topics)


@pytest.mark.parametrize("main", [None, b"", b" \n", b"\x00" * 40, b"{", TEXT[:-9], b"\xff", b"[]"])
def test_older_copy_replaces_a_damaged_file(main):
    assert topics_json.read(main, TEXT).topics["orders"].queue_count == 4


def test_missing_file_is_empty():
    assert topics_json.read(None, b"") == topics_json.Topics()
    with pytest.raises(CorruptError):
        topics_json.read(b"{", None)
    with pytest.raises(CorruptError):
        topics_json.read(None, b"[" * 100_000)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"writeQueueNums":4', b'"writeQueueNums":-1'),
     (b'"writeQueueNums":4', b'"writeQueueNums":"4"'),
     (b'"topicName":"orders"', b'"topicName":"../x"'), (b'"attributes":{}', b'"attributes":3'),
     (b'"counter":2', b'"counter":2.5'), (b'"perm":6', b'"perm":true')],
)  # fmt: skip
def test_read_rejects_invalid_fields(old, new):
    with pytest.raises(CorruptError):
        topics_json.read(TEXT.replace(old, new), None)
