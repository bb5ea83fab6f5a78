import pytest

from timerstore._engine.format import handle
from timerstore.types.receipts import unique_key


def test_unique_key_has_prefix_and_counter():
    prefix = handle.make_prefix("127.0.0.1", 0x1ABCD, 0x123456789)
    assert prefix == "7F000001ABCD23456789"
    key = unique_key(prefix, 0xAB)
    assert key == prefix + "0000000000AB"
    assert handle.split_unique_key(key) == (prefix, 0xAB)
    assert len(handle.make_prefix("fe80::1", 1, 2)) == 20


@pytest.mark.parametrize("key", ["", "F" * 31, "F" * 33, "f" * 32, "G" * 32])
def test_other_forms_are_not_split(key):
    assert handle.split_unique_key(key) is None
