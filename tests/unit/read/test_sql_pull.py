"""Pulls with an SQL filter."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from timerstore import MessageError, PullStatus, StoreConfig
from timerstore._engine.read.filter import SqlFilter


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    one = Bench(tmp_path / "store", StoreConfig(flush="async", wheel_slot_count=128))
    for k in range(60):
        properties = {"n": str(k), "half": str(k / 2)} if k % 5 else {}
        one.store.put("t", b"%d" % k, tags="odd" if k % 2 else "even", properties=properties)
    one.turn()
    yield one
    one.close()


@pytest.mark.parametrize("max_count", [1, 7, 100])
@pytest.mark.parametrize("scanned", [1, 10, 1024])
def test_pulled_by_sql(
    bench: Bench, max_count: int, scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlFilter, "units_max", scanned)
    text = "n >= 10 AND (TAGS = 'odd' OR half > 25.0) AND n IS NOT NULL"
    found, offset = [], 0
    while True:
        got = bench.store.pull("t", 0, offset, max_count=max_count, sql=text)
        batch = bench.store.pull_batch("t", 0, offset, max_count=max_count, sql=text)
        assert (list(batch), batch.status, batch.next_offset) == (
            list(got.messages), got.status, got.next_offset,
        )  # fmt: skip
        if got.status is PullStatus.OFFSET_OVERFLOW_ONE:
            break
        assert (got.status is PullStatus.FOUND) == bool(got.messages)
        assert offset < got.next_offset <= offset + max(max_count, scanned)
        found += [int(message.body) for message in got.messages]
        offset = got.next_offset
    assert found == [k for k in range(60) if k % 5 and k >= 10 and (k % 2 or k > 50)]


def test_invalid_sql_filter_changes_nothing(bench: Bench) -> None:
    for given_, what in (
        ({"sql": "n >"}, "its end at character 4"),
        ({"sql": ""}, "its end"),
        ({"sql": 5}, "wanted text such as 'a > 5', got int"),
        ({"sql": "n > 5", "tags": "odd"}, "wanted one of tags and sql"),
        ({"sql": "n > 5", "tags": "*"}, "wanted one of tags and sql"),
    ):
        with bench.refused(MessageError, what):
            bench.store.pull("t", 0, 0, **given_)
        with bench.refused(MessageError, f"max_count.*{what}"):
            bench.store.pull_batch("t", 0, 0, max_count=0, **given_)
