"""Claims of the pages that the code could contradict: limits of rates, remedies of damage."""

from collections import Counter
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, flush_for_ever, small
from tests.support.snippets import GUIDES
from timerstore.api import StoreApi
from timerstore.errors import FailedError
from timerstore.testing import ManualClock, Stepper


def _text(page: str) -> str:
    return " ".join((GUIDES / page).read_text().split())


def test_pace_limits_delayed_messages_only(tmp_path: Path) -> None:
    told = "due at once when they are put, and those of {} levels, are not limited"
    assert told.format("fixed") in _text("features.md")
    assert told.format("delay") in " ".join(str(StoreApi.pace.__doc__).split())
    bench = Bench(tmp_path / "s")
    bench.store.pace("t", 1)
    bench.store.put_many("t", [b"at once"] * 5)
    bench.store.put("t", b"level", level=1)
    bench.store.put_many("t", [b"delayed"] * 5, delay=1.0)
    bench.turn(1000)
    assert Counter(bench.bodies()) == {b"at once": 5, b"level": 1, b"delayed": 1}
    for count in range(2, 6):
        bench.turn(1000)
        assert bench.bodies().count(b"delayed") == count
    bench.close()


@pytest.mark.parametrize("topic", ["t", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
def test_damaged_queue_is_made_again_without_its_folder(tmp_path: Path, topic: str) -> None:
    """The remedy of the page: `verify` names it, and opening does it."""
    root = tmp_path / "s"
    clock = ManualClock(1_700_000_000_000)
    with timerstore.open(root, small(), clock=clock, threads=False) as store:
        for k in range(20):
            store.put("t", b"now %d" % k)
            store.put("t", b"timer %d" % k, delay=60)
            store.put("t", b"level %d" % k, level=5)
        Stepper(store).settle()
    [file] = {path.parent for path in (root / "consumequeue" / topic).rglob("0*") if path.is_file()}
    segment = file / "00000000000000000000"
    data = bytearray(segment.read_bytes())
    data[3 + 20 * 7] ^= 0xFF
    segment.write_bytes(data)
    (problem, *_) = timerstore.verify_directory(root).problems
    assert "remove the queue's folder" in problem.what
    assert "the queue's folder, `consumequeue/TOPIC/QUEUE`" in _text("operations.md")
    for path in file.iterdir():
        path.unlink()
    file.rmdir()
    with timerstore.open(root, small(), clock=clock, threads=False) as store:
        assert store.verify().clean
        assert store.stats()["pending_messages"] == 40
        clock.advance(3_600_000)
        Stepper(store).settle()
        bodies = sorted(message.body for message in store.pull("t", 0, 0, max_count=100).messages)
    assert bodies == sorted(
        b"%s %d" % (kind, k) for kind in (b"now", b"timer", b"level") for k in range(20)
    )


def test_damaged_pending_message_stops_the_store_until_repair(tmp_path: Path) -> None:
    """The steps that the page on operations tells an operator."""
    assert "**One damaged byte in the commit log.**" in _text("operations.md")
    root, clock = tmp_path / "s", ManualClock(1_700_000_000_000)
    with timerstore.open(root, small(), clock=clock, threads=False) as store:
        store.put_many("t", [b"body-%02d" % k for k in range(20)], delay=60)
        store.put("other", b"x", delay=120)
    [log] = [path for path in (root / "commitlog").iterdir() if path.stat().st_size]
    data = bytearray(log.read_bytes())
    data[data.index(b"body-07")] ^= 1
    log.write_bytes(data)
    clock.advance(120_000)
    for _ in range(2):  # also at the next opening
        with timerstore.open(root, small(), clock=clock) as store:  # reads the last records only
            with pytest.raises(FailedError, match="CRC does not match"):
                flush_for_ever(store)
            with pytest.raises(FailedError):
                store.put("other", b"y")
            assert all(m.body < b"body-07" for m in store.pull("t", 0, 0).messages)
    report = timerstore.verify_directory(root)
    assert any("commitlog" in problem.where for problem in report.problems)
    timerstore.repair(root, tmp_path / "new")
    with timerstore.open(tmp_path / "new", small(), clock=clock, threads=False) as store:
        Stepper(store).settle()
        found = [m.body for m in store.pull("t", 0, 0, max_count=100).messages]
        assert found == [b"body-%02d" % k for k in range(20) if k != 7]
        assert [m.body for m in store.pull("other", 0, 0).messages] == [b"x"]
