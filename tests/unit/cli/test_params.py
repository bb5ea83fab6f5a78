"""Parsing and formatting of spans, times and settings."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore._engine.recurring.definition import CronRule
from timerstore.cli.params import DUE, INSTANT, PAIR, SETTING, SPAN, ms_of
from timerstore.cli.stopping import Stop
from timerstore.cli.text import (
    body_fields,
    body_of,
    exact_span_text,
    iso,
    safe,
    size_text,
    span_text,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("250ms", 250),
        ("90s", 90_000),
        ("1.5h", 5_400_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        (" 2D ", 172_800_000),
        ("1w", 604_800_000),
        ("1d1h1m1s1ms", 90_061_001),
    ],
)
def test_span_parses_units(text: str, ms: int) -> None:
    assert SPAN.convert(text, None, None) == timedelta(milliseconds=ms)


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "5 x", "5s!", "1e3s", "five", "99999999999w"]
)
def test_span_rejects_invalid_text(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SPAN.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000001", 1_700_000_000_001),
        ("2026-12-24T18:00+01:00", 1_798_131_600_000),
        ("2026-12-24T17:00:00.001Z", 1_798_131_600_001),
        ("2026-12-24T17:00:00.000001Z", 1_798_131_600_001),  # never early
    ],
)
def test_instant_parses_epoch_ms_and_iso_times(text: str, ms: int) -> None:
    assert ms_of(INSTANT.convert(text, None, None)) == ms


def test_instant_without_a_zone_is_in_the_local_zone() -> None:
    found = INSTANT.convert("2026-12-24 18:00", None, None)
    assert found.tzinfo is not None
    assert found.replace(tzinfo=None) == datetime(2026, 12, 24, 18)  # noqa: DTZ001
    assert abs((INSTANT.convert("now", None, None) - datetime.now(UTC)).total_seconds()) < 60


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "text", "utc"),
    [
        ("Europe/Berlin", "2027-03-28 01:59:59.999", "2027-03-28T00:59:59.999"),
        ("Europe/Berlin", "2027-03-28 02:00", "2027-03-28T01:00"),
        ("Europe/Berlin", "2027-03-28 02:30", "2027-03-28T01:00"),
        ("Europe/Berlin", "2027-03-28 02:59:59.999999", "2027-03-28T01:00"),
        ("Europe/Berlin", "2027-03-28 03:00", "2027-03-28T01:00"),
        ("Europe/Berlin", "2027-03-28 03:00:00.5", "2027-03-28T01:00:00.5"),
        ("Europe/Berlin", "2026-10-25 02:30", "2026-10-25T00:30"),  # the first of two instants
        ("Europe/Berlin", "2026-10-25 03:00", "2026-10-25T02:00"),
        ("America/New_York", "2027-03-14 02:15", "2027-03-14T07:00"),
        ("America/New_York", "2027-11-07 01:15", "2027-11-07T05:15"),
        (
            "Australia/Lord_Howe",
            "2026-10-04 02:10",
            "2026-10-03T15:30",
        ),  # clocks change by half an hour
        ("America/Santiago", "2026-09-06 00:30", "2026-09-06T04:00"),  # at midnight
        ("Pacific/Apia", "2011-12-30 12:00", "2011-12-30T10:00"),  # a day that the zone skipped
        ("UTC", "2027-03-28 02:30", "2027-03-28T02:30"),
    ],
)
def test_local_time_is_the_first_or_the_end_of_a_gap_when_clocks_change(
    zone: Callable[[str], None], name: str, text: str, utc: str
) -> None:
    zone(name)
    assert INSTANT.convert(text, None, None) == datetime.fromisoformat(utc).replace(tzinfo=UTC)


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_local_time_in_a_gap_agrees_with_cron(zone: Callable[[str], None], name: str) -> None:
    zone(name)
    place = ZoneInfo(name)
    for day in range(1, 366):
        wall = datetime(2026, 1, 1, 2, 15) + timedelta(days=day)  # noqa: DTZ001 - a local time
        noon = (wall - timedelta(hours=14)).replace(tzinfo=place)
        run = CronRule("15 2 * * *", name).after(int(noon.timestamp() * 1000))
        assert ms_of(INSTANT.convert(wall.isoformat(), None, None)) == run, wall


@pytest.mark.parametrize("text", ["", "noon", "2026-13-01", "-5", "1.5", "9" * 30, "\u0665"])
def test_instant_rejects_invalid_text(text: str) -> None:
    with pytest.raises(click.BadParameter):
        INSTANT.convert(text, None, None)


@given(st.datetimes(timezones=st.just(UTC)))
def test_ms_of_rounds_up_to_a_millisecond(moment: datetime) -> None:
    ms = ms_of(moment)
    assert ms is not None
    microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert (ms - 1) * 1000 < microseconds <= ms * 1000


def test_due_time_in_seconds_is_rejected_with_a_hint() -> None:
    for text in ("1790003600", "1", "946684799999"):
        with pytest.raises(click.BadParameter, match=f"give {text}000"):
            DUE.convert(text, None, None)
    assert ms_of(DUE.convert("0", None, None)) == 0
    assert ms_of(DUE.convert("946684800000", None, None)) == 946_684_800_000


def test_setting_parses_values_by_the_type_of_the_field() -> None:
    assert SETTING.convert("precision_ms=1_00", None, None) == ("precision_ms", 100)
    assert SETTING.convert("index_enabled=off", None, None) == ("index_enabled", False)
    assert SETTING.convert("flush=async", None, None) == ("flush", "async")
    assert PAIR.convert("a=b=c", None, None) == ("a", "b=c")
    for text in (
        "precision_ms",
        "precision_ms=",
        "precision_ms=1.5",
        "precision_ms=" + "9" * 5000,
        "flush",
        "index_enabled=2",
        "nothing=1",
    ):
        with pytest.raises(click.BadParameter):
            SETTING.convert(text, None, None)
    for text in ("a", "=b", ""):
        with pytest.raises(click.BadParameter):
            PAIR.convert(text, None, None)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (59_999, "60s"),
        (60_000, "1m"),
        (90_000, "1m 30s"),
        (5_399_900, "1h 30m"),
        (3_600_000, "1h"),
        (86_400_000, "1d"),
        (90_000_000, "1d 1h"),
        (400 * 86_400_000, "400d"),
    ],
)
def test_span_text_has_two_units(ms: int, text: str) -> None:
    assert span_text(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (1000, "1s"),
        (90_000, "1m 30s"),
        (3_599_999, "59m 59s 999ms"),
        (5_430_000, "1h 30m 30s"),
        (8 * 86_400_000 + 1, "8d 1ms"),
    ],
)
def test_exact_span_text_has_all_units(ms: int, text: str) -> None:
    assert exact_span_text(ms) == text


def test_stop_waits_for_longer_than_the_system_limit() -> None:
    stop = Stop()
    ends = threading.Timer(0.05, stop.finish)
    ends.start()
    assert stop.wait(900_000 * 86_400.0)
    ends.join()


def test_size_text_and_iso_format_their_bounds() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1 << 30)] == ["0 B", "1023 B", "1 KiB", "1 GiB"]
    assert iso(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert iso(None) is None
    assert iso(1 << 60) is None


@given(st.binary(max_size=50))
def test_body_is_restored_from_json(body: bytes) -> None:
    assert body_of(body_fields(body)) == body


@given(st.text())
def test_safe_text_has_no_control_characters(text: str) -> None:
    assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for one in safe(text))
