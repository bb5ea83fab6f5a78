"""Due times of a table in epoch ms, rounded up in every year."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: N812

from timerstore.spark.jobs.projection import due_ms

_YEAR_2255_US = 2**53  # from here on a double cannot represent every microsecond
_YEAR_4253_US = 2**56  # from here on a double of microseconds cannot represent every ms
_YEAR_9999_US = 253_402_300_799_999_999


def test_due_ms_rounds_up_in_every_year(spark: Any) -> None:
    around = [0, 1_700_000_000_000_000, _YEAR_2255_US, 16 * _YEAR_2255_US, 28 * _YEAR_2255_US]
    given = [at // 1000 * 1000 + k for at in around for k in (-1001, -1000, -999, -1, 0, 1, 999)]
    # With doubles the first three of these would be 1 ms early, the others 1 ms late.
    given += [85_022_208_673_736_001, 178_142_332_483_777_001, 196_866_515_437_089_001]
    given += [9_007_199_254_741_000, 253_402_300_799_000_000, _YEAR_9999_US]
    given += [_YEAR_2255_US + 1_234_567_891 * k for k in range(1000)]
    given += [_YEAR_4253_US // 1000 * 1000 + 1 + 61_234_567_000 * k for k in range(1000)]
    table = spark.createDataFrame([(one,) for one in given], "us long")
    table = table.select("us", F.timestamp_micros("us").alias("deliver_at"))
    found = table.select("us", due_ms(table, "deliver_at").alias("ms")).collect()
    wrong = [(one.us, one.ms) for one in found if one.ms != -(-one.us // 1000)]
    assert wrong == []
    assert len(found) == len(given)
