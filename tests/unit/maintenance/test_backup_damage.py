"""Backup and restore: damaged backups, damaged stores, and disks that fail."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.support.backups import SEGMENT, fill
from tests.support.bench import Bench
from tests.support.inside import is_error_of
from timerstore import (
    CorruptError,
    FailedError,
    FormatVersionError,
    FullError,
)
from timerstore._engine.format import backup_json
from timerstore._engine.format.store_paths import segment_name
from timerstore._engine.storage.disk import File
from timerstore._engine.write.row_batch import RowBatch


def test_backup_stays_unchanged_when_disk_is_full(
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


def test_restore_rejects_flipped_bit_by_place(source: Bench, tmp_path: Path) -> None:
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


def test_check_backup_reports_damage_of_the_store(source: Bench, tmp_path: Path) -> None:
    """The backup has the bytes of the store, but the restored store could not be opened."""
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


def test_restore_rejects_manifest_that_does_not_match(source: Bench, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("topic", "queue_id", "end"),
    [("../../evil", 0, 1), ("t", 1 << 40, 1), ("t", -1, 1), ("t", 0, -1), ("t", 0, 1 << 62)],
)
def test_restore_rejects_impossible_queues(
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


def test_store_stays_usable_when_backup_fails(
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


def test_store_stays_usable_when_callers_rows_fail(source: Bench) -> None:
    def rows() -> Iterator[RowBatch]:
        raise FailedError("read: Input/output error", where="/elsewhere/file offset 7")
        yield

    with pytest.raises(FailedError, match="elsewhere"):
        source.store.ingest("source", 0, rows())
    source.store.put("t", b"00008")


def test_store_fails_for_good_when_own_files_fail(source: Bench) -> None:
    where = source.root / "commitlog" / "00000000000000000000"
    for error in (FailedError("x", where=f"{where} offset 3"), FailedError("y")):
        assert is_error_of(source.store, error)
    other = FailedError("x", where=f"{source.root}-2/commitlog")
    assert not is_error_of(source.store, other)
