"""ack_many names the invalid receipt and its value."""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, small
from timerstore import MessageError

LONG = "A" * 2000


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (7, "receipt: wanted text, as in bDEg..., got int 7"),
        ({"a": 1}, "receipt: wanted text, as in bDEg..., got dict {'a': 1}"),
        ("", "receipt: wanted 1 to 1024 characters, as in bDEg..., got 0 in ''"),
        (LONG, f"receipt: wanted 1 to 1024 characters, as in bDEg..., got 2000 in '{LONG[:76]}..."),
        ("!!!!", "got '!!!!'"),
        ("bDEg", "got b'l1 ' (3 bytes)"),
    ],
)
def test_ack_many_names_the_invalid_receipt(bench: Bench, wrong: Any, told: str) -> None:
    bench.store.put_many("t", [b"a", b"b"])
    bench.turn()
    a, b = bench.store.receive("t", "g", max_count=2)
    for receipts in ([a, wrong, b], iter([a.receipt, wrong])):
        with pytest.raises(MessageError) as caught:
            bench.store.ack_many(receipts)
        (problem,) = caught.value.problems
        assert problem.startswith("receipts[1]: receipt: wanted ")
        assert told in problem
    assert bench.store.ack_many([a, b]) == ["ACKED", "ACKED"]


def test_ack_many_of_shards_names_the_invalid_receipt(tmp_path: Path) -> None:
    with timerstore.open_shards(tmp_path / "shards", 2, small(), threads=False) as store:
        for wrong, told in (
            (7, "receipts[0]: receipt: wanted text or a ShardLeasedMessage, got int 7"),
            ("s00001.bDEg", "receipts[0]: receipt: wanted `l1`"),
            ("s00002.bDEg", "receipts[0]: receipt: wanted one of 2 shards, got shard 2"),
        ):
            with pytest.raises(MessageError) as caught:
                store.ack_many([wrong, "x"])  # type: ignore[list-item]
            assert str(caught.value).startswith(told)
        with pytest.raises(MessageError, match=r"receipts_or_handles\[0\]: .*, got int 7"):
            store.cancel_many([7])  # type: ignore[list-item]
