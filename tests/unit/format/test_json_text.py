import pytest

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import DataVersion
from timerstore.errors import CorruptError


@pytest.mark.parametrize(
    ("text", "want"),
    [(b"{0:12,1:7}", {"0": 12, "1": 7}), (b'{"a":{ -1 : "x,2:3"}}', {"a": {"-1": "x,2:3"}}),
     (b'{"a\\"{1:":{1:2}}', {'a"{1:': {"1": 2}}), (b"{}", {}), (b'{"a":[1,2]}', {"a": [1, 2]})],
)  # fmt: skip
def test_loads_accepts_bare_integer_keys(text, want):
    assert json_text.loads(text) == want


@pytest.mark.parametrize("text", [b"", b"{a:1}", b"[1]", b"3", b"\xff", b"{1.5:1}"])
def test_loads_rejects_other_text(text):
    with pytest.raises(CorruptError):
        json_text.loads(text)


def test_versions_are_ordered_by_state_then_counter_then_time():
    assert (
        DataVersion(1, 0, 0) > DataVersion(0, 9, 9) > DataVersion(0, 9, 8) > DataVersion(0, 8, 99)
    )
    assert DataVersion(0, 3, 1).next(7) == DataVersion(0, 4, 7)
    assert DataVersion.from_json(None) == DataVersion(0, 0, 0)
    assert DataVersion.from_json(DataVersion(1, 2, 3).to_json()) == DataVersion(1, 2, 3)
