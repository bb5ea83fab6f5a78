"""Another operation runs between planning and placing a copy that retention moves."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import DAY, Bench
from tests.support.inside import inside
from tests.support.placing_races import (
    at_failpoint,
    before_space,
    cancelling,
    full,
    recounted,
)
from tests.support.retaining import SIZES, begin_of
from timerstore import (
    FullError,
)


@pytest.fixture
def retaining(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "retaining", SIZES)
    yield bench
    bench.close()


def _filled(bench: Bench) -> None:
    begin = begin_of(bench)
    for _ in range(100):
        if begin_of(bench) > begin:
            return
        for _ in range(13):
            bench.store.put("other", bytes(1200))
        bench.turn()
    raise AssertionError("nothing was dropped")


@pytest.mark.parametrize("chosen", [(0,), (1, 3), (0, 1, 2, 3, 4)])
def test_move_is_cancelled_before_it_is_placed(retaining: Bench, chosen: tuple[int, ...]) -> None:
    receipts = [retaining.store.put("t", b"%d" % k, delay=100) for k in range(5)]
    retaining.turn()
    cancelled_at = [0]

    def cancel() -> None:
        cancelling(retaining, *(receipts[k] for k in chosen))()
        cancelled_at[0] = retaining.store.stats()["log_end_bytes"]
        for _ in range(14):  # the copies are in another file than the delete records
            retaining.store.put("other", bytes(1200))

    with at_failpoint("retention_move_encoded", cancel):
        _filled(retaining)
    assert recounted(retaining) == 5 - len(chosen)
    # The log alone must lead to the same result after the delete records are removed.
    while begin_of(retaining) < cancelled_at[0]:
        _filled(retaining)
    retaining.close()
    shutil.rmtree(retaining.root / "timerstore")
    retaining.open()
    assert recounted(retaining) == 5 - len(chosen)
    retaining.turn(DAY)
    assert sorted(retaining.bodies()) == [b"%d" % k for k in range(5) if k not in chosen]
    assert inside(retaining.store).open_slot.outstanding().tolist() == []


def test_move_is_rescheduled_before_it_is_placed(retaining: Bench) -> None:
    receipts = [retaining.store.put("t", b"%d" % k, delay=100) for k in range(5)]
    retaining.turn()
    with at_failpoint(
        "retention_move_encoded", lambda: retaining.store.reschedule(receipts[2], delay=50)
    ):
        _filled(retaining)
    assert recounted(retaining) == 5
    retaining.turn(DAY)
    assert sorted(retaining.bodies()) == [b"%d" % k for k in range(5)]


@pytest.mark.parametrize("times", [1, 2])
def test_move_is_placed_after_disk_was_full_repeatedly(retaining: Bench, times: int) -> None:
    for k in range(5):
        retaining.store.put("t", b"%d" % k, delay=100)
    retaining.turn()
    log = inside(retaining.store).log

    def without_room() -> None:
        log.native.append_limit = 0

    with (
        before_space(retaining, "retention", *[full] * times),
        at_failpoint("retention_move_encoded", without_room, always=True),
    ):
        for _ in range(times):
            with pytest.raises(FullError):
                _filled(retaining)
            assert recounted(retaining) == 5
    _filled(retaining)
    assert recounted(retaining) == 5
    retaining.turn(DAY)
    assert sorted(retaining.bodies()) == [b"%d" % k for k in range(5)]
