"""A call of the system that writes or reads less than it was asked for is continued."""

import os
from pathlib import Path

import pytest

from timerstore._engine.storage.disk import Disk


def test_file_is_written_and_read_whole_when_each_call_does_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(100))
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, part, at: pwrite(fd, bytes(part)[:7], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    file = Disk().open(tmp_path / "file", create=True)
    file.write(data, 50)
    assert file.read(50, len(data)) == data
    assert file.size() == 50 + len(data)
