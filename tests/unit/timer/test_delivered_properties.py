"""The option `delivered_properties`: which properties a delivered message keeps."""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, SECOND, Bench, small
from timerstore import ConfigError, Message

LEFT_OUT = {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "REAL_TOPIC", "REAL_QID"}
LONG = "x" * 32_000  # too long for the copy in one piece


def _delivered(tmp_path: Path, setting: str, **put: Any) -> Message:
    bench = Bench(tmp_path / setting, small(delivered_properties=setting))
    bench.store.put("t", b"body", **put)
    bench.turn(5 * SECOND)
    bench.turn()
    [one] = bench.out()
    bench.close()
    return one


@pytest.mark.parametrize(
    "put",
    [
        {"delay": 2},
        {"delay": 2, "tags": "a", "keys": "k", "properties": {"REAL_TOPIC2": "x", "p": "1"}},
        {"delay": 2, "message_id": "id-1"},
        {"delay": 2, "properties": {"p": LONG}},
        {"level": 1},
    ],
    ids=["plain", "all fields", "id", "long", "level"],
)
def test_needed_leaves_out_four_properties_and_nothing_else(
    tmp_path: Path, put: dict[str, Any]
) -> None:
    every = _delivered(tmp_path, "all", **put)
    needed = _delivered(tmp_path, "needed", **put)
    apart = {"UNIQ_KEY", "TS_ID", "__CRC32#", "TS_LEVEL"}  # differ between two stores

    def kept(one: Message) -> dict[str, str]:
        return {k: v for k, v in one.properties.items() if k not in LEFT_OUT | apart}

    assert kept(needed) == kept(every)
    assert needed.properties.keys() == every.properties.keys() - LEFT_OUT
    assert (needed.body, needed.due_ms, needed.tags) == (every.body, every.due_ms, every.tags)
    assert needed.delivered_ms >= needed.due_ms


def test_needed_saves_86_bytes_for_a_topic_of_one_character(tmp_path: Path) -> None:
    every, needed = (_delivered(tmp_path, one, delay=2) for one in ("all", "needed"))
    assert every.store_bytes - needed.store_bytes == 86


def test_message_that_rolls_is_delivered_once_with_needed(tmp_path: Path) -> None:
    config = small(delivered_properties="needed", roll_window_slots=20, delay_ms_max=DAY)
    bench = Bench(tmp_path / "s", config)
    bench.store.put("t", b"rolls", delay=100)
    for _ in range(30):
        bench.turn(5 * SECOND)
        bench.reopen()
    assert bench.bodies() == [b"rolls"]
    bench.close()


@pytest.mark.parametrize("change", [("all", "needed"), ("needed", "all")], ids="-".join)
def test_option_can_change_between_openings(tmp_path: Path, change: tuple[str, str]) -> None:
    bench = Bench(tmp_path / "s", small(delivered_properties=change[0]))
    for k in range(20):
        bench.store.put("t", b"%d" % k, delay=k + 1)
    bench.turn(10 * SECOND)
    bench.close()
    (bench.root / "timerstore/watermark").unlink()  # everything is read from the log again
    bench.config = small(delivered_properties=change[1])
    bench.open()
    bench.turn(20 * SECOND)
    assert bench.bodies() == [b"%d" % k for k in range(20)]
    is_short = [LEFT_OUT.isdisjoint(one.properties) for one in bench.out()]
    assert is_short[0] == (change[0] == "needed")
    assert is_short[-1] == (change[1] == "needed")
    bench.close()


def test_other_value_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="delivered_properties"):
        timerstore.open(tmp_path / "s", small(delivered_properties="few"))
