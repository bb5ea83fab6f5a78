"""Guards, readers, backups and failures that keep files from being removed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import timerstore
from tests.support.inside import (
    inside,
    keep_log_from,
    old_watermark_slot,
    segment_pointer,
)
from tests.support.retaining import HOUR_MS, KIB, RetentionBench
from timerstore import PullStatus
from timerstore._engine.base.service import Service
from timerstore._engine.format import watermark
from timerstore._engine.maintenance import verify_directory
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.segments import Segments
from timerstore.errors import FullError, GoneError


def run_until_idle(service: Service) -> None:
    """Step the service until it has no work."""
    while service.step():
        pass


def test_backup_suspends_retention(bench: RetentionBench, tmp_path: Path) -> None:
    bench.fill(40)
    bench.clock.advance(2 * HOUR_MS)

    def progress(_done: int, _of: int) -> None:
        bench.stepper.settle()
        assert bench.log_files[0] == 0

    bench.store.backup(tmp_path / "backup", progress=progress)
    bench.stepper.settle()
    assert bench.log_files[0] > 0
    bench.store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    with timerstore.open(tmp_path / "restored", bench.config, clock=bench.clock) as restored:
        assert restored.verify().clean


def test_guard_keeps_the_files_that_it_needs(bench: RetentionBench) -> None:
    need = [16 * KIB - 1]
    keep_log_from(inside(bench.store).retention, lambda: need[0])
    bench.fill()
    bench.age()
    assert bench.log_files[0] == 0
    need[0] += 1
    bench.stepper.settle()
    assert bench.log_files[0] == 16 * KIB


def test_file_is_kept_while_a_reader_has_it_open(bench: RetentionBench) -> None:
    segments = inside(bench.store).log.segments
    bench.fill()
    bench.clock.advance(HOUR_MS)
    with segments.view(16 * KIB) as view:
        bench.stepper.settle()
        assert segments.begin == 16 * KIB
        assert bench.log_files[0] == 0
        assert view.begin == 0
        with segments.view(20 * KIB) as later:
            assert later.begin == 16 * KIB
    assert bench.log_files[0] == 0
    bench.stepper.settle()
    assert bench.log_files[0] == 16 * KIB


def test_read_of_a_removed_file_raises_gone_error(bench: RetentionBench) -> None:
    bench.fill()
    bench.age()
    with pytest.raises(GoneError, match="it was removed"):
        inside(bench.store).log.segments.read(0, 10)


def test_pull_continues_when_retention_removes_the_unit_that_it_reads(
    bench: RetentionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fill(60)
    bench.age()
    first = bench.store.pull("t", 0, 0).next_offset
    bench.fill(60)
    real = ConsumeQueue.first_kept

    def first_kept(queue: ConsumeQueue, *given: int) -> int:
        monkeypatch.undo()
        bench.age()
        return real(queue, *given)

    monkeypatch.setattr(ConsumeQueue, "first_kept", first_kept)
    found = bench.store.pull("t", 0, first)
    assert (found.status, found.next_offset) == (PullStatus.OFFSET_TOO_SMALL, found.min_offset)
    assert first < found.min_offset < found.max_offset


def test_verify_reports_a_log_file_that_is_removed_during_it(bench: RetentionBench) -> None:
    bench.fill(60)
    bench.store.close()
    removed = bench.root / "commitlog" / f"{bench.log_files[1]:020d}"
    data = removed.read_bytes()
    report = verify_directory(
        bench.root, bench.config, progress=lambda *_: removed.unlink(missing_ok=True)
    )
    assert "the file is missing" in str(report)
    removed.write_bytes(data)
    bench.open()


def test_read_past_a_space_that_began_again_raises_gone_error(tmp_path: Path) -> None:
    segments = Segments(Disk(), tmp_path / "space", 4096, 0)
    segments.create(0)
    segments.create(1)
    segments.forget_all()
    shutil.rmtree(tmp_path / "space")
    segments.create(0)
    with pytest.raises(GoneError, match="it was removed"):
        segments.read(4096, 10)
    segments.close()


@contextmanager
def restored_afterwards(path: Path) -> Iterator[None]:
    """Restore a file after the context, like a power cut that undoes an unlink."""
    data = path.read_bytes()
    yield
    path.write_bytes(data)


@pytest.mark.parametrize("is_marked_open", [False, True])
@pytest.mark.parametrize("lost", [[], ["timerstore/state"]])
def test_file_that_reappears_after_a_power_cut_is_removed(
    bench: RetentionBench, lost: list[str], is_marked_open: bool
) -> None:
    """`is_marked_open`: with `abort`, which makes the store look as if a broker had used it."""
    bench.fill()
    before = bench.root / "commitlog" / f"{0:020d}"
    with restored_afterwards(before):
        bench.age()
        bench.store.close()
        for name in lost:
            (bench.root / name).unlink()
        if is_marked_open:
            (bench.root / "abort").write_text("1")
    bench.open()
    assert bench.log_files == [16 * KIB]
    assert len(bench.bodies()) < 24


def test_watermark_of_the_first_version_is_read() -> None:
    mark = watermark.Watermark(*range(1, 14))
    assert (mark.timer_log_begin, mark.far_number) == (0, 0)
    assert watermark.read(old_watermark_slot(b"TSMARK01", mark[:13])) == mark
    assert watermark.read(watermark.write(mark._replace(timer_log_begin=7))) == mark._replace(
        timer_log_begin=7
    )


def test_retention_continues_on_a_full_disk(
    bench: RetentionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no space for a checkpoint, a new file or the position of the index."""
    bench.fill(60)
    bench.store.flush()

    def full(*_given: object, **_named: object) -> None:
        raise FullError("no space")

    bench.clock.advance(HOUR_MS)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write_small", full)
        patch.setattr(File, "reserve", full)
        run_until_idle(bench.store.services()["retention"])
        assert len(bench.log_files) == 1
    bench.stepper.settle()


def test_retention_continues_on_a_disk_that_was_full_before_the_last_checkpoint(
    bench: RetentionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a reader it waits for a checkpoint, but not for one that has no space."""
    bench.fill(60)
    bench.store.flush()
    bench.store.put("t", b"not in a checkpoint")

    def full(*_given: object, **_named: object) -> None:
        raise FullError("no space")

    bench.clock.advance(HOUR_MS)
    flush, retention = (bench.store.services()[name] for name in ("flush", "retention"))
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write_small", full)
        patch.setattr(File, "reserve", full)
        run_until_idle(retention)
        assert len(bench.log_files) > 1
        for _ in range(2):
            with pytest.raises(FullError):
                run_until_idle(flush)
        run_until_idle(retention)
        assert len(bench.log_files) == 2, "the last checkpoint ends in the first of them"
    bench.stepper.settle()


def test_full_disk_keeps_pending_messages_in_place(
    bench: RetentionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = bench.store.put("t", b"far", delay=86_400)
    bench.fill()
    bench.store.flush()

    def full(*_given: object, **_named: object) -> int:
        raise FullError("no space")

    bench.clock.advance(HOUR_MS)
    service = bench.store.services()["retention"]
    with monkeypatch.context() as patch:
        patch.setattr(inside(bench.store).log, "make_room", full)
        inside(bench.store).log.native.append_limit = 0
        with pytest.raises(FullError):
            run_until_idle(service)
        assert bench.log_files[0] == 0
    bench.stepper.settle()
    assert bench.log_files[0] > 0
    assert bench.stat("retention_moved_messages") == 1
    assert [one.handle for one in bench.store.pending()] == [receipt.handle]


def test_damage_stops_retention_but_not_the_store(
    bench: RetentionBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill()
    path = bench.root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    bench.age()
    assert bench.log_files[0] == 0
    assert "stopped" in caplog.text
    bench.store.put("t", b"goes on")
    path.write_bytes(data)
    bench.age()


def test_cut_keeps_the_first_file_of_a_space(tmp_path: Path) -> None:
    """Found by the simulator (seed 399): without files, a space began at offset 0 again."""
    segments = Segments(Disk(), tmp_path / "space", 4096, 0)
    for number in range(3):
        segments.create(number)
    segments.write(2 * 4096, b"past the end")
    segments.remove_below(2 * 4096)
    segments.cut(2 * 4096)
    assert (segments.numbers, segments.begin) == ([2], 2 * 4096)
    assert segments.read(2 * 4096, 20) == bytes(20)
    again = Segments(Disk(), tmp_path / "space", 4096, 0)
    again.load()
    assert again.begin == 2 * 4096


@pytest.mark.parametrize("stage", ["map", "with"])
def test_interrupted_view_keeps_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The view is lost before `with` holds it: no memory, or an exception from outside."""
    segments = Segments(Disk(), tmp_path / "space", 4096, 0)
    for number in range(3):
        segments.create(number)
    if stage == "map":
        monkeypatch.setattr(*segment_pointer(segments), lambda _view: int("no memory"))
        with pytest.raises(ValueError, match="no memory"), segments.view(0):
            raise AssertionError("the view was made")
    else:
        cut_short = segments.view(0)
        cut_short.__enter__()
        del cut_short
    monkeypatch.undo()
    segments.retire(4096)
    assert segments.unlink_retired()
    with segments.view(0):
        segments.retire(2 * 4096)
        assert not segments.unlink_retired()
    assert segments.unlink_retired()
