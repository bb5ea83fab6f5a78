"""Rows that staging accepts are ingested by every shard, with any limits and clocks."""

from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.support.amounts import sample  # noqa: E402
from tests.support.bench import NOW, small  # noqa: E402
from tests.support.shards import ShardBench  # noqa: E402
from tests.support.staging import (  # noqa: E402
    batch_of,
    make_root,
    write_rows,
)
from timerstore import (  # noqa: E402
    MessageError,
    RowBatch,
)
from timerstore.shards import (  # noqa: E402
    ingest,
    stage,
)
from timerstore.testing import ManualClock  # noqa: E402


def test_rows_at_every_limit_are_ingested(tmp_path: Path) -> None:
    """What staging lets through no shard may refuse: it would be committed, and stuck."""
    config = small(commit_log_segment_bytes=65_536, properties_bytes_max=2000)
    root = tmp_path / "s"
    bench = ShardBench(root, 1, config)
    bench.close()
    low, high = 1, 65_536
    while low < high - 1:  # the largest body that passes
        size = (low + high) // 2
        try:
            stage(root, "probe", 0, f"b{size}", [batch_of(1, body=[b"x" * size])],
                  clock=bench.clock)  # fmt: skip
            low = size
        except MessageError:
            high = size
    assert low > 50_000
    far = NOW + config.delay_ms_max
    rows = [
        batch_of(1, 0, body=[b"x" * low]),
        batch_of(1, 1, deliver_at=pa.array([far])),
        batch_of(1, 2, topic=["t" * 127]),
        batch_of(1, 3, message_id=["i" * 128]),
        batch_of(1, 4, deliver_at=pa.array([-(2**63)])),
        batch_of(1, 5, tags=["x" * 1400]),
    ]
    for version, batch in enumerate(rows):
        write_rows(root, [batch], version)
    bench.open()
    assert sum(one.row_count for one in bench.store.ingest()) == len(rows)
    bench.turn(10_000)
    assert bench.store.stats()["pending_messages"] == 1
    assert len(bench.bodies("t")[0]) == 4
    bench.close()


def test_rows_are_ingested_when_timers_are_off(tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "s", 1, small(timer_enabled=False))
    due = pa.array([NOW, NOW + 3_600_000])
    write_rows(bench.root, [batch_of(2, deliver_at=due)], on_invalid="quarantine")
    bench.clock.set(NOW - 1000)  # the owner's clock is behind the writer's
    assert [one.row_count for one in bench.store.ingest()] == [1]
    bench.turn()
    assert bench.bodies() == [[b"body-0"]]
    bench.close()


texts = st.one_of(
    st.none(), st.text(max_size=12), st.sampled_from(["k", "a b", "é", "\u3000", "TIMER_X"])
)


raw_texts = st.one_of(texts, st.sampled_from([b"\xff", b"a\xc3", b"\xed\xa0\x80"]))


rows = st.fixed_dictionaries(
    {
        "topic": st.one_of(st.sampled_from(["t", "u", "a.b"]), st.none()),
        "body": st.one_of(st.binary(max_size=30), st.none()),
        "deliver_at": st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(NOW, NOW + 9999)),
        "key": texts,
        "keys": st.one_of(st.none(), st.lists(raw_texts, max_size=3)),
        "tags": texts,
        "message_id": texts,
        "properties": st.one_of(
            st.none(),
            st.lists(st.tuples(st.text(min_size=1, max_size=8), raw_texts), max_size=3),
        ),
    }
)


@pytest.mark.more
@settings(max_examples=40)
@given(given_rows=st.lists(rows, min_size=1, max_size=25), has_lists=st.booleans())
def test_every_staged_row_is_ingested(
    given_rows: list[dict[str, Any]], has_lists: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("limits") / "s"
    bench = ShardBench(root, 2)
    kinds = {
        "topic": pa.string(),
        "body": pa.binary(),
        "deliver_at": pa.int64(),
        "key": pa.string(),
        "keys": pa.list_(pa.binary()),
        "tags": pa.string(),
        "message_id": pa.string(),
        "properties": pa.map_(pa.string(), pa.binary()),
    }
    columns = {
        name: pa.array([row[name] for row in given_rows], kind) for name, kind in kinds.items()
    }
    # A producer may have cast any bytes to a string.
    columns["keys"] = columns["keys"].cast(pa.list_(pa.string()), safe=False)
    columns["properties"] = columns["properties"].cast(
        pa.map_(pa.string(), pa.string()), safe=False
    )
    del columns["key" if has_lists else "keys"]
    done = write_rows(root, [pa.record_batch(columns)], on_invalid="quarantine")
    aside = sum(one.rows for one in done.manifest.of_shard(-1))
    assert done.manifest.row_count + aside == len(given_rows)
    taken = bench.store.ingest()
    assert sum(one.row_count for one in taken) == done.manifest.row_count
    bench.turn(20_000)
    came = sum(len(part) for topic in ("t", "u") for part in bench.bodies(topic))
    assert came + bench.store.stats()["pending_messages"] == done.manifest.row_count
    bench.close()


@pytest.mark.parametrize(
    "back_ms", sample([50_000, 0, 10 * 365 * 86_400_000], "clocks of an ingest")
)
@pytest.mark.parametrize("owner_has_timers", [True, False])
@pytest.mark.parametrize("is_open", [False, True])
def test_committed_rows_are_ingested_with_any_clock_and_settings(
    tmp_path: Path, back_ms: int, owner_has_timers: bool, is_open: bool
) -> None:
    """A row that was refused would hold up all later versions of its source."""
    root = make_root(tmp_path / "s", delay_ms_max=100_000)
    due_ms = [NOW + 99_000, NOW - 1, 0, NOW + 1]
    rows = batch_of(4, deliver_at=[], deliver_ms=pa.array(due_ms))
    write_rows(root, [rows])
    write_rows(root, [batch_of(4, 4, deliver_at=[], deliver_ms=pa.array([0] * 4))], version=1)
    config = small(delay_ms_max=100_000, timer_enabled=owner_has_timers)
    clock = ManualClock(NOW - back_ms)
    if not is_open:
        assert ingest(root, config, clock=clock).row_count == 8
    bench = ShardBench(root, 3, config)
    bench.close()
    bench.clock = clock
    bench.open()
    if is_open:
        assert sum(one.row_count for one in bench.store.ingest()) == 8
    bench.turn()
    assert sum(bench.counted().values()) == (6 if back_ms == 0 else 5)
    bench.turn(NOW + 98_999 - clock.now_ms)
    assert b"body-0" not in bench.counted()
    bench.turn(1)
    bench.turn(1000)
    assert bench.counted() == {b"body-%d" % k: 1 for k in range(8)}
    bench.close()


def test_store_ingest_checks_rows_against_clock(tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "s", 1, small(delay_ms_max=100_000))
    row = RowBatch("t", b"x", np.array([0, 1]), np.array([NOW + 100_001]))
    with pytest.raises(MessageError, match="at most"):
        bench.store.stores[0].ingest("s", 0, [row])
    bench.close()
