from pathlib import Path

import pytest

from timerstore._engine.format import consumer_offset_json
from timerstore._engine.format.json_text import DataVersion
from timerstore.errors import CorruptError

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "consumer_offsets"
NAMES = ["5.1.4-empty", "5.3.3-empty", "5.3.3", "5.4.0-empty", "5.4.0"]
COMMITTED = {  # the commands for the brokers are in the README there
    "orders@billing": {0: 12, 1: 7, 3: 0},
    "reminders@billing": {10: 9007199254740993},
    "orders@audit": {2: 5},
    "reminders@audit": {0: 1},
    "%RETRY%billing@a|b%c": {0: 3},
    "reminders@zeta": {33: 2, 1: 4, 200: 8},
}


def text(name):
    return (FOLDER / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_brokers_file_round_trips_byte_by_byte(name):
    assert consumer_offset_json.write(consumer_offset_json.read(text(name), None)) == text(name)


@pytest.mark.parametrize("name", ["5.3.3", "5.4.0"])
def test_brokers_file_is_read(name):
    found = consumer_offset_json.read(text(name), None)
    assert found.table == COMMITTED
    assert {g: set(t) for g, t in found.topics_of_group.items()} == {
        "billing": {"orders", "reminders"},
        "audit": {"orders", "reminders"},
        "a|b%c": {"%RETRY%billing"},
        "zeta": {"reminders"},
    }
    assert found.is_wide == (name == "5.4.0")


def test_commit_changes_only_its_entries_in_a_brokers_file():
    old = consumer_offset_json.read(text("5.3.3"), None)
    new = old.with_offsets({("orders", "billing"): {2: 4, 1: 8}}, 77)
    expected = text("5.3.3").replace(b"{0:12,1:7,3:0\n", b"{0:12,1:8,2:4,3:0\n")
    expected = expected.replace(b'"counter":0', b'"counter":1')
    expected = expected.replace(b"%d" % old.version.timestamp_ms, b"77")
    assert consumer_offset_json.write(new) == expected
    assert old.table == COMMITTED  # as it was


@pytest.mark.parametrize("name", NAMES)
def test_new_group_has_the_form_of_the_file(name):
    old = consumer_offset_json.read(text(name), None)
    new = old.with_offsets({("mail", "new"): {0: 1, 3: 2}, ("orders", "new"): {1: 1}}, 5)
    written = consumer_offset_json.write(new)
    again = consumer_offset_json.read(written, None)
    assert again == new
    assert again.topics_of_group["new"] == ["mail", "orders"]
    wide = b'"mail@new":{\n\t\t\t0:1,\n\t\t\t3:2\n\t\t}'
    narrow = b'"mail@new":{0:1,3:2\n\t\t}'
    assert ((wide if name.startswith("5.4") else narrow) in written) is True
    assert ((narrow if name.startswith("5.4") else wide) in written) is False


def test_first_commit_of_a_new_store_is_written():
    new = consumer_offset_json.ConsumerOffsets().with_offsets({("t", "g"): {0: 5}}, 9)
    assert new.version == DataVersion(0, 1, 9)
    assert consumer_offset_json.write(new) == (
        b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":9\n\t},\n'
        b'\t"groupTopicMap":{\n\t\t"g":["t"]\n\t},\n'
        b'\t"offsetTable":{\n\t\t"t@g":{0:5\n\t\t}\n\t}\n}'
    )


def test_unknown_fields_are_kept():
    strange = (
        b'{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":2},"later":{"a":[1,{"b":null}]},'
        b'"offsetTable":{"no separator":{0:1},"a@b@c":{7:2}},"zeta":true}'
    )
    found = consumer_offset_json.read(strange, None)
    again = consumer_offset_json.read(consumer_offset_json.write(found), None)
    assert again.other == {"later": {"a": [1, {"b": None}]}, "zeta": True}
    assert again.table == {"no separator": {0: 1}, "a@b@c": {7: 2}}
    assert again.version == DataVersion(1, 3, 2)


@pytest.mark.parametrize("broken", [b"", b"\0" * 300, b'{"offsetTable":{"t@g":{0:'])
def test_older_copy_is_read_when_the_file_is_damaged(broken):
    found = consumer_offset_json.read(broken, text("5.3.3"))
    assert found.table == COMMITTED


@pytest.mark.parametrize(
    "wrong",
    [
        b"[]",
        b'{"offsetTable":[]}',
        b'{"offsetTable":{"t@g":5}}',
        b'{"offsetTable":{"t@g":{0:"5"}}}',
        b'{"offsetTable":{"t@g":{0:1.5}}}',
        b'{"offsetTable":{"t@g":{0:true}}}',
        b'{"offsetTable":{"t@g":{"x":1}}}',
        b'{"offsetTable":{"t@g":{-1:1}}}',
        b'{"groupTopicMap":{"g":"t"}}',
        b'{"groupTopicMap":{"g":[1]}}',
    ],
)
def test_invalid_offsets_raise_corrupt_error(wrong):
    with pytest.raises(CorruptError):
        consumer_offset_json.read(wrong, None)
