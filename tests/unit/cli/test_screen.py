"""The statistics and the screen of `top`, without a terminal."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.support.inside import late_by_bound, without_delivered
from timerstore._engine.base.metrics import LATE_MS
from timerstore._engine.snapshot.live_stats import Lateness, LiveStats
from timerstore.cli.screen import TURNS, Spark, choose_turn, make_screen
from timerstore.cli.wheel_ring import draw

NOW = 1_700_000_030_500


class FakeSummary:
    """The fields of a StoreSummary that the screen uses."""

    def __init__(self, holder: int | None = 7, counts: object = None) -> None:
        self.holder = holder
        self.counts = counts


def live_stats(due: list[int], counts: list[int], *, holder: int | None = 7) -> LiveStats:
    """Return statistics of slots that are due at these offsets from now, in ms."""
    return LiveStats(
        now_ms=NOW,
        looks=(FakeSummary(holder),),  # type: ignore[arg-type]
        due_ms=NOW + np.array(due, np.int64),
        counts=np.array(counts, np.int64),
        precision_ms=1000,
        pending=sum(counts),
        by_topic={f"topic {k}": (k, 10 * k, float(k)) for k in range(30)},
        put_per_s=1.0,
        arrived_per_s=2.0,
        log_per_s=3.0,
        lateness=Lateness(3, 1.0, 2.0, 3.0),
        history=(0.0, 5.0, 10.0),
    )


def test_by_time_counts_each_slot_once() -> None:
    found = live_stats([-9000, -500, 0, 999, 1000, 9999, 10_000, 86_400_000, 604_800_000], [1] * 9)
    rows = dict(found.by_time())
    assert sum(rows.values()) == 9
    assert rows["not on it"] == 0
    assert rows["late"] == 1
    assert rows["1 s"] == 3
    assert rows["10 s"] == 2
    assert rows["1 min"] == 1
    assert rows["later"] == 2
    assert dict(replace(found, pending=12).by_time())["not on it"] == 3
    assert dict(replace(found, pending=None).by_time())["not on it"] == 0


@pytest.mark.parametrize(("holder", "late"), [(7, 1), (None, 2)])
def test_late_allows_an_open_store_one_checkpoint_interval(holder: int | None, late: int) -> None:
    assert live_stats([-4000, -1500, -500], [1, 1, 1], holder=holder).late == late


def test_ring_covers_one_turn_from_now() -> None:
    found = live_stats([-1000, 0, 29_000, 59_000, 60_000], [9, 1, 2, 3, 9])
    ring = found.ring(1000, 60)
    now = NOW // 1000 % 60
    assert ring.sum() == 6
    assert (ring[now], ring[(now + 29) % 60], ring[(now + 59) % 60]) == (1, 2, 3)


def test_ahead_starts_with_the_current_time() -> None:
    found = live_stats([-1000, 0, 29_000, 59_000, 60_000], [9, 1, 2, 3, 9]).ahead(1000, 60)
    assert found.sum() == 6
    assert (found[0], found[29], found[59]) == (1, 2, 3)


def test_lateness_counts_each_delivery_at_its_bound() -> None:
    assert late_by_bound([]) == (0,) * (len(LATE_MS) + 1)
    late = [np.array([0, 1, 2, 3]), np.array([LATE_MS[-1], LATE_MS[-1] + 1, -5])]
    counts = dict(zip((*LATE_MS, None), late_by_bound(late), strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {
        1: 3,
        2: 1,
        5: 1,
        LATE_MS[-1]: 1,
        None: 1,
    }


def test_delivered_messages_are_subtracted_from_the_first_slots() -> None:
    class Counts:
        pending = {"a": {0: 4}, "b": {0: 2, 1: 1}}  # noqa: RUF012

    left = without_delivered(np.array([5, 4, 3]), FakeSummary(counts=Counts()))  # type: ignore[arg-type]
    assert left.tolist() == [0, 4, 3]
    nothing = without_delivered(np.array([1, 2]), FakeSummary(counts=Counts()))  # type: ignore[arg-type]
    assert nothing.tolist() == [1, 2]
    assert without_delivered(np.array([5]), FakeSummary()).tolist() == [5]  # type: ignore[arg-type]


def test_choose_turn_returns_the_shortest_turn_with_messages() -> None:
    assert choose_turn(live_stats([5000], [1])) is TURNS["s"]
    assert choose_turn(live_stats([120_000], [1])) is TURNS["m"]
    assert choose_turn(live_stats([7_200_000], [1])) is TURNS["h"]
    assert choose_turn(live_stats([], [])) is TURNS["s"]


def test_ring_has_one_hand_and_the_text_inside() -> None:
    text = draw([0] * 59 + [5], 15, ["middle", "two"], width=39, height=19).plain
    lines = text.split("\n")
    assert len(lines) == 19
    assert {len(line) for line in lines} == {39}
    assert text.count("◆") == 1
    assert lines[9].rstrip().endswith("◆"), "position 15 is at the right"
    assert text.count("●") == 1
    assert "middle" in lines[8]
    assert lines[0].count("·") >= 5


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_screen_fills_the_terminal(width: int, height: int) -> None:
    console = Console(width=width, height=height, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(
            make_screen(live_stats([5000], [1]), "a\x1b[2Jb" * 20, None, height=height),
            height=height,
        )
        lines = console.export_text().splitlines()
    assert len(lines) == height
    assert all(len(line) == width for line in lines[1:-1])
    assert not any("\x1b" in line for line in lines)
    assert "topic 29" in "\n".join(lines), "the busiest topics are not first"
    assert ("more" in "\n".join(lines)) == (height == 24)


def test_spark_chart_is_two_rows_high() -> None:
    class Options:
        max_width = 5

    upper, lower = Spark([0.0, 4.0, 8.0]).__rich_console__(None, Options())  # type: ignore[arg-type]
    assert (upper.plain, lower.plain) == ("    █", "   ██")
