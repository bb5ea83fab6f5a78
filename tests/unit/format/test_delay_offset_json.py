from pathlib import Path

import pytest

from tests.support import disk_reader as disk
from tests.support.broker import fixtures as broker
from timerstore._engine.format import delay_offset_json
from timerstore._engine.format.delay_offset_json import DelayOffsets
from timerstore.errors import CorruptError

FASTJSON = (
    b'{\n\t"dataVersion":{\n\t\t"counter":8,\n\t\t"stateVersion":0,\n\t\t"timestamp":1795254590378'
    b'\n\t},\n\t"offsetTable":{1:11,2:34,3:22,4:0,5:0,9:0,18:0\n\t}\n}'
)
FASTJSON_2 = (
    b'{\n\t"dataVersion":{\n\t\t"counter":5,\n\t\t"stateVersion":0,\n\t\t"timestamp":1795254834551'
    b'\n\t},\n\t"offsetTable":{\n\t\t1:7,\n\t\t2:12,\n\t\t18:0\n\t}\n}'
)
EMPTY = (
    b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":2\n\t},'
    b'\n\t"offsetTable":{}\n}'
)


@pytest.mark.parametrize("text", [FASTJSON, FASTJSON_2, EMPTY])
def test_brokers_file_round_trips_byte_by_byte(text: bytes) -> None:
    assert delay_offset_json.write(delay_offset_json.read(text, None)) == text


@pytest.mark.parametrize("name", broker.names())
def test_files_of_all_fixtures_are_read(name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    for path in root.glob("config/delayOffset.json*"):
        text = path.read_bytes()
        found = delay_offset_json.read(text, None)
        assert delay_offset_json.write(found) == text
        if path.suffix == ".json":
            assert found.offsets == disk.read_level_offsets(root)


def test_change_increments_the_version_and_keeps_other_levels() -> None:
    before = delay_offset_json.read(FASTJSON_2, None)
    after = before.with_offsets({2: 13, 5: 1}, 7)
    assert after.offsets == {1: 7, 2: 13, 5: 1, 18: 0}
    assert list(after.offsets) == [1, 2, 5, 18]
    assert (after.version.counter, after.version.timestamp_ms) == (6, 7)
    assert b"2:13,\n\t\t5:1" in delay_offset_json.write(after)
    assert after.with_offsets({2: 13}, 9) is after


def test_missing_file_is_empty_and_older_copy_replaces_a_damaged_one() -> None:
    assert delay_offset_json.read(None, None) == DelayOffsets()
    assert delay_offset_json.read(b"{", FASTJSON).offsets[2] == 34


@pytest.mark.parametrize(
    "table",
    [
        b"{0:1}",
        b"{1:-1}",
        b'{1:"a"}',
        b"{a:1}",
        b'{"b":1}',
        b"[]",
        b"{%s:1}" % (b"9" * 5000),
        b"{2147483648:1}",
    ],
)
def test_read_rejects_other_json(table: bytes) -> None:
    with pytest.raises(CorruptError):
        delay_offset_json.read(b'{"offsetTable":' + table + b"}", None)
