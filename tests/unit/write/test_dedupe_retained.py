"""Message ids of messages that retention removed: no record in the log has them any more."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, copied_at
from tests.support.driver import abandon
from tests.support.inside import crc_of_backup
from tests.support.retaining import SIZES, begin_of, fill
from timerstore import CorruptError, PutReceipt, StoreConfig
from timerstore._engine.format import counts_json
from timerstore._engine.format.counts_json import Counts, IdsMark
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.queues.message_ids import read_ids
from timerstore._engine.storage.disk import Disk

HOUR = 3_600_000


@pytest.fixture
def bench_config() -> StoreConfig:
    return replace(SIZES, dedupe="id")


def put_and_gone(bench: Bench) -> list[PutReceipt]:
    """One that has come and one that waits; the log begins behind where they were put."""
    receipts = [
        bench.store.put("t", b"came", message_id="came"),
        bench.store.put("t", b"waits", message_id="waits", delay=100),
    ]
    fill(bench, receipts[1].log_offset)
    return receipts


def known(bench: Bench) -> list[bool]:
    """Whether they are; with another time and body, so that a new one would be seen."""
    return [
        bench.store.put("t", b"again", message_id=name, delay=10**6).duplicate
        for name in ("came", "waits")
    ]


def killed(bench: Bench, *without: str) -> None:
    """Go on with a copy of the files as they are, but for some."""
    copy = bench.root.with_name(f"{bench.root.name}-")
    shutil.copytree(bench.root, copy)
    abandon(bench.store)
    for name in without:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    bench.root = copy
    bench.open()


@pytest.mark.parametrize(
    "lost",
    [[], ["timerstore/state"], ["timerstore/watermark"], ["timerwheel", "timerlog"],
     ["consumequeue"], ["timerstore/wheel", "timerstore/state", "timerstore/watermark", "index"]],
)  # fmt: skip
def test_retained_ids_are_known_after_any_rebuild(bench: Bench, lost: list[str]) -> None:
    put_and_gone(bench)
    bench.store.flush()
    for _ in range(3):  # a rebuilt file contains them too
        killed(bench, *lost)
        assert known(bench) == [True, True]
        fill(bench, begin_of(bench))
        bench.store.flush()
    bench.reopen()
    assert known(bench) == [True, True]
    assert len(list((bench.root / "timerstore").glob("ids-*"))) == 1
    bench.turn(100_000)
    assert [message.body for message in bench.store.query("t", "waits")] == [b"waits"]
    bench.turn(HOUR)
    assert known(bench) == [False, False], "the window goes by when they were first put"


@pytest.mark.parametrize(
    "point",
    ["recover_rebuild_begun", "recover_rebuild_queues_restarted", "checkpoint_ids_written",
     "checkpoint_counts_written", "checkpoint_watermark_written"],
)  # fmt: skip
def test_retained_ids_are_known_when_killed_during_a_rebuild(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    put_and_gone(bench)
    bench.store.put("t", b"more", message_id="more")
    bench.store.flush()
    copy = bench.root.with_name("copy")
    with copied_at(monkeypatch, point, bench.root.with_name("store-"), copy):
        killed(bench, "timerstore/state")
    assert copy.exists()
    abandon(bench.store)
    bench.root = copy
    bench.open()
    assert known(bench) == [True, True]
    assert bench.store.put("t", b"again", message_id="more").duplicate


def test_older_entry_is_used_when_the_newest_does_not_match(bench: Bench) -> None:
    put_and_gone(bench)
    bench.store.flush()
    bench.store.put("t", b"more", message_id="more")
    bench.store.flush()
    (path,) = (bench.root / "timerstore").glob("ids-*")
    path.write_bytes(path.read_bytes()[:-1])
    killed(bench, "timerstore/state")
    assert known(bench) == [True, True]


# --- backups ---


def restored(bench: Bench, backup: Path, name: str = "restored") -> Bench:
    path = bench.root.with_name(name)
    timerstore.restore(backup, path)
    return Bench(path, SIZES, bench.clock.now_ms)


def ids_in(backup: Path) -> list[str]:
    return sorted(path.name for path in (backup / "timerstore").glob("*"))


def test_backup_contains_retained_ids(bench: Bench, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    receipts = put_and_gone(bench)
    bench.store.backup(backup)
    other = restored(bench, backup)
    for receipt in receipts:
        again = other.store.put("t", b"again", message_id=receipt.message_id)
        assert (again.duplicate, again.log_offset) == (True, receipt.log_offset)
    other.turn(100_000)
    assert [message.body for message in other.store.query("t", "waits")] == [b"waits"]
    other.close()
    assert timerstore.check_backup(backup).clean


def test_repeated_backup_contains_newly_retained_ids(bench: Bench, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    bench.store.backup(backup)
    assert ids_in(backup) == []
    first = bench.store.put("t", b"x", message_id="there")
    bench.store.backup(backup)
    assert ids_in(backup) == [], "the log tells"
    fill(bench, first.log_offset)
    for names in ({"ids-1"}, {"ids-1"}):  # nothing new: the file stays
        bench.store.backup(backup)
        assert set(ids_in(backup)) == names
    fill(bench, bench.store.put("t", b"x", message_id="later").log_offset)
    bench.store.backup(backup)
    assert ids_in(backup) == ["ids-2"]
    other = restored(bench, backup)
    assert other.store.put("t", b"y", message_id="there").duplicate
    assert other.store.put("t", b"y", message_id="later").duplicate
    other.close()
    bench.clock.advance(HOUR)
    bench.store.backup(backup)
    assert ids_in(backup) == [], "out of the window they are not kept"


@pytest.mark.parametrize("point", ["backup_segment_copied", "backup_copied", "backup_written"])
def test_interrupted_backup_keeps_retained_ids(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    backup, copy = tmp_path / "backup", tmp_path / "copy"
    put_and_gone(bench)
    bench.store.backup(backup)
    more = bench.store.put("t", b"more", message_id="more")
    fill(bench, more.log_offset)
    with copied_at(monkeypatch, point, backup, copy):
        bench.store.backup(backup)
    assert timerstore.check_backup(copy).clean
    other = restored(bench, copy)
    assert known(other) == [True, True]
    is_new = point == "backup_written"
    assert other.store.put("t", b"again", message_id="more").duplicate is is_new
    other.close()
    bench.store.backup(copy)
    other = restored(bench, copy, "again")
    assert known(other) == [True, True]
    assert other.store.put("t", b"again", message_id="more").duplicate
    other.close()


def test_backup_with_damaged_ids(bench: Bench, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    put_and_gone(bench)
    bench.store.backup(backup)
    path = backup / "timerstore" / "ids-1"
    good = path.read_bytes()
    for damaged in (good[:-1] + b"?", good[:-1]):
        path.write_bytes(damaged)
        (problem,) = timerstore.check_backup(backup).problems
        assert (problem.what, problem.where) == ("damaged message ids of a backup", str(path))
        with pytest.raises(CorruptError, match="ids-1"):
            timerstore.restore(backup, tmp_path / "restored")
        assert not (tmp_path / "restored").exists()
    path.unlink()
    assert timerstore.check_backup(backup).problems[0].got == "no file"
    path.write_bytes(good + b"what a backup that died left behind")
    other = restored(bench, backup)
    assert known(other) == [True, True]
    other.close()


def test_backup_without_retained_ids(bench: Bench, tmp_path: Path) -> None:
    """Format 1 had no ids: it is read, and the next backup has them."""
    backup = tmp_path / "backup"
    put_and_gone(bench)
    bench.store.backup(backup)
    entries = json.loads((backup / "backup.json").read_text())
    del entries["ids"], entries["crc"]
    entries["format"] = 1
    entries["crc"] = crc_of_backup(entries)
    (backup / "backup.json").write_text(json.dumps(entries))
    shutil.rmtree(backup / "timerstore")
    assert timerstore.check_backup(backup).clean
    other = restored(bench, backup)
    assert known(other) == [False, False]
    other.close()
    bench.store.backup(backup)
    other = restored(bench, backup, "again")
    assert known(other) == [True, True]
    other.close()


def test_backup_keeps_its_ids_when_those_of_the_store_are_damaged(
    bench: Bench, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    put_and_gone(bench)
    bench.store.backup(backup)
    (path,) = (bench.root / "timerstore").glob("ids-*")
    path.write_bytes(b"?" * path.stat().st_size)
    bench.store.backup(backup)
    assert ids_in(backup) == ["ids-1"]
    other = restored(bench, backup)
    assert known(other) == [True, True]
    other.close()


def test_ids_file_removed_during_a_read_counts_as_missing(bench: Bench) -> None:
    """A checkpoint may have begun another."""
    disk, tree = Disk(), Tree(bench.root)
    assert read_ids(disk, tree, IdsMark(77, 24, 5)) is None
    (bench.root / "timerstore" / "ids-77").symlink_to(tmp := bench.root / "timerstore" / "counts")
    assert tmp.exists()
    assert read_ids(disk, tree, IdsMark(77, 24, 5)) is None


def test_two_checkpoints_at_one_log_end_have_different_numbers() -> None:
    """One without a record between may have begun another file of ids."""
    one = Counts(640, {}, {}, {}, {}, IdsMark(1, 24, 5), (), 7)
    two = one._replace(ids=IdsMark(2, 48, 6), sequence=8)
    text = counts_json.write([one, two])
    assert counts_json.read_counts(text, 640) == two
    assert counts_json.read_counts(text, 640, 9) == two, "written again under a later number"
    assert counts_json.read_counts(text, 640, 8) == two
    assert counts_json.read_counts(text, 640, 7) == one, "the second was never completed"
    assert counts_json.read_counts(text, 640, 6) is None
    assert counts_json.ids_marks(text) == [two.ids, one.ids]
