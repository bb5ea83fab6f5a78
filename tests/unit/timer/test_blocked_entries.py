"""A message that found no slot waits in the open slot, and is released once its slot was begun.

dequeue-get wakes by itself for that, even if no message is put.
"""

from pathlib import Path

import pytest

from tests.support.bench import NOW, SECOND, Bench, small

LAPS = 10_000 * 128 * SECOND


@pytest.mark.parametrize("delay_s", [3, 14])
def test_blocked_message_is_on_time_after_clock_was_laps_ahead(
    tmp_path: Path, delay_s: int
) -> None:
    bench = Bench(tmp_path / "store", small(wheel_slot_count=128, far_wheel="own"))
    reading = bench.store.services()["dequeue_get"]
    assert reading.idle_s() is None
    bench.clock.set(NOW + LAPS)
    for second in range(1, 129):  # every slot is in use
        bench.store.put("old", b"", delay=second)
    bench.turn()
    bench.clock.set(NOW)
    bench.store.put("far", b"", delay=400)
    bench.store.put("t", b"y", delay=delay_s)
    bench.turn()
    idle_s = reading.idle_s()
    assert idle_s is not None
    assert idle_s <= delay_s, "it sleeps too long"
    bench.turn(delay_s * SECOND - 1)
    assert not bench.bodies("t")
    bench.turn(1)
    assert bench.bodies("t") == [b"y"]
    bench.close()
