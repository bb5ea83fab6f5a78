"""SLO conditions of an audit: parsing, comparing, and complete lists of mistakes."""

import pytest

from timerstore.errors import ConfigError
from timerstore.spark.jobs import slo

FIGURES: dict[str, float | None] = {
    "lost": 0,
    "duplicated": 3,
    "early": 0,
    "phantom": 0,
    "crc_mismatch": 0,
    "uncancelled": 0,
    "scheduled": 10,
    "delivered": 10,
    "lateness_p50_ms": 0.0,
    "lateness_p99_ms": 999.5,
    "lateness_p99_9_ms": 1000.0,
    "lateness_max_ms": None,
}


def wrong(text: str) -> list[str]:
    return slo.problems_of(slo.parse(text), FIGURES)


@pytest.mark.parametrize(
    "text",
    [
        "lost=0", "lost==0", " LOST = 0 , early=0", "dup=3", "duplicated<=3", "dup<4", "dup>2",
        "dup>=3", "p99<1000ms", "p99<1s", "p99<1000", "p99.9<=1s", "p99.9<0.1m", "p50=0",
        "max<1ms", "scheduled>=10", "crc=0", "phantom=0", slo.DEFAULT.replace("dup=0", "dup=3"),
    ],
)  # fmt: skip
def test_satisfied_condition_reports_nothing(text: str) -> None:
    assert wrong(text) == []


@pytest.mark.parametrize(
    "text",
    ["lost>0", "dup=0", "dup<3", "dup>3", "p99<999ms", "p99.9<1s", "p99>1s", "scheduled<10"],
)
def test_violated_condition_is_reported(text: str) -> None:
    (said,) = wrong(text)
    assert text in said
    assert "got" in said


def test_all_violated_conditions_are_reported() -> None:
    assert len(wrong("lost=1,dup=0,p99<1ms,early=0")) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "wanted a name"),
        ("lost", "wanted a name"),
        ("lost=", "wanted a name"),
        ("lost=0,,dup=0", "wanted a name"),
        ("gone=0", "'gone'"),
        ("lost!=0", "wanted a name"),
        ("lost=0ms", "wanted a count"),
        ("p99<1000us", "'us'"),
        ("p99<1.2.3s", "'1.2.3'"),
        ("p99<.", "'.'"),
        ("lost=-1", "wanted a name"),
    ],
)
def test_invalid_condition_is_rejected(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="slo: ") as error:
        slo.parse(text)
    assert said in str(error.value)


def test_parse_lists_all_invalid_conditions() -> None:
    with pytest.raises(ConfigError) as error:
        slo.parse("gone=0,lost=0,p99<5parsecs")
    assert len(error.value.problems) == 2
