"""Time spans, times and days as options."""

from datetime import date

import pytest

from timerstore.errors import ConfigError
from timerstore.spark.jobs import spans


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1ms", 1), ("90s", 90_000), ("1.5h", 5_400_000), ("7d", 604_800_000), (" 2m ", 120_000)],
)
def test_read_span_parses_units(text: str, ms: int) -> None:
    assert spans.read_span_ms("--x", text) == ms


@pytest.mark.parametrize("text", ["", "0s", "0.5ms", "-1s", "5", "5w", "s", "1e3s", "9" * 40 + "d"])
def test_read_span_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ConfigError, match="--x: wanted a span"):
        spans.read_span_ms("--x", text)


def test_read_time_parses_all_forms() -> None:
    assert spans.read_time_ms("--x", "1700000000000") == 1_700_000_000_000
    assert spans.read_time_ms("--x", "2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert spans.read_time_ms("--x", "2023-11-14T17:13:20-05:00") == 1_700_000_000_000
    assert spans.read_time_ms("--x", "now") > 1_700_000_000_000
    assert spans.told_ms(1_700_000_000_001) == "2023-11-14T22:13:20.001+00:00"


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2023-11-14T22:13:20", "-5", "253402300800000", "9" * 30, "9" * 5000,
     "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"],
)  # fmt: skip
def test_read_time_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ConfigError, match="--x: wanted now"):
        spans.read_time_ms("--x", text)


def test_read_day_parses_iso_day() -> None:
    assert spans.read_day("--x", "2026-11-21") == date(2026, 11, 21)
    with pytest.raises(ConfigError, match="--x: wanted a day"):
        spans.read_day("--x", "21.11.2026")
