"""Rows sorted by day become one file for each day, whatever the batches are."""

from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow.parquet as pq  # noqa: E402 - behind the skip

from timerstore.spark.jobs.lake_worker import WriteDays  # noqa: E402
from timerstore.spark.jobs.shared_folder import shared_folder  # noqa: E402


@given(
    days=st.lists(st.integers(0, 4), max_size=40).map(sorted),
    cuts=st.lists(st.integers(0, 40), max_size=5).map(sorted),
)
def test_each_day_has_one_file_with_its_rows(
    days: list[int], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("lake")
    first = date(2026, 11, 21)
    table = pa.table(
        {
            "n": pa.array(range(len(days)), pa.int64()),
            "deliver_day": pa.array([first + timedelta(day) for day in days], pa.date32()),
        }
    )
    ends = [0, *cuts, len(days)]
    parts = [table.slice(a, max(b - a, 0)) for a, b in pairwise(ends)]
    cut = pa.concat_tables(parts) if len(days) else table
    rows = [row for one in WriteDays(shared_folder(root), "_s/r")(iter(cut.to_batches()))
            for row in one.to_pylist()]  # fmt: skip
    assert [row["day"] for row in rows] == [first + timedelta(day) for day in sorted(set(days))]
    got = [pq.read_table(Path(root) / row["name"]) for row in rows]
    assert [(len(one), one.column_names) for one in got] == [(row["rows"], ["n"]) for row in rows]
    assert [n for one in got for n in one.column("n").to_pylist()] == cut.column("n").to_pylist()
    assert [(root / row["name"]).stat().st_size for row in rows] == [row["bytes"] for row in rows]
