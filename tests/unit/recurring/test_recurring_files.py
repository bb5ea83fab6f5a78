"""Recurring messages after kills, with damaged files, and on a full disk."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, file_bytes
from tests.support.inside import inside, putting_of
from tests.support.recurring import (
    MINUTE,
    RECURRING_FILE,
    every,
    killed_at,
    runs,
)
from timerstore import CorruptError, FormatVersionError
from timerstore._engine.format import recurring_json
from timerstore._engine.format.json_text import loads, one_line, with_checksum, without_checksum
from timerstore.errors import FullError


def test_file_without_run_ms_is_read(bench: Bench) -> None:
    """The field run_ms was added to the file later."""
    every(bench)
    bench.close()
    path = bench.root / RECURRING_FILE
    definitions = recurring_json.read(path.read_bytes())
    assert definitions[0].run_ms == NOW + MINUTE
    table = loads(without_checksum(path.read_bytes()))
    (row,) = table["recurring"]
    del row["run_ms"]
    path.write_bytes(with_checksum(one_line(table)))
    bench.open()
    assert bench.store.cancel_every("beat")
    assert list(bench.store.pending()) == []


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(
    "point",
    ["recurring_run_put", "recurring_saved", "checkpoint_taken", "checkpoint_log_synced",
     "checkpoint_watermark_written", "deliver_placed", "log_synced"],
)  # fmt: skip
def test_each_run_is_delivered_once_when_killed(
    bench: Bench, tmp_path: Path, point: str, nth: int
) -> None:
    every(bench, missed="all")

    def run() -> None:
        for _ in range(4):
            bench.turn(MINUTE)
            bench.store.flush()

    assert killed_at(bench, tmp_path, point, nth, run)
    bench.turn(DAY // 24)
    assert runs(bench) == list(range(1, len(runs(bench)) + 1))
    assert len(runs(bench)) >= 60


@pytest.mark.parametrize("point", ["recurring_saved", "recurring_defined", "recurring_run_put"])
def test_definition_is_complete_when_killed_during_put_every(
    bench: Bench, tmp_path: Path, point: str
) -> None:
    assert killed_at(bench, tmp_path, point, 1, lambda: every(bench))
    assert [one.name for one in bench.store.recurring()] == ["beat"]
    bench.turn()
    bench.turn(MINUTE)
    assert runs(bench) == [1]


@pytest.mark.parametrize("point", ["recurring_saved", "recurring_ended"])
def test_end_is_complete_when_killed_during_cancel_every(
    bench: Bench, tmp_path: Path, point: str
) -> None:
    every(bench)
    bench.store.flush()
    assert killed_at(bench, tmp_path, point, 1, lambda: bench.store.cancel_every("beat"))
    assert bench.store.recurring() == []
    bench.turn(DAY)
    assert bench.bodies() == []
    assert bench.store.cancel_every("beat") is False


def test_each_run_is_delivered_once_when_side_files_are_lost(bench: Bench) -> None:
    every(bench, missed="all")
    bench.turn(MINUTE)
    before = (bench.root / RECURRING_FILE).read_bytes()
    for _ in range(3):
        bench.turn(MINUTE)
    bench.close()
    shutil.rmtree(bench.root / "timerstore")
    (bench.root / RECURRING_FILE).write_bytes(before)  # like a backup: older than the log
    bench.open()
    bench.turn(MINUTE)
    assert runs(bench) == [1, 2, 3, 4, 5]


def test_damaged_file_is_a_corrupt_error(bench: Bench) -> None:
    every(bench)
    bench.close()
    path = bench.root / RECURRING_FILE
    whole = path.read_bytes()
    for damaged in (whole[:-40], b"{}", b"[]", b"\xff", whole.replace(b'"one"', b'"two"')):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match="timerstoreRecurring"):
            timerstore.open(bench.root, bench.config, clock=bench.clock, threads=False)
    path.write_bytes(whole)
    bench.open()
    assert len(bench.store.recurring()) == 1


def test_file_of_a_newer_format_changes_nothing(bench: Bench) -> None:
    """The advice for damage is to remove the file, which would end every recurring message."""
    every(bench)
    bench.close()
    path = bench.root / RECURRING_FILE
    whole = path.read_bytes()
    table = loads(without_checksum(whole)) | {"format": recurring_json.FORMAT + 1}
    path.write_bytes(with_checksum(one_line(table)))
    before = file_bytes(bench.root)
    with pytest.raises(FormatVersionError, match=r"Recurring\.json; wanted 1; got 2") as error:
        timerstore.open(bench.root, bench.config, clock=bench.clock, threads=False)
    assert "no file" not in str(error.value)
    with (
        timerstore.open(bench.root, read_only=True) as reader,
        pytest.raises(FormatVersionError, match=r"Recurring\.json; wanted 1; got 2"),
    ):
        reader.recurring()
    assert file_bytes(bench.root) == before
    path.write_bytes(whole)
    bench.open()
    assert len(bench.store.recurring()) == 1


def test_full_disk_defines_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise FullError("disk")

    disk = inside(bench.store).disk
    monkeypatch.setattr(disk, "write_small", full)
    with pytest.raises(FullError):
        every(bench)
    monkeypatch.undo()
    assert bench.store.recurring() == []
    every(bench)
    bench.turn(MINUTE)
    assert runs(bench) == [1]


def test_full_disk_delays_the_first_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition exists: an error would make the caller define it twice."""

    def full(*_: Any) -> None:
        raise FullError("disk")

    monkeypatch.setattr(putting_of(inside(bench.store).recurring), "append_own", full)
    made = every(bench, name=None)
    assert (made.run_count, made.next_ms) == (0, None)
    monkeypatch.undo()
    assert [one.name for one in bench.store.recurring()] == [made.name]
    bench.turn()
    bench.turn(MINUTE)
    assert runs(bench) == [1]


@pytest.mark.parametrize("what", ["the file", "the run", "runs before it"])
def test_full_disk_keeps_the_definition_that_is_cancelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The definition stays, and can be cancelled again."""

    def full(*_: Any) -> None:
        raise FullError("disk")

    every(bench)
    bench.turn(MINUTE)
    parts = inside(bench.store)
    component, name = {
        "the file": (parts.disk, "write_small"),
        "the run": (parts.canceller, "cancel"),
        "runs before it": (parts.pending, "read"),
    }[what]
    with monkeypatch.context() as patched:
        patched.setattr(component, name, full)
        with pytest.raises(FullError):
            bench.store.cancel_every("beat")
    assert [one.name for one in bench.store.recurring()] == ["beat"]
    shutil.copytree(bench.root, bench.root.parent / "killed")
    killed = Bench(bench.root.parent / "killed", bench.config, bench.clock.now_ms)
    assert [one.name for one in killed.store.recurring()] == ["beat"]
    killed.close()
    bench.turn(MINUTE)
    bench.turn(MINUTE)
    assert runs(bench) == [1, 2, 3]
    assert bench.store.cancel_every("beat")
    assert bench.store.recurring() == []
    assert list(bench.store.pending()) == []
    assert not bench.store.cancel_every("beat")
    bench.reopen()
    assert bench.store.recurring() == []


def test_full_disk_after_the_end_raises_no_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is durable; the definition can be removed from the file later."""
    every(bench)
    disk = inside(bench.store).disk
    write_small, written = disk.write_small, []

    def full(path: Path, data: bytes) -> None:
        if written:
            raise FullError("disk")
        written.append(path)
        write_small(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_small", full)
        assert bench.store.cancel_every("beat")
    assert bench.store.recurring() == []
    assert list(bench.store.pending()) == []
    bench.reopen()
    assert bench.store.recurring() == []
    assert recurring_json.read((bench.root / RECURRING_FILE).read_bytes()) == []
