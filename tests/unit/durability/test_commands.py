"""Commands: what they say is done is durable."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.durable.files import BARRIERS, CLOSED, LOCK
from tests.support.durable.recorder import Recorder
from tests.support.durable.recording import recording


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with recording(tmp_path, BARRIERS) as one:
        yield one


@pytest.fixture
def ts(capfd: pytest.CaptureFixture[str], tmp_path: Path, recorder: Recorder) -> CommandLine:
    return CommandLine(capfd, tmp_path)


DONE = (*CLOSED, LOCK)


def test_init_is_durable(ts: CommandLine, recorder: Recorder) -> None:
    ts.init("-c", "queue_segment_bytes=2000")
    recorder.check(DONE)


def test_import_is_durable(ts: CommandLine, recorder: Recorder) -> None:
    path, file = ts.init(), ts.folder / "rows.jsonl"
    file.write_text('{"topic": "a", "body": "x", "deliver_at": "2100-01-01T00:00Z"}\n' * 50)
    recorder.settle()
    long = ("-c", "delay_ms_max=31_000_000_000_000")
    assert "put 50 rows" in ts.fine("import", path, file, *long).out
    recorder.check(DONE)
    assert "already imported" in ts.fine("import", path, file, *long).out
    recorder.check(DONE)


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_export_is_durable(ts: CommandLine, recorder: Recorder, name: str) -> None:
    path = ts.init()
    ts.fine("put", path, "a", "x", "--in", "1h")
    for _ in range(2):  # the second replaces the first
        ts.fine("export", path, ts.folder / name)
        recorder.check(DONE)


def test_backup_and_restore_are_durable(ts: CommandLine, recorder: Recorder) -> None:
    path = ts.init()
    ts.fine("put", path, "a", "x", "--in", "1h")
    ts.fine("backup", path, ts.folder / "a" / "backup")
    recorder.check(DONE)
    ts.fine("restore", ts.folder / "a" / "backup", ts.folder / "b" / "store")
    recorder.check(DONE)
    ts.fine("repair", path, ts.folder / "c" / "store")
    recorder.check(DONE)
    ts.fine("convert", path, "--to", "rocketmq")
    recorder.check(DONE)
