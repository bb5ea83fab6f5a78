"""Due times before the year 2000 are an error: seconds were given as milliseconds."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from timerstore import MessageError, RowBatch, aio
from timerstore._engine.base.due_times import SANE_MS_MIN
from timerstore._engine.write.row_batch import StagedBatch

IN_AN_HOUR_S = NOW // 1000 + 3600
WRONG: dict[str, Any] = {
    "seconds": IN_AN_HOUR_S,
    "numpy": np.int64(IN_AN_HOUR_S),
    "the last": SANE_MS_MIN - 1,
    "one": 1,
}
AT_ONCE = (-(2**63), -1, 0, SANE_MS_MIN, NOW - 1, NOW)


def rows(due_ms: list[int], kind: type[RowBatch] = RowBatch) -> RowBatch:
    count = len(due_ms)
    return kind("t", b"x" * count, np.arange(count + 1), np.array(due_ms, np.int64))


def moved(bench: Bench, **when: Any) -> None:
    bench.store.reschedule(bench.store.put("waits", b"x", delay=1000), **when)


CALLS: dict[str, Callable[[Bench, int], Any]] = {
    "put": lambda bench, ms: bench.store.put("t", b"x", deliver_ms=ms),
    "put sync": lambda bench, ms: bench.store.put("t", b"x", deliver_ms=ms, flush="sync"),
    "put id": lambda bench, ms: bench.store.put("t", b"x", deliver_ms=ms, message_id="a"),
    "put spread": lambda bench, ms: bench.store.put("t", b"x", deliver_ms=ms, spread=0),
    "put replace": lambda bench, ms: bench.store.put(
        "t", b"x", deliver_ms=ms, key="k", replace=True
    ),
    "put_many": lambda bench, ms: bench.store.put_many("t", [b"x"], deliver_ms=ms),
    "put_many list": lambda bench, ms: bench.store.put_many("t", [b"x"], deliver_ms=[ms]),
    "put_many spread": lambda bench, ms: bench.store.put_many(
        "t", [b"x"], deliver_ms=ms, spread=0
    ),
    "put_many atomic": lambda bench, ms: bench.store.put_many(
        "t", [b"x"], deliver_ms=ms, atomic=True
    ),
    "put_many ids": lambda bench, ms: bench.store.put_many(
        "t", [b"x"], deliver_ms=ms, message_ids=["a"]
    ),
    "reschedule": lambda bench, ms: moved(bench, deliver_ms=ms),
}  # fmt: skip


@pytest.mark.parametrize("ms", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_due_time_before_2000_is_an_error_that_says_how(
    bench: Bench, call: Callable[[Bench, int], Any], ms: int
) -> None:
    with pytest.raises(MessageError, match="deliver_ms: wanted") as raised:
        call(bench, ms)
    bench.turn()
    assert bench.out() == []
    if ms == IN_AN_HOUR_S and abs(ms) < 2**62:
        assert "1000" in str(raised.value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_due_time_of_0_or_that_has_passed_means_now(
    bench: Bench, call: Callable[[Bench, int], Any]
) -> None:
    for ms in AT_ONCE:
        call(bench, ms)
    bench.turn()
    assert bench.out("t") or bench.out("waits")


def test_put_many_names_the_index_of_a_due_time_before_2000(bench: Bench) -> None:
    due = np.array([0, NOW + 5, IN_AN_HOUR_S, NOW])
    with bench.refused(MessageError, rf"deliver_ms: wanted 0 .*{IN_AN_HOUR_S} at 2"):
        bench.store.put_many("t", [b"x"] * 4, deliver_ms=due)


def test_datetime_made_of_seconds_as_ms_is_an_error(bench: Bench) -> None:
    wrong = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=IN_AN_HOUR_S)
    with bench.refused(MessageError, "deliver_at: wanted .* seconds that were read as"):
        bench.store.put("t", b"x", deliver_at=wrong)
    with pytest.raises(MessageError, match="deliver_at: wanted"):
        moved(bench, deliver_at=wrong)
    with bench.refused(MessageError, "deliver_at: wanted .*0 means now"):
        bench.store.put("t", b"x", deliver_at=datetime(1970, 1, 1, 1, tzinfo=UTC))
    bench.store.put("t", b"x", deliver_at=datetime(1970, 1, 1, tzinfo=UTC))


def test_store_with_a_clock_before_2000_accepts_any_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", now_ms=1000)
    for call in CALLS.values():
        call(bench, 1)
    bench.store.ingest("s", 0, [rows([500])])
    bench.turn(5000)
    bench.close()


def test_ingest_names_the_row_of_a_due_time_before_2000(bench: Bench) -> None:
    with bench.refused(MessageError, rf"deliver_ms: wanted 0 .*{IN_AN_HOUR_S} at 1"):
        bench.store.ingest("s", 0, [rows([0, IN_AN_HOUR_S])])
    assert bench.store.ingest("s", 0, [rows([0, NOW - 1])]).row_count == 2


def test_ingest_accepts_rows_that_an_earlier_release_staged(bench: Bench) -> None:
    bench.store.ingest("s", 0, [rows([0, IN_AN_HOUR_S], StagedBatch)])
    bench.turn()
    assert len(bench.out()) == 2


def test_shards_and_asyncio_reject_a_due_time_before_2000(tmp_path: Path) -> None:
    with (
        timerstore.open_shards(tmp_path / "shards", 2, small()) as shards,
        pytest.raises(MessageError, match=r"at 1\b"),
    ):
        shards.put_many("t", [b"x"] * 2, deliver_ms=[0, IN_AN_HOUR_S])

    async def put() -> None:
        async with aio.open(tmp_path / "one", small()) as store:
            with pytest.raises(MessageError, match="seconds"):
                await store.put("t", b"x", deliver_ms=IN_AN_HOUR_S)

    asyncio.run(put())
