"""Test wheels with slots that no chain can match: this is damage, however many units they claim."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.bench import NOW, SECOND, Bench
from tests.support.inside import failpoints, inside
from timerstore._engine.format import wheel_slot
from timerstore._engine.maintenance.verify import verify_directory

COUNT = 8


def opens_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the damage is detected, and that all derived files are rebuilt from the log."""
    points: list[str] = []
    monkeypatch.setattr(failpoints, "hook", points.append)
    bench.open()
    assert "recover_rebuild_begun" in points
    monkeypatch.undo()


def all_comes(bench: Bench) -> None:
    assert len(list(bench.store.pending())) == COUNT
    bench.turn(50 * SECOND)
    assert len(bench.bodies()) == COUNT
    bench.close()


@pytest.mark.parametrize(
    ("first", "last", "count"),
    [
        (0, 1 << 40, 1000),  # past the end of the timer log
        (-5, -5, 1000),
        (104, 52, 1000),
        (0, 52, 1000),  # more units than fit between the two offsets
        (0, 7 * 52, 9),
    ],
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_impossible_slots_are_not_counted_as_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int, count: int,
    is_killed: bool,
) -> None:  # fmt: skip
    bench = Bench(tmp_path / "store")
    for n in range(COUNT):
        bench.store.put("t", b"%d" % n, deliver_ms=NOW + 50 * SECOND)
    bench.turn()
    inside(bench.store).checkpoint.run(is_clean=False)
    path = bench.root / "timerwheel"
    killed = path.read_bytes()
    bench.close()
    slots = wheel_slot.read(killed if is_killed else path.read_bytes()).copy()
    at = int(np.flatnonzero(slots["count"])[0])
    other = (at + 3) % len(slots)
    slots[other] = slots[at]
    slots[other]["time"] += 3
    slots[other]["first_pos"], slots[other]["last_pos"] = first, last
    slots[other]["count"] = count
    slots[at] = 0
    path.write_bytes(slots.tobytes())
    opens_anew(bench, monkeypatch)
    all_comes(bench)


def test_older_state_of_the_wheel_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of units equals that of pending messages.

    Only the count at closing reveals the damage.
    """
    bench = Bench(tmp_path / "store")
    first = bench.store.put("t", b"first", deliver_ms=NOW + 20 * SECOND)
    bench.turn()
    bench.close()
    path = bench.root / "timerwheel"
    stale = path.read_bytes()
    bench.open()
    bench.store.cancel(first)
    bench.store.put("t", b"second", deliver_ms=NOW + 50 * SECOND)
    bench.turn()
    bench.close()
    assert path.stat().st_size == len(stale)
    assert verify_directory(bench.root).clean
    path.write_bytes(stale)
    (found,) = verify_directory(bench.root).problems
    assert found.what.startswith("the wheel (derived")
    opens_anew(bench, monkeypatch)
    bench.turn(50 * SECOND)
    assert bench.bodies() == [b"second"]
    bench.close()


@pytest.mark.parametrize("bit", [61, 62])
def test_slot_with_a_time_past_all_messages_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bit: int
) -> None:
    """The time fits the place of the slot, but no reader would look for it there."""
    bench = Bench(tmp_path / "store")
    for n in range(COUNT):
        bench.store.put("t", b"%d" % n, deliver_ms=NOW + 50 * SECOND)
    bench.turn()
    path = bench.root / "timerwheel"
    bench.close()
    slots = wheel_slot.read(path.read_bytes()).copy()
    assert (1 << bit) % len(slots) == 0  # the time fits the place of the slot
    at = int(np.flatnonzero(slots["count"])[0])
    slots[at]["time"] += 1 << bit
    path.write_bytes(slots.tobytes())
    opens_anew(bench, monkeypatch)
    all_comes(bench)
