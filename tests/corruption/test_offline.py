"""Test verify_directory and repair.

Every damaged range is named, and the source is not changed. Intact messages are saved with their
offsets, and each is delivered once.
"""

import shutil
from pathlib import Path
from random import Random

import pytest

import timerstore
from tests.corruption import damages
from tests.corruption.golden import CONFIG, NOW_MS, Golden, make
from tests.support.inside import Disk
from tests.support.inside.parts import find_in_segment
from timerstore import (
    ConfigError,
    CorruptError,
    LockedError,
    Message,
    Report,
    repair,
    verify_directory,
)
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.guarded_map import GuardedMap
from timerstore.cli import main
from timerstore.testing import ManualClock, Stepper

LOG = ("commitlog/00000000000000000000", "commitlog/00000000000000008192")
_LATER_MS = 2_000_000


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make(tmp_path_factory.mktemp("golden") / "store", is_closed=True)


@pytest.fixture
def root(golden: Golden, tmp_path: Path) -> Path:
    golden.write(tmp_path / "store")
    return tmp_path / "store"


def _files(root: Path) -> dict[str, tuple[bytes, int]]:
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}


def _records(root: Path) -> list[tuple[int, int]]:
    """Return (log offset, size) of each record, by adding up sizes until the blank or the end."""
    found = []
    for name in LOG:
        data = (root / name).read_bytes()
        at = 0
        while data[at + 4 : at + 8] == bytes.fromhex("daa320a7"):
            size = int.from_bytes(data[at : at + 4], "big")
            found.append((int(name[-20:]) + at, size))
            at += size
    return found


def _damaged(report: Report) -> list[str]:
    return [one.where for one in report.problems if one.what == "damaged bytes"]


def _spoil(root: Path, offset: int) -> None:
    number = offset // 8192
    path = root / LOG[number]
    data = bytearray(path.read_bytes())
    data[offset - 8192 * number] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("is_closed", [True, False])
def test_verify_directory_reports_no_damage_and_changes_nothing(
    is_closed: bool, tmp_path: Path
) -> None:
    make(tmp_path / "made", is_closed=is_closed).write(tmp_path / "store")
    before = _files(tmp_path / "store")
    report = verify_directory(tmp_path / "store", CONFIG)
    assert report.clean, report
    assert report.counts["records"] == len(_records(tmp_path / "store"))
    assert report.counts["queue units"] > 30
    assert _files(tmp_path / "store") == before


def test_verify_directory_reads_a_live_store(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with timerstore.open(tmp_path / "s", CONFIG, clock=clock, threads=False) as store:
        store.put("orders", b"one", delay=5.0)
        store.flush()
        assert verify_directory(tmp_path / "s").clean
        store.put("orders", b"two")


def test_verify_directory_names_each_damaged_record_exactly(root: Path, golden: Golden) -> None:
    records = _records(root)
    random = Random(1)
    for offset, size in records:
        golden.write(root)
        _spoil(root, offset + random.randrange(size))
        begin = offset % 8192
        path = root / LOG[offset // 8192]
        assert _damaged(verify_directory(root)) == [f"{path} bytes [{begin}, {begin + size})"]


def test_verify_directory_names_several_ranges(root: Path) -> None:
    records = _records(root)
    chosen = [records[3], records[8], records[9], records[-2]]
    for offset, size in chosen:
        _spoil(root, offset + size // 2)
    found = _damaged(verify_directory(root))
    assert len(found) == 3  # two of them are adjacent
    report = verify_directory(root)
    assert report.counts["damaged bytes"] == sum(size for _, size in chosen)
    assert report.counts["records"] == len(records) - len(chosen)


def test_verify_directory_names_missing_and_short_segments(root: Path) -> None:
    (root / LOG[0]).unlink()
    report = verify_directory(root)
    assert _damaged(report) == [f"{root / LOG[0]} bytes [0, 8192)"]
    path = root / LOG[1]
    path.write_bytes(path.read_bytes()[:5000])
    assert any(f"{path} bytes [" in one for one in _damaged(verify_directory(root)))


def test_verify_directory_names_damaged_derived_files_as_derived(
    root: Path, golden: Golden
) -> None:
    random = Random(2)
    for name in ("consumequeue/orders/0/00000000000000000000", "timerstore/state"):
        for _ in range(10):
            golden.write(root)
            bit = random.randrange(8 * (20 if name.startswith("c") else 500))
            damages.flip(name, bit)[1](root)
            problems = verify_directory(root, CONFIG).problems
            if name == "timerstore/state" and not problems:
                continue  # the other sector of its chunk
            assert [one.where.split(" offset")[0] for one in problems] == [str(root / name)]
    golden.write(root)
    shutil.rmtree(root / "timerlog")
    assert all("derived" in one.what for one in verify_directory(root).problems)


def test_verify_directory_checks_recurring_messages(root: Path) -> None:
    """A file that an opening rejects is not clean."""
    clock = ManualClock(NOW_MS)
    with timerstore.open(root, CONFIG, clock=clock, threads=False) as store:
        store.put_every("orders", b"again", every=60, name="nightly")
    assert verify_directory(root, CONFIG).clean
    path = root / "config" / "timerstoreRecurring.json"
    path.write_bytes(path.read_bytes().replace(b"nightly", b"nightlx"))
    (problem,) = verify_directory(root, CONFIG).problems
    assert problem.where == str(path)
    with pytest.raises(CorruptError, match="definitions of recurring messages cannot be read"):
        timerstore.open(root, CONFIG, clock=clock, threads=False)


def test_store_without_its_log_is_damaged(root: Path, tmp_path: Path) -> None:
    shutil.rmtree(root / "commitlog")
    problems = verify_directory(root, CONFIG).problems
    assert "the file is missing" in {one.got for one in problems}
    told = repair(root, tmp_path / "target").problems
    assert [one.what for one in told] == ["damaged bytes"]
    assert main(["verify", str(root)]) == main(["repair", str(root), str(tmp_path / "other")]) == 1
    with timerstore.open(tmp_path / "target", CONFIG, threads=False) as store:
        assert store.verify().clean


def test_empty_store_is_a_store(tmp_path: Path) -> None:
    timerstore.open(tmp_path / "store", CONFIG, threads=False).close()
    assert not (tmp_path / "store" / "commitlog").exists()
    assert verify_directory(tmp_path / "store").clean
    assert repair(tmp_path / "store", tmp_path / "target").clean
    with timerstore.open(tmp_path / "target", CONFIG, threads=False) as store:
        assert store.stats()["log_end_bytes"] == 0


def _all(root: Path) -> dict[bytes, list[Message]]:
    """Return all messages that are ever delivered, by body."""
    clock = ManualClock(NOW_MS)
    found: dict[bytes, list[Message]] = {}
    with timerstore.open(root, CONFIG, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        for ms in range(0, _LATER_MS, 100_000):
            clock.set(NOW_MS + ms)
            stepper.settle()
        assert not list(store.pending())
        for topic, count in store.topics().items():
            for queue_id in range(count) if topic in {"orders", "mails", "rows"} else ():
                part = store.pull(topic, queue_id, 0, max_count=1000)
                if part.next_offset and not part.messages:
                    part = store.pull(topic, queue_id, part.next_offset, max_count=1000)
                for one in part.messages:
                    found.setdefault(bytes(one.body), []).append(one)
    return found


@pytest.mark.more
def test_repair_loses_at_most_the_message_of_a_damaged_record(
    root: Path, golden: Golden, tmp_path: Path
) -> None:
    """Damage every record in turn. All other messages are delivered once, with their offsets.

    If a delivery record was lost, its message may be delivered again, and no other change is
    allowed.
    """
    golden.write(tmp_path / "whole")
    wanted = _all(tmp_path / "whole")
    records = _records(root)
    for number, (offset, size) in enumerate(records):
        golden.write(root)
        before = _files(root)
        _spoil(root, offset + size // 2)
        spoilt = _files(root)
        target = tmp_path / f"target-{number}"
        report = repair(root, target)
        assert _files(root) == spoilt != before
        assert len(_damaged(report)) == 1
        assert report.counts["records kept"] == len(records) - 1
        got = _all(target)
        lost = got.pop(b"", [])
        assert all("TS_LOST" in one.properties for one in lost)
        missing = set(wanted) - set(got)
        assert len(missing) <= 1, (offset, missing)
        more = {body for body in got if len(got[body]) != len(wanted.get(body, ()))}
        assert len(more) <= 1, (offset, more)
        # the lost record may be the cancel of this message
        assert set(got) - set(wanted) <= {b"body 10 of orders"}
        for body in set(got) & set(wanted):
            assert {one.message_id for one in got[body]} == {m.message_id for m in wanted[body]}
            due = {one.due_ms for one in wanted[body]}
            assert all(one.delivered_ms >= min(due) or one.due_ms in due for one in got[body])
        shutil.rmtree(target)


def test_repaired_store_accepts_calls(root: Path, tmp_path: Path) -> None:
    records = _records(root)
    for number in (5, 6, 20):
        _spoil(root, records[number][0] + 30)
    repair(root, tmp_path / "target")
    assert _damaged(verify_directory(tmp_path / "target")) == []
    clock = ManualClock(NOW_MS)
    with timerstore.open(tmp_path / "target", CONFIG, clock=clock, threads=False) as store:
        assert store.committed("orders", "group") == {0: 2}
        receipt = store.put("orders", b"new", delay=1.0, queue_id=0)
        assert receipt.handle
        clock.advance(2000)
        Stepper(store).settle()
        end = store.pull("orders", 0, 2).max_offset
        [last] = store.pull("orders", 0, end - 1).messages
        assert last.body == b"new"
    with timerstore.open(tmp_path / "target", CONFIG, clock=clock, threads=False):
        pass


def test_repair_of_an_intact_store_gives_the_same_log(root: Path, tmp_path: Path) -> None:
    assert repair(root, tmp_path / "target").clean
    for name in LOG:
        assert (tmp_path / "target" / name).read_bytes() == (root / name).read_bytes()


def test_repair_bridges_a_lost_segment(root: Path, tmp_path: Path) -> None:
    """The segment is random bytes, and the records after it are saved."""
    damages.garble(LOG[0])[1](root)
    with (
        pytest.raises(timerstore.CorruptError),
        timerstore.open(root, CONFIG, threads=False) as one,
    ):
        one.pull("orders", 0, 0)
    report = repair(root, tmp_path / "target")
    assert len(_damaged(report)) == 1
    assert report.counts["records kept"] == len([r for r in _records(root) if r[0] >= 8192])
    found = _all(tmp_path / "target")
    assert b"body 4 of orders" in found


def test_repair_rejects_existing_target_and_missing_source(root: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_bytes(b"mine")
    for target in (taken, root, root / "inside", tmp_path):
        with pytest.raises(ConfigError, match=r"wanted a (new or empty )?folder"):
            repair(root, target)
    with pytest.raises(ConfigError, match="no store"):
        repair(taken, tmp_path / "other")
    assert (taken / "mine").read_bytes() == b"mine"


def test_repair_rejects_a_second_repair_into_the_same_folder(root: Path, tmp_path: Path) -> None:
    held = Directory(Disk(), tmp_path / "target.repairing")
    with pytest.raises(LockedError, match=r"target\.repairing"):
        repair(root, tmp_path / "target")
    held.release()
    (tmp_path / "target.repairing" / "commitlog").mkdir()
    (tmp_path / "target.repairing" / "commitlog" / "left").write_bytes(b"over")
    (tmp_path / "target.repairing" / "abort").write_bytes(b"over")
    assert repair(root, tmp_path / "target").clean
    assert not (tmp_path / "target.repairing").exists()
    assert not (tmp_path / "target" / "abort").exists()
    assert verify_directory(tmp_path / "target").clean


def test_search_does_not_call_find_of_a_memory_map(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.11.5, mmap.find reads one byte past the map, which can raise SIGSEGV."""

    def find(*_arguments: object) -> int:
        raise AssertionError("a map was asked")

    monkeypatch.setattr(GuardedMap, "find", find, raising=False)
    _spoil(root, 100)
    assert len(_damaged(verify_directory(root))) == 1
    assert len(_damaged(repair(root, tmp_path / "target"))) == 1


def test_search_finds_a_pattern_at_every_offset() -> None:
    """Include matches across the edges of the searched blocks."""
    for at in (0, 1, 4092, 4093, 4094, 4095, 4096, 12_283, 12_284, 12_285, 19_996):
        data = bytearray(20_000)
        data[at : at + 4] = b"abcd"
        for end in (20_000, at + 4, at + 3):
            for start in {0, max(at - 1, 0), at, at + 1}:
                found = find_in_segment(data, end, b"abcd", start)
                assert found == data.find(b"abcd", start, end)


def test_commands_report_findings_by_exit_status(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(root)]) == 0
    assert "clean" in capsys.readouterr().out
    _spoil(root, 100)
    assert main(["verify", str(root)]) == 1
    assert "bytes [0, 200)" in capsys.readouterr().out
    assert main(["repair", str(root), str(tmp_path / "target")]) == 1
    assert main(["verify", str(tmp_path / "target")]) == 0
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert "error:" in capsys.readouterr().err
