"""Progress is recorded in the critical section that places its record.

Otherwise a checkpoint between the two would count the record as included.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from timerstore._engine.base.native import lib
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.read.consumer_offsets import LeaseProgress
from timerstore._engine.recurring import Definitions


@pytest.fixture
def lock_states(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each recorded progress: whether the append lock was held."""
    found: list[bool] = []
    logs: list[CommitLog] = []
    make = CommitLog.__init__

    def init(self: CommitLog, *arguments: Any) -> None:
        make(self, *arguments)
        logs.append(self)

    def watch(cls: type, name: str) -> None:
        original = getattr(cls, name)

        def note(self: Any, *arguments: Any) -> Any:
            found.append(logs[-1].lock.locked())
            return original(self, *arguments)

        monkeypatch.setattr(cls, name, note)

    monkeypatch.setattr(CommitLog, "__init__", init)
    watch(LeaseProgress, "record")
    watch(Definitions, "record_runs")
    return found


def test_lease_progress_is_recorded_under_the_append_lock(
    tmp_path: Path, lock_states: list[bool]
) -> None:
    bench = Bench(tmp_path)
    for n in range(3):
        bench.store.put("t", b"%d" % n)
    bench.turn()
    assert len(bench.store.receive("t", "g", max_count=2, lease=60)) == 2
    assert lock_states
    assert all(lock_states)
    bench.close()


def test_recurring_progress_is_recorded_under_the_append_lock(
    tmp_path: Path, lock_states: list[bool]
) -> None:
    bench = Bench(tmp_path)
    bench.store.put_every("t", b"again", every=5)
    lock_states.clear()
    for _ in range(5):
        bench.turn(5_000)
    assert lock_states
    assert all(lock_states)
    bench.close()


def test_put_many_leaves_the_critical_section_only_for_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    def held(*arguments: Any) -> int:
        status = int(lib.ts_put_many_locking(*arguments))
        ended.append(arguments[-2][0])
        return status

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return held if name == "ts_put_many_locking" else getattr(lib, name)

    monkeypatch.setattr("timerstore._engine.write.append.lib", Watched())
    bench = Bench(tmp_path / "store")
    bodies = [b"%d" % n for n in range(3_000)]
    bench.store.put_many("t", bodies)
    bench.turn()
    assert bench.bodies() == bodies
    assert ended[-1] == lib.TS_OK
    assert set(ended[:-1]) == {lib.TS_NEED_SPACE}  # no call was made only to learn the status
    bench.close()
