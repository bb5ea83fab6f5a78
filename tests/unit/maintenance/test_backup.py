"""Backup and restore: what comes out of a restored store is what the store owed at its backup."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, Bench, small
from tests.support.elsewhere import elsewhere
from tests.support.inside import COPIER_CONFIG_TEXTS, inside, is_error_of
from tests.support.retaining import SIZES, begin_of
from tests.support.retaining import fill as retaining_fill
from timerstore import (
    AckResult,
    CancelResult,
    ConfigError,
    CorruptError,
    FailedError,
    FormatVersionError,
    FullError,
    LockedError,
    PutReceipt,
    TimerStoreError,
)
from timerstore._engine.base import failpoints
from timerstore._engine.format import backup_json
from timerstore._engine.format.store_paths import segment_name
from timerstore._engine.ingest.row_batch import RowBatch
from timerstore._engine.maintenance import backup as copying
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Anchor, Disk, File

SEGMENT = 16 * 1024


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path / "store", small(commit_log_segment_bytes=SEGMENT))
    yield one
    one.close()


def fill(bench: Bench, count: int, begin: int = 0, delay_s: float = 60.0) -> list[PutReceipt]:
    return [
        bench.store.put("t", b"%05d" % n + bytes(300), delay=delay_s, keys=(f"k{n}",))
        for n in range(begin, begin + count)
    ]


def restored(bench: Bench, backup: Path, name: str = "restored") -> Bench:
    path = bench.root.parent / name
    timerstore.restore(backup, path)
    assert timerstore.verify_directory(path).clean
    return Bench(path, small(commit_log_segment_bytes=SEGMENT), bench.clock.now_ms)


@contextmanager
def cut_at(monkeypatch: pytest.MonkeyPatch, point: str) -> Iterator[None]:
    """What is called in here does not get beyond a fail point."""

    def hook(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        with pytest.raises(KeyboardInterrupt):
            yield


def numbers(bench: Bench) -> list[int]:
    return [int(message.body[:5]) for message in bench.out()]


def test_a_restored_store_owes_what_the_store_owed(source: Bench, tmp_path: Path) -> None:
    early = fill(source, 50)
    fill(source, 50, 50, delay_s=2 * 86_400)
    level = source.store.put("t", b"99999", level=2)
    assert source.store.cancel(early[7]) is CancelResult.CANCELLED
    source.turn(61_000)
    delivered = sorted(numbers(source))
    assert delivered == sorted([*range(7), *range(8, 50), 99999])
    report = source.store.backup(tmp_path / "backup")
    assert report.copied_bytes == report.log_end - report.log_begin > 2 * SEGMENT
    assert report.segment_count == len(list((tmp_path / "backup" / "commitlog").iterdir()))
    fill(source, 5, 200)  # behind the backup: not in it
    other = restored(source, tmp_path / "backup")
    assert other.store.verify().clean
    assert sorted(numbers(other)) == delivered
    assert {one.due_ms for one in other.store.pending()} == {
        one.due_ms for one in source.store.pending(topic="t") if one.due_ms > source.clock.now_ms
    } - {source.clock.now_ms + 60_000}
    assert other.store.cancel(early[7].handle) is CancelResult.ALREADY_CANCELLED
    assert other.store.query("t", "k3")[0].body[:5] == b"00003"
    assert level.due_ms is not None
    other.turn(2 * DAY)
    assert sorted(numbers(other)) == sorted([*delivered, *range(50, 100)])
    other.close()


def test_the_second_time_only_what_is_new_is_copied(source: Bench, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    fill(source, 100)
    first = source.store.backup(backup)
    again = source.store.backup(backup)
    assert (again.copied_bytes, again.kept_bytes) == (0, first.copied_bytes)
    fill(source, 100, 100)
    told: list[tuple[int, int]] = []
    second = source.store.backup(backup, progress=lambda done, all_: told.append((done, all_)))
    assert second.copied_bytes == second.log_end - first.log_end
    assert second.kept_bytes == first.copied_bytes
    assert told[-1] == (second.copied_bytes, second.copied_bytes)
    report = timerstore.check_backup(backup)
    assert report.clean
    assert report.counts == {
        "segments": second.segment_count,
        "bytes": second.copied_bytes + second.kept_bytes,
        "records": source.store.verify().counts["records"],
    }
    other = restored(source, backup)
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(200))
    other.close()


def test_the_store_may_be_looked_at_while_it_is_copied(source: Bench, tmp_path: Path) -> None:
    """Also by who is told how far it is: the calls that keep retention off do not wait for it."""
    fill(source, 5)
    store, answers = source.store, []

    def look(_done: int, _all: int) -> None:
        looking = Thread(
            target=lambda: answers.append((store.histogram().counts.sum(), store.verify().clean)),
            daemon=True,
        )
        looking.start()
        looking.join(30)

    store.backup(tmp_path / "backup", progress=look)
    assert (5, True) in answers


def test_an_empty_store_comes_back_empty(source: Bench, tmp_path: Path) -> None:
    report = source.store.backup(tmp_path / "backup")
    assert report.log_begin == report.log_end == 0
    other = restored(source, tmp_path / "backup")
    assert (other.out(), list(other.store.pending())) == ([], [])
    fill(other, 1)
    other.turn(61_000)
    assert numbers(other) == [0]
    other.close()


def test_groups_go_on_where_they_were(source: Bench, tmp_path: Path) -> None:
    fill(source, 10, delay_s=0)
    source.turn()
    reader = source.store.consumer("t", "g", wait=0)
    for _ in range(4):
        next(reader)
    reader.commit()
    reader.close()
    source.store.backup(tmp_path / "backup")
    other = restored(source, tmp_path / "backup")
    assert other.store.committed("t", "g") == source.store.committed("t", "g")
    other.close()


def test_geometry_comes_with_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(precision_ms=100, wheel_slot_count=256))
    fill(bench, 3)
    bench.store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    with timerstore.open(tmp_path / "restored", clock=bench.clock, threads=False) as store:
        assert (store.config.precision_ms, store.config.wheel_slot_count) == (100, 256)
        assert store.config.commit_log_segment_bytes == 1 << 20
    bench.close()


@pytest.mark.parametrize("point", ["backup_segment_copied", "backup_copied", "backup_written"])
def test_cut_off_it_is_what_it_was_or_what_it_was_to_be(
    source: Bench, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    fill(source, 100)
    source.store.backup(backup)
    fill(source, 100, 100)

    with cut_at(monkeypatch, point):
        source.store.backup(backup)
    assert timerstore.check_backup(backup).clean
    other = restored(source, backup)
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(200 if point == "backup_written" else 100))
    other.close()
    source.store.backup(backup)
    assert timerstore.check_backup(backup).clean
    other = restored(source, backup, "again")
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(200))
    other.close()


def test_a_full_disk_leaves_the_backup_as_it_was(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    fill(source, 60)
    source.store.backup(backup)
    fill(source, 60, 60)
    whole = File.write

    def write(self: File, data: bytes | memoryview, offset: int) -> None:
        if backup in self.path.parents and self.path.parent.name == "commitlog":
            raise FullError("write: no space", where=self.path)
        whole(self, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(File, "write", write)
        with pytest.raises(FullError):
            source.store.backup(backup)
    assert timerstore.check_backup(backup).clean
    source.store.put("t", b"00500", delay=1)  # the store has not noticed
    source.store.backup(backup)
    assert timerstore.check_backup(backup).clean


def test_a_flipped_bit_is_named_and_not_restored(source: Bench, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    fill(source, 100)
    source.store.backup(backup)
    segment = sorted((backup / "commitlog").iterdir())[1]
    raw = bytearray(segment.read_bytes())
    raw[1234] ^= 4
    segment.write_bytes(raw)
    report = timerstore.check_backup(backup)
    assert [problem.where for problem in report.problems] == [str(segment)]
    with pytest.raises(CorruptError, match=segment.name):
        timerstore.restore(backup, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    segment.write_bytes(raw[:100])
    assert "short" in timerstore.check_backup(backup).problems[0].got
    segment.unlink()
    assert not timerstore.check_backup(backup).clean
    raw[1234] ^= 4
    segment.write_bytes(raw)
    timerstore.restore(backup, tmp_path / "restored")


def test_what_was_damaged_when_it_was_backed_up_is_named(source: Bench, tmp_path: Path) -> None:
    """The bytes were those of the store, so it was clean: and what was restored did not open."""
    backup = tmp_path / "backup"
    receipts = fill(source, 100)
    source.store.flush()
    hurt, last = receipts[60].log_offset, receipts[99].log_offset

    def write(data: bytes) -> None:
        for offset in (hurt + 200, last + 200):
            segment = source.root / "commitlog" / segment_name(offset // SEGMENT * SEGMENT)
            with segment.open("r+b") as file:
                file.seek(offset % SEGMENT)
                file.write(data)

    write(b"x")
    source.store.backup(backup)
    write(bytes(1))  # of a body
    report = timerstore.check_backup(backup)
    begins = [begin % SEGMENT for begin in (hurt, last)]
    assert [one.where.partition(" bytes [")[2].partition(",")[0] for one in report.problems] == [
        str(begin) for begin in begins
    ]
    assert all(one.where.startswith(str(backup / "commitlog")) for one in report.problems)
    assert {one.what for one in report.problems} == {"damaged when it was backed up"}
    timerstore.restore(backup, tmp_path / "restored")
    assert not timerstore.verify_directory(tmp_path / "restored").clean


def test_a_manifest_that_does_not_fit_is_refused(source: Bench, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    fill(source, 3)
    source.store.backup(backup)
    path = backup / "backup.json"
    good = path.read_bytes()
    for old, new, error in (
        (b'"log_end": ', b'"log_end": 1', CorruptError),
        (b'"format": 2', b'"format": 3', FormatVersionError),
        (b"{", b"[", CorruptError),
    ):
        path.write_bytes(good.replace(old, new, 1))
        for call in (
            lambda: source.store.backup(backup),
            lambda: timerstore.restore(backup, tmp_path / "restored"),
            lambda: timerstore.check_backup(backup),
        ):
            with pytest.raises(error, match=r"backup\.json"):
                call()
    path.write_bytes(good)
    assert json.loads(good)["format"] == 2
    source.store.backup(backup)


def test_another_folder_is_left_alone(source: Bench, tmp_path: Path) -> None:
    fill(source, 3)
    other = Bench(tmp_path / "other")
    other.store.put("t", b"x", delay=5)
    other.store.backup(tmp_path / "others")
    before = sorted(path.name for path in other.root.rglob("*"))
    (tmp_path / "file").write_text("mine")
    for target, match in (
        (other.root, "backup.json"),
        (tmp_path / "others", "of store"),
        (tmp_path / "file", "folder"),
        (source.root, "outside"),
        (source.root / "inside", "outside"),
        (tmp_path, "outside"),
    ):
        with pytest.raises(ConfigError, match=match):
            source.store.backup(target)
    assert sorted(path.name for path in other.root.rglob("*")) == before
    other.close()
    for target in (other.root, tmp_path / "file"):
        with pytest.raises(ConfigError, match="empty"):
            timerstore.restore(tmp_path / "others", target)
    with pytest.raises(ConfigError, match=r"backup\.json"):
        timerstore.restore(other.root, tmp_path / "new")


def test_a_log_that_went_another_way_is_refused(source: Bench, tmp_path: Path) -> None:
    """A store restored from an older backup must not be mixed into a newer one."""
    fill(source, 20)
    source.store.backup(tmp_path / "old")
    fill(source, 20, 20)
    source.store.backup(tmp_path / "new")
    other = restored(source, tmp_path / "old")
    with pytest.raises(ConfigError, match="no longer"):
        other.store.backup(tmp_path / "new")
    fill(other, 40, 500)
    with pytest.raises(CorruptError, match="not the one"):
        other.store.backup(tmp_path / "new")
    other.close()
    assert timerstore.check_backup(tmp_path / "new").clean


def end_on_an_edge(bench: Bench) -> None:
    """The log ends where a segment does: what the next one was made for is not put."""
    log = inside(bench.store).log
    log.make_room(SEGMENT - 16)
    assert log.end % SEGMENT == 0


@pytest.mark.parametrize("on_edge", [False, True])
@pytest.mark.parametrize("later", [0, 30])
def test_another_way_of_the_same_length_is_refused(
    source: Bench, tmp_path: Path, on_edge: bool, later: int
) -> None:
    """Then nothing of the last segment is to be copied, and yet it is another."""
    fill(source, 20, 10)
    source.store.backup(tmp_path / "old")
    fill(source, 50, 30)
    if on_edge:
        end_on_an_edge(source)
    end = source.store.backup(tmp_path / "new").log_end
    assert end % SEGMENT == 0 or not on_edge
    other = restored(source, tmp_path / "old")
    fill(other, 50, 40)
    if on_edge:
        end_on_an_edge(other)
    assert other.store.stats()["log_end_bytes"] == end
    fill(other, later)
    with pytest.raises(CorruptError, match="not the one"):
        other.store.backup(tmp_path / "new")
    other.close()
    assert timerstore.check_backup(tmp_path / "new").clean
    third = restored(source, tmp_path / "new", "third")
    third.turn(61_000)
    assert sorted(numbers(third)) == list(range(10, 80))
    third.close()


@pytest.mark.parametrize("on_edge", [False, True])
def test_the_same_way_goes_on_from_an_edge_too(
    source: Bench, tmp_path: Path, on_edge: bool
) -> None:
    fill(source, 70)
    if on_edge:
        end_on_an_edge(source)
    first = source.store.backup(tmp_path / "backup")
    fill(source, 5, 70)
    second = source.store.backup(tmp_path / "backup")
    assert second.copied_bytes == second.log_end - first.log_end
    assert timerstore.check_backup(tmp_path / "backup").clean


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """In place: an open store has the file mapped."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("left", [None, 100])
def test_what_a_backup_lost_is_copied_again(
    source: Bench, tmp_path: Path, which: int, left: int | None, goes_on: bool
) -> None:
    fill(source, 100)
    before = source.store.backup(tmp_path / "backup")
    segment = sorted((tmp_path / "backup" / "commitlog").iterdir())[which]
    size = segment.stat().st_size
    if left is None:
        segment.unlink()
    else:
        segment.write_bytes(segment.read_bytes()[:left])
    if goes_on:
        fill(source, 5, 100)
    told: list[tuple[int, int]] = []
    after = source.store.backup(tmp_path / "backup", progress=lambda *done: told.append(done))
    grown = after.log_end - before.log_end
    assert after.copied_bytes == size + grown
    assert after.copied_bytes + after.kept_bytes == after.log_end - after.log_begin
    assert told[-1] == (after.copied_bytes, after.copied_bytes)
    assert timerstore.check_backup(tmp_path / "backup").clean
    other = restored(source, tmp_path / "backup")
    other.turn(61_000)
    assert len(numbers(other)) == (105 if goes_on else 100)
    other.close()


def test_what_a_backup_lost_is_not_taken_from_another_log(source: Bench, tmp_path: Path) -> None:
    """The store's own segment has been damaged since: then neither has the right one."""
    fill(source, 100)
    source.store.backup(tmp_path / "backup")
    first = min((tmp_path / "backup" / "commitlog").iterdir())
    first.unlink()
    own = source.root / "commitlog" / first.name
    good = own.read_bytes()[200:201]
    overwrite(own, 200, bytes([good[0] ^ 4]))
    with pytest.raises(CorruptError, match="not the one"):
        source.store.backup(tmp_path / "backup")
    overwrite(own, 200, good)
    source.store.backup(tmp_path / "backup")
    assert timerstore.check_backup(tmp_path / "backup").clean


def test_what_retention_dropped_goes_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store", SIZES)
    segments = tmp_path / "backup" / "commitlog"
    bench.store.put("t", b"x")
    bench.store.backup(tmp_path / "backup")
    retaining_fill(bench, int(bench.store.stats()["log_end_bytes"]))
    with cut_at(monkeypatch, "backup_written"):
        bench.store.backup(tmp_path / "backup")
    (segments / "notes").write_text("mine")
    assert (segments / segment_name(0)).exists(), "the kill came before it went"
    report = bench.store.backup(tmp_path / "backup")
    assert 0 < report.log_begin == begin_of(bench)
    assert len(list(segments.iterdir())) == report.segment_count + 1
    assert (segments / "notes").read_text() == "mine"
    assert timerstore.check_backup(tmp_path / "backup").clean
    bench.close()


def test_a_backup_is_not_opened_as_a_store(source: Bench, tmp_path: Path) -> None:
    fill(source, 3)
    backup = tmp_path / "backup"
    source.store.backup(backup)
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    for call in (
        lambda: timerstore.open(backup, source.config, clock=source.clock, threads=False),
        lambda: timerstore.convert(backup, "timerstore", source.config),
    ):
        with pytest.raises(ConfigError, match="got a backup; restore it"):
            call()
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before
    source.store.backup(backup)


def test_a_backup_that_became_a_store_is_not_written_over(source: Bench, tmp_path: Path) -> None:
    """As versions before could make one of it: what was put there since is nowhere else."""
    fill(source, 12)
    backup = tmp_path / "backup"
    source.store.backup(backup)
    manifest = (backup / "backup.json").read_bytes()
    (backup / "backup.json").unlink()
    config = small(commit_log_segment_bytes=(backup / "commitlog" / ("0" * 20)).stat().st_size)
    other = Bench(backup, config, source.clock.now_ms)
    other.store.put("t", b"00777")
    other.close()
    (backup / "backup.json").write_bytes(manifest)
    fill(source, 3)
    with pytest.raises(ConfigError, match=r"opened as a store.*timerwheel"):
        source.store.backup(backup)
    with pytest.raises(ConfigError, match=r"got a backup.*as a store.*remove .*backup\.json"):
        other.open()
    (backup / "backup.json").unlink()
    other.open()
    assert 777 in numbers(other)
    other.close()


def test_a_first_backup_that_was_cut_off_in_its_first_step(source: Bench, tmp_path: Path) -> None:
    """All that it leaves then is the manifest's temporary file."""
    fill(source, 3)
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "backup.json.tmp").write_bytes(b"{")
    source.store.backup(tmp_path / "backup")
    assert timerstore.check_backup(tmp_path / "backup").clean
    assert not (tmp_path / "backup" / "backup.json.tmp").exists()


def test_two_at_once_are_refused(source: Bench, tmp_path: Path) -> None:
    source.store.backup(tmp_path / "backup")
    held = Directory(Disk(), tmp_path / "backup")
    with pytest.raises(LockedError):
        source.store.backup(tmp_path / "backup")
    held.release()
    source.store.backup(tmp_path / "backup")


def test_who_reads_a_backup_and_who_writes_it_keep_each_other_out(
    source: Bench, tmp_path: Path
) -> None:
    fill(source, 100)
    source.turn()
    backup = tmp_path / "backup"
    told: list[str] = []
    source.store.backup(tmp_path / "other")
    with pytest.raises(ConfigError, match="progress: wanted a callable, got int 7"):
        timerstore.restore(tmp_path / "other", tmp_path / "torn", progress=7)  # type: ignore[arg-type]

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(LockedError, match="in this process") as caught:
            call()
        told.append(str(caught.value))

    def reads(_done: int, _all: int) -> None:
        refused(lambda: timerstore.restore(backup, tmp_path / "torn"))
        refused(lambda: timerstore.check_backup(backup))

    def writes(_done: int, _all: int) -> None:
        refused(lambda: source.store.backup(backup))
        assert timerstore.check_backup(backup).clean  # who reads keeps out nobody who reads

    source.store.backup(backup, progress=reads)
    assert not (tmp_path / "torn").exists()
    names = sorted(backup.iterdir())
    fill(source, 50, begin=100)
    source.turn()
    timerstore.restore(backup, tmp_path / "whole", progress=writes)
    assert len(told) > 3, "nothing was copied in pieces"
    assert all(str(backup) in one for one in told)
    assert sorted(backup.iterdir()) == names, "a backup that is read is not written to"
    assert timerstore.verify_directory(tmp_path / "whole").clean
    source.store.backup(backup)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_keep_writers_out(source: Bench, tmp_path: Path) -> None:
    fill(source, 10)
    source.turn()
    backup = tmp_path / "backup"
    source.store.backup(backup)
    come, go = os.pipe()
    children = []

    def fork(_done: int, _all: int) -> None:
        child = os.fork()
        if child == 0:
            os.read(come, 1)
            os._exit(0)
        children.append(child)

    timerstore.restore(backup, tmp_path / "restored", progress=fork)
    try:
        source.store.backup(backup)
    finally:
        os.write(go, b"x" * len(children))
        for child in children:
            os.waitpid(child, 0)
        os.close(come)
        os.close(go)


def test_nothing_is_restored_into_the_backup_itself(source: Bench, tmp_path: Path) -> None:
    """One at `timerwheel` made it look like a backup that had been opened as a store."""
    backup = tmp_path / "backup"
    source.store.backup(backup)
    (tmp_path / "link").symlink_to(backup)
    for path in (backup / "timerwheel", backup / "a" / "b", tmp_path / "link" / "new"):
        with pytest.raises(ConfigError, match="restore: wanted a folder outside the backup"):
            timerstore.restore(backup, path)
    source.store.backup(backup)
    assert sorted(one.name for one in backup.iterdir()) == ["backup.json", "commitlog", "lock"]


def test_two_restores_into_one_folder_are_refused(source: Bench, tmp_path: Path) -> None:
    fill(source, 100)
    backup, path = tmp_path / "backup", tmp_path / "restored"
    source.store.backup(backup)
    tried: list[int] = []

    def again(done: int, _all: int) -> None:
        with pytest.raises(LockedError, match=r"restored\.restoring"):
            timerstore.restore(backup, path)
        tried.append(done)

    report = timerstore.restore(backup, path, progress=again)
    assert len(tried) == report.segment_count == len(list((path / "commitlog").iterdir()))
    with pytest.raises(ConfigError, match="empty"):
        timerstore.restore(backup, path)
    assert not path.with_name("restored.restoring").exists()
    held = Directory(Disk(), path)  # nobody holds what has its name
    held.release()


def test_a_restore_that_comes_as_the_other_is_done_leaves_it_alone(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the lock of a folder that has its name by then."""
    fill(source, 100)
    backup, path = tmp_path / "backup", tmp_path / "restored"
    source.store.backup(backup)
    building = path.with_name("restored.restoring")
    whole = Disk.anchor

    def anchor(self: Disk, root: Path) -> Anchor:
        found = whole(self, root)
        if root == building:  # the other one ends between its opening and its locking
            monkeypatch.setattr(Disk, "anchor", whole)
            building.rename(path)
        return found

    monkeypatch.setattr(Disk, "anchor", anchor)
    with pytest.raises(LockedError, match="just built"):
        timerstore.restore(backup, path)
    assert not building.exists()
    assert path.exists()


def test_a_target_is_found_wherever_it_is_named_from(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a link; but where one stands it would be replaced beneath one's feet."""
    fill(source, 3)
    backup = tmp_path / "backup"
    source.store.backup(backup)
    for name in ("here", "linked", "repaired"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("linked")
    (tmp_path / "other-link").symlink_to("repaired")
    monkeypatch.chdir(tmp_path / "here")
    for here in (".", tmp_path / "here"):
        with pytest.raises(ConfigError, match="restore: wanted another folder than the one"):
            timerstore.restore("../backup", here)
    timerstore.restore("../backup", "there")
    timerstore.restore(backup, tmp_path / "link")
    timerstore.repair(tmp_path / "link", tmp_path / "other-link")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ConfigError, match="repair: wanted another folder than the one"):
        timerstore.repair(tmp_path / "link", ".")
    for name in ("here/there", "linked", "repaired"):
        assert timerstore.verify_directory(tmp_path / name).clean
    assert (tmp_path / "link").is_symlink()
    assert not list(tmp_path.glob("*ing"))


def test_a_mount_point_is_refused_before_anything_is_copied(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be given the name of a disk of its own: it was told when all had been copied."""
    source.store.backup(tmp_path / "backup")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == mounted)
    with pytest.raises(ConfigError, match="restore: wanted a folder below a mount point"):
        timerstore.restore(tmp_path / "backup", mounted)
    with pytest.raises(ConfigError, match="repair: wanted a folder below a mount point"):
        timerstore.repair(source.root, mounted)
    assert not list(tmp_path.glob("*ing"))
    timerstore.restore(tmp_path / "backup", mounted / "store")


def test_a_path_that_cannot_be_is_the_callers_fault(source: Bench, tmp_path: Path) -> None:
    backup, loop, nowhere = tmp_path / "backup", tmp_path / "loop", tmp_path / "nowhere"
    loop.symlink_to(loop)
    nowhere.symlink_to(tmp_path / "not there")
    source.store.backup(backup)
    calls: dict[str, Callable[[Any], object]] = {
        "open": lambda path: timerstore.open(path, threads=False),
        "open_shards": lambda path: timerstore.open_shards(path, 2, threads=False),
        "backup": source.store.backup,
        "restore": lambda path: timerstore.restore(backup, path),
        "restore of": lambda path: timerstore.restore(path, tmp_path / "new"),
        "check_backup": timerstore.check_backup,
        "verify": timerstore.verify_directory,
        "repair": lambda path: timerstore.repair(source.root, path),
        "repair of": lambda path: timerstore.repair(path, tmp_path / "new"),
        "convert": lambda path: timerstore.convert(path, "timerstore"),
    }
    for call in calls.values():
        for path in (str(tmp_path / "a\0b"), b"bytes", None):
            with pytest.raises(ConfigError, match=r"NUL|wanted text or a path"):
                call(path)
    for name, call in calls.items():
        for path in (loop, nowhere) if name in ("restore", "repair") else (loop,):
            with pytest.raises(TimerStoreError):
                call(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backup", "loop", "nowhere", "store"]
    fill(source, 1)


def test_what_a_restore_left_behind_is_begun_anew(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 60)
    source.store.backup(tmp_path / "backup")

    with cut_at(monkeypatch, "restore_built"):
        timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    (tmp_path / "restored").mkdir()
    other = restored(source, tmp_path / "backup")
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(60))
    other.close()


def test_offsets_of_a_queue_that_lost_its_messages_go_on(source: Bench, tmp_path: Path) -> None:
    """backup.json tells where queues end: nothing in the log may say so any more."""
    fill(source, 3, delay_s=0)
    source.turn()
    source.store.backup(tmp_path / "backup")
    path = tmp_path / "backup" / "backup.json"
    assert json.loads(path.read_text())["queue_ends"]["t"] == {"0": 3}


def test_a_backup_that_fails_harms_the_backup_alone(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 3)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FailedError, match="ENOTDIR"):
        source.store.backup(tmp_path / "file" / "backup")
    source.store.put("t", b"00007")

    def fail(self: File) -> None:
        if self.path.parent.parent == tmp_path / "store-2":  # a name that begins as the store's
            raise FailedError("sync: Input/output error", where=self.path)

    with monkeypatch.context() as patched:
        patched.setattr(File, "sync", fail)
        with pytest.raises(FailedError, match="Input/output"):
            source.store.backup(tmp_path / "store-2")
    source.store.put("t", b"00008")
    source.store.backup(tmp_path / "store-2")
    assert timerstore.check_backup(tmp_path / "store-2").clean


def test_a_callers_rows_that_fail_harm_the_caller_alone(source: Bench) -> None:
    def rows() -> Iterator[RowBatch]:
        raise FailedError("read: Input/output error", where="/elsewhere/file offset 7")
        yield

    with pytest.raises(FailedError, match="elsewhere"):
        source.store.ingest("source", 0, rows())
    source.store.put("t", b"00008")


def test_an_error_of_its_own_files_is_final(source: Bench) -> None:
    where = source.root / "commitlog" / "00000000000000000000"
    for error in (FailedError("x", where=f"{where} offset 3"), FailedError("y")):
        assert is_error_of(source.store, error)
    other = FailedError("x", where=f"{source.root}-2/commitlog")
    assert not is_error_of(source.store, other)


@pytest.mark.parametrize(
    ("topic", "queue_id", "end"),
    [("../../evil", 0, 1), ("t", 1 << 40, 1), ("t", -1, 1), ("t", 0, -1), ("t", 0, 1 << 62)],
)
def test_queues_that_cannot_be_are_refused(
    source: Bench, tmp_path: Path, topic: str, queue_id: int, end: int
) -> None:
    source.store.backup(tmp_path / "backup")
    path = tmp_path / "backup" / "backup.json"
    manifest = backup_json.read(path.read_bytes())
    path.write_bytes(backup_json.write(manifest._replace(queue_ends={topic: {queue_id: end}})))
    with pytest.raises(CorruptError, match="end of a queue"):
        timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    assert not list(tmp_path.rglob("*evil*"))


def test_a_folder_of_the_same_disk_that_is_mounted_is_a_mount_point_too(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device is that of the folder above: only the system's table of mounts tells."""
    source.store.backup(tmp_path / "backup")
    mounted = tmp_path / "with space" / "mounted"
    mounted.mkdir(parents=True)
    table = tmp_path / "mountinfo"
    where = str(mounted).replace(" ", r"\040")
    table.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/a rw\n60 1 8:1 /from {where} rw - ext4 /dev/a rw\n"
    )
    monkeypatch.setattr("timerstore._engine.storage.paths.MOUNTS", table)
    with pytest.raises(ConfigError, match="restore: wanted a folder below a mount point"):
        timerstore.restore(tmp_path / "backup", mounted)
    with pytest.raises(ConfigError, match="repair: wanted a folder below a mount point"):
        timerstore.repair(source.root, mounted)
    assert not list(mounted.parent.glob("*ing"))
    timerstore.restore(tmp_path / "backup", mounted / "store")
    for lost in (b"", b"\xff garbage\n", b"1 2\n"):
        table.write_bytes(lost)
        timerstore.restore(tmp_path / "backup", tmp_path / f"restored-{len(lost)}")
    table.unlink()
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")


def test_a_backup_may_lie_behind_links(source: Bench, tmp_path: Path) -> None:
    """As its log on another disk: locked or not, it is read as it is."""
    fill(source, 10)
    source.turn()
    backup = tmp_path / "backup"
    source.store.backup(backup)
    (backup / "commitlog").rename(tmp_path / "elsewhere")
    (backup / "commitlog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(backup)
    assert timerstore.check_backup(tmp_path / "link").clean
    timerstore.restore(tmp_path / "link", tmp_path / "restored")


# --- one moment ---


def between_reads(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Have something happen when the backup has read its first file, once."""
    real, calls = COPIER_CONFIG_TEXTS.value, [call]

    def config_texts(self: copying.Copier) -> dict[str, str]:
        found = real(self)
        if calls:
            calls.pop()()
        return found

    monkeypatch.setattr(*COPIER_CONFIG_TEXTS, config_texts)


def at_point(monkeypatch: pytest.MonkeyPatch, point: str, call: Callable[[], object]) -> None:
    """Have another thread do something while this one is at a fail point, once."""
    calls = [call]

    def hook(name: str) -> None:
        if name == point and calls:
            elsewhere(calls.pop())

    monkeypatch.setattr(failpoints, "hook", hook)


MOMENTS = ["", "checkpoint_taken", "checkpoint_log_synced", "checkpoint_watermark_written"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("flushes", [False, True])
def test_backup_has_what_recurs_and_its_runs_of_one_moment(
    source: Bench, monkeypatch: pytest.MonkeyPatch, moment: str, flushes: bool
) -> None:
    source.store.put_every("t", b"old", every=60, name="old")
    source.turn()

    def change() -> None:
        source.store.put_every("t", b"new", every=60, name="new")
        assert source.store.cancel_every("old")
        if flushes:
            source.store.flush()

    if moment:
        flushes = False
        at_point(monkeypatch, moment, change)
    else:
        between_reads(monkeypatch, change)
    source.store.backup(source.root.parent / "backup")
    monkeypatch.undo()
    again = restored(source, source.root.parent / "backup")
    again.turn()
    names = [one.name for one in again.store.recurring()]
    assert names in (["old"], ["new"])
    assert [one.message_id.split("/")[1] for one in again.store.pending()] == names
    for _ in range(3):
        again.turn(60_000)
    assert again.bodies() == [names[0].encode()] * 3
    again.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_backup_loses_no_message_that_is_leased_while_it_is_made(
    source: Bench, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """What says how far a group is must not be ahead of the leases that are in the backup."""
    source.store.put_many("t", [b"a", b"b", b"c"])
    source.turn()
    [first] = source.store.receive("t", "g", lease=30)
    assert source.store.ack(first) is AckResult.ACKED

    def lease() -> None:
        source.store.receive("t", "g", lease=30)

    if moment:
        at_point(monkeypatch, moment, lease)
    else:
        between_reads(monkeypatch, lease)
    source.store.backup(source.root.parent / "backup")
    monkeypatch.undo()
    again = restored(source, source.root.parent / "backup")
    again.turn(31_000)
    found = again.store.receive("t", "g", lease=30, max_count=10)
    assert sorted(one.body for one in found) == [b"b", b"c"]
    again.close()
