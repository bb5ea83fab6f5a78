"""What is noted of records is noted in the hold of the append lock that places them: no checkpoint
comes between, which would count them as noted.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from timerstore._engine.base.native import lib
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.read.lease_progress import LeaseProgress
from timerstore._engine.recurring import Definitions


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the append lock was held, at each note."""
    found: list[bool] = []
    logs: list[CommitLog] = []
    make = CommitLog.__init__

    def init(self: CommitLog, *given: Any) -> None:
        make(self, *given)
        logs.append(self)

    def watch(cls: type, name: str) -> None:
        original = getattr(cls, name)

        def note(self: Any, *given: Any) -> Any:
            found.append(logs[-1].lock.locked())
            return original(self, *given)

        monkeypatch.setattr(cls, name, note)

    monkeypatch.setattr(CommitLog, "__init__", init)
    watch(LeaseProgress, "note")
    watch(Definitions, "record_runs")
    return found


def test_how_far_leases_are(tmp_path: Path, holds: list[bool]) -> None:
    bench = Bench(tmp_path)
    for n in range(3):
        bench.store.put("t", b"%d" % n)
    bench.turn()
    assert len(bench.store.receive("t", "g", max_count=2, lease=60)) == 2
    assert holds
    assert all(holds)
    bench.close()


def test_how_far_recurring_ones_are(tmp_path: Path, holds: list[bool]) -> None:
    bench = Bench(tmp_path)
    bench.store.put_every("t", b"again", every=5)
    holds.clear()
    for _ in range(5):
        bench.turn(5_000)
    assert holds
    assert all(holds)
    bench.close()


def test_a_call_ends_for_want_of_room_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    def held(*arguments: Any) -> int:
        got = int(lib.ts_put_many_held(*arguments))
        ended.append(arguments[-2][0])
        return got

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return held if name == "ts_put_many_held" else getattr(lib, name)

    monkeypatch.setattr("timerstore._engine.write.append.lib", Watched())
    bench = Bench(tmp_path / "store")
    bodies = [b"%d" % n for n in range(3_000)]
    bench.store.put_many("t", bodies)
    bench.turn()
    assert bench.bodies() == bodies
    assert ended[-1] == lib.TS_OK
    assert set(ended[:-1]) == {lib.TS_NEED_ROOM}  # and never one call to learn of it
    bench.close()
