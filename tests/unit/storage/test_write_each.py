"""File.write_each: many small writes in one call, each where it belongs, or an error."""

import os
from pathlib import Path

import pytest

from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import FailedError, FullError


def test_pieces_are_written_at_their_offsets(tmp_path: Path) -> None:
    file = Disk().open(tmp_path / "f", create=True)
    file.write(b"." * 40, 0)
    file.write_each(memoryview(b"aaabbbccc"), 3, [30, 2, 38])
    assert file.read(0, file.size()) == b"..bbb" + b"." * 25 + b"aaa" + b"." * 5 + b"ccc"
    file.write_each(memoryview(b""), 3, [])
    assert file.size() == 41


def test_read_only_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"kept")
    file = File(path, os.open(path, os.O_RDONLY))
    with pytest.raises(FailedError, match=r"write: .* \(EBADF\)") as raised:
        file.write_each(memoryview(b"ab"), 1, [0, 1])
    assert raised.value.where == path
    assert path.read_bytes() == b"kept"


def test_full_disk_raises_full_error(tmp_path: Path) -> None:
    full = Path("/dev/full")
    file = File(full, os.open(full, os.O_WRONLY))
    with pytest.raises(FullError, match=r"\(ENOSPC\)"):
        file.write_each(memoryview(b"ab"), 1, [0, 1])
