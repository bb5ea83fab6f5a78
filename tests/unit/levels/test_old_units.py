"""Due times of level messages that existed when the store was opened: each from its own record.

The units of the queue are compared with their records in pieces, one for each file of the log.
"""

from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.retaining import KIB
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC

COUNT, STEP_MS, LEVEL_MS = 40, 7, 1000


def _damage_units(root: Path) -> None:
    """Change the due time of each unit to a later one, which only its record can correct."""
    for path in (root / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir():
        raw = bytearray(path.read_bytes())
        for at in range(0, len(raw), UNIT_BYTES):
            if int.from_bytes(raw[at + 8 : at + 12]):  # the size of the record
                due_ms = int.from_bytes(raw[at + 12 : at + 20])
                raw[at + 12 : at + 20] = (due_ms + 3_600_000).to_bytes(8)
        path.write_bytes(raw)


@pytest.mark.parametrize("is_delivered", [False, True])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_each_level_message_has_the_due_time_of_its_own_record_after_reopening(
    tmp_path: Path, is_delivered: bool, is_damaged: bool
) -> None:
    config = small(commit_log_segment_bytes=16 * KIB, queue_segment_bytes=200)
    bench = Bench(tmp_path / "s", config)
    due_ms = []
    for number in range(COUNT):
        bench.store.put("t", b"%d" % number + bytes(1200), level=1)
        due_ms.append(bench.clock.now_ms + LEVEL_MS)
        bench.turn(STEP_MS)
    bench.close()
    if is_damaged:
        _damage_units(bench.root)
    bench.open()
    assert len(list((bench.root / "commitlog").iterdir())) > 3
    if not is_delivered:
        assert [one.due_ms for one in bench.store.pending()] == due_ms
    else:
        for number, one in enumerate(due_ms):
            bench.turn(one - 1 - bench.clock.now_ms)
            assert len(bench.bodies()) == number
            bench.turn(1)
            assert len(bench.bodies()) == number + 1
    bench.close()
