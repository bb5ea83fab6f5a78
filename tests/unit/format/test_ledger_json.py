"""Records of the ledger: written, read and rejected."""

import json
from typing import Any

import pytest

from timerstore._engine.format import ledger_cache
from timerstore._engine.format.ledger_cache import LedgerCache
from timerstore._engine.format.ledger_json import (
    Begun,
    ChunkHeader,
    Done,
    SourceState,
    read,
    write_chunk,
    write_state,
)
from timerstore._engine.write.ledger import Ledger
from timerstore.errors import CorruptError, FormatVersionError

HEADER = ChunkHeader("ü/{1:2}", 2**63 - 1, 3, 4, 11, 999, 2**64 - 1, last=True)
STATE = SourceState("s", ((0, 7), (9, 10)), (Done(6, 5, 17),), (Begun(8, 2, 30, 2**63),))


def test_records_round_trip() -> None:
    assert read(write_chunk(HEADER)) == HEADER
    assert json.loads(write_chunk(HEADER))["digest"] == "f" * 16
    assert read(write_state(STATE)) == STATE
    cache = LedgerCache(5, 7, 900, (STATE, STATE._replace(source="ü")))
    assert ledger_cache.read(ledger_cache.write(cache)) == cache


@pytest.mark.parametrize("wrong", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":"1"}', b"\xff"])
def test_read_rejects_other_records(wrong: bytes) -> None:
    with pytest.raises(CorruptError):
        read(wrong)
    assert ledger_cache.read(wrong) is None
    ledger = Ledger()
    ledger.fold(wrong)
    assert ledger.sources() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("source", 5), ("version", -1), ("chunk", None), ("rows", "4"), ("digest", "xyz"),
     ("rows_so_far", True), ("versions", [[0]]), ("versions", [[0, 1, 2]])],
)  # fmt: skip
def test_read_rejects_invalid_fields(name: str, value: Any) -> None:
    table = json.loads(write_chunk(HEADER)) | {name: value}
    with pytest.raises(CorruptError, match="ledger: an invalid record"):
        read(json.dumps(table).encode())


def test_record_of_a_later_release_raises_format_version_error() -> None:
    text = write_chunk(HEADER).replace(b'"format":1', b'"format":2')
    with pytest.raises(FormatVersionError):
        Ledger().fold(text)


def test_changed_bit_of_the_cache_is_detected() -> None:
    data = ledger_cache.write(LedgerCache(5, 7, 900, (STATE,)))
    for at in range(len(data)):
        for bit in (1, 16):
            torn = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            assert ledger_cache.read(torn) in (None, ledger_cache.read(data))
        assert ledger_cache.read(data[:at]) is None
