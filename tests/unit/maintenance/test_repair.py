"""What a repaired store knows that its log does not say, or no longer."""

from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench
from tests.support.retaining import SIZES, begin_of, fill
from timerstore import CancelResult, FullError, Report, StoreConfig
from timerstore._engine.format import watermark
from timerstore._engine.format.handle import decode
from timerstore._engine.storage.disk import File


@pytest.fixture
def bench_config() -> StoreConfig:
    return SIZES


def repair(bench: Bench) -> Report:
    """Repair the store, and go on with the result."""
    bench.close()
    target = bench.root.with_name(f"{bench.root.name}-repaired")
    report = timerstore.repair(bench.root, target)
    assert timerstore.verify_directory(target).clean
    bench.root = target
    bench.open()
    return report


def test_repair_keeps_recurring_definitions(bench: Bench) -> None:
    bench.store.put_every("t", b"again", every=60, name="nightly")
    bench.turn(61_000)
    (before,) = bench.store.recurring()
    assert repair(bench).clean
    assert list(bench.store.recurring()) == [before]
    bench.turn(60_000)
    assert len(bench.bodies()) == before.run_count
    assert bench.store.verify().clean


def test_repair_reports_damaged_recurring_file(bench: Bench) -> None:
    bench.store.put_every("t", b"again", every=60, name="nightly")
    bench.close()
    path = bench.root / "config" / "timerstoreRecurring.json"
    path.write_bytes(path.read_bytes().replace(b"nightly", b"nightlx"))
    target = bench.root.with_name("repaired")
    (problem,) = timerstore.repair(bench.root, target).problems
    assert (problem.what, problem.where) == ("not taken over", str(path))
    bench.root = target
    bench.open()
    assert list(bench.store.recurring()) == []


@pytest.mark.parametrize("is_marked", [True, False])
def test_repair_keeps_ids_and_queue_ends_of_expired_messages(bench: Bench, is_marked: bool) -> None:
    first = bench.store.put("t", b"x", message_id="a")
    timer = bench.store.put("t", b"y", delay=1)
    bench.turn(1000)
    fill(bench, int(bench.store.stats()["log_end_bytes"]))
    begin = begin_of(bench)
    bench.close()
    if not is_marked:  # then the counts file has the ids
        (bench.root / "timerstore" / "watermark").unlink()
    repair(bench)
    assert begin_of(bench) == begin
    again = bench.store.put("t", b"z", message_id="a")
    assert (again.duplicate, again.log_offset) == (True, first.log_offset)
    assert bench.store.put("t", b"z").queue_offset == 2, "offsets go on"
    new = bench.store.put("t", b"z", delay=5)
    assert timer.handle
    assert new.handle
    assert decode(new.handle).timer_id == 1, "ids go on"
    assert bench.store.cancel(timer.handle) is not CancelResult.CANCELLED


def test_repair_keeps_store_id_when_no_record_has_it(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.store.flush()
    before = store_id(bench)
    assert before
    repair(bench)
    assert store_id(bench) == before


def test_repair_ignores_watermark_without_store_id(bench: Bench) -> None:
    """As `repair` left it once."""
    bench.store.put("t", b"x")
    bench.close()
    path = bench.root / "timerstore" / "watermark"
    mark = watermark.read(path.read_bytes())
    assert mark is not None
    path.write_bytes(watermark.write(mark._replace(store_id=0, state_digest=1)))
    bench.open()
    bench.store.flush()
    assert store_id(bench)


def store_id(bench: Bench) -> int:
    mark = watermark.read((bench.root / "timerstore" / "watermark").read_bytes())
    assert mark is not None
    return mark.store_id


def retained(bench: Bench) -> Path:
    """Give the file of ids of one that is closed; of the first of two no record is left."""
    first = bench.store.put("t", b"x", message_id="a")
    bench.store.flush()
    fill(bench, first.log_offset)
    bench.store.put("t", b"x", message_id="b")
    bench.close()
    (path,) = (bench.root / "timerstore").glob("ids-*")
    return path


def test_repair_uses_older_message_ids_when_newest_are_damaged(bench: Bench) -> None:
    path = retained(bench)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    target = bench.root.with_name("repaired")
    (problem,) = timerstore.repair(bench.root, target).problems
    assert (problem.what, problem.where) == ("not taken over: message ids", str(path))
    assert [one.what for one in timerstore.verify_directory(bench.root).problems] == ["message ids"]
    bench.root = target
    bench.open()
    assert bench.store.put("t", b"y", message_id="a").duplicate
    assert bench.store.put("t", b"x", message_id="b").duplicate, "the log tells"


def test_repair_leaves_no_target_when_it_cannot_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained(bench)
    target = bench.root.with_name("repaired")
    whole = File.write
    for name in ("ids-0", "topics.json.tmp", "counts.tmp"):

        def write(self: File, data: bytes | memoryview, offset: int, name: str = name) -> None:
            if self.path.name == name and "repairing" in str(self.path):
                raise FullError("write: no space", where=self.path)
            whole(self, data, offset)

        with monkeypatch.context() as patched:
            patched.setattr(File, "write", write)
            with pytest.raises(FullError, match=name):
                timerstore.repair(bench.root, target)
        assert not target.exists()
    assert timerstore.repair(bench.root, target).clean
