"""Backup: a repeated backup continues the same log, and rejects another one."""

from pathlib import Path

import pytest

import timerstore
from tests.support.backups import SEGMENT, cut_at, fill, numbers, restored
from tests.support.bench import Bench
from tests.support.inside import inside
from tests.support.retaining import SIZES, begin_of
from tests.support.retaining import fill as retaining_fill
from timerstore import (
    ConfigError,
    CorruptError,
)
from timerstore._engine.format.store_paths import segment_name


def test_backup_rejects_log_that_diverged(source: Bench, tmp_path: Path) -> None:
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
    """Let the log end at the end of a segment. The message for the next segment is not put."""
    log = inside(bench.store).log
    log.make_room(SEGMENT - 16)
    assert log.end % SEGMENT == 0


@pytest.mark.parametrize("on_edge", [False, True])
@pytest.mark.parametrize("later", [0, 30])
def test_backup_rejects_diverged_log_of_same_length(
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
def test_backup_continues_from_segment_edge(source: Bench, tmp_path: Path, on_edge: bool) -> None:
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
def test_backup_copies_lost_segment_again(
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


def test_backup_rejects_lost_segment_of_another_log(source: Bench, tmp_path: Path) -> None:
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


def test_backup_removes_expired_segments_after_kill(
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


def test_first_backup_can_be_repeated_when_interrupted_in_first_step(
    source: Bench, tmp_path: Path
) -> None:
    """All that it leaves then is the manifest's temporary file."""
    fill(source, 3)
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "backup.json.tmp").write_bytes(b"{")
    source.store.backup(tmp_path / "backup")
    assert timerstore.check_backup(tmp_path / "backup").clean
    assert not (tmp_path / "backup" / "backup.json.tmp").exists()
