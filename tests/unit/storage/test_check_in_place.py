"""File.check_in_place: a file that lost its name or its length is an error, at a small price."""

import os
from pathlib import Path

import pytest

from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import FailedError


def _file(path: Path) -> File:
    file = Disk().open(path, create=True)
    file.write(b"." * 40, 0)
    return file


def test_file_in_place_is_no_error(tmp_path: Path) -> None:
    file = _file(tmp_path / "f")
    file.check_in_place()
    file.check_in_place(40)


def test_other_length_raises(tmp_path: Path) -> None:
    file = _file(tmp_path / "f")
    os.truncate(tmp_path / "f", 39)
    file.check_in_place()
    with pytest.raises(FailedError, match="size of the file changed") as raised:
        file.check_in_place(40)
    assert (raised.value.where, raised.value.wanted, raised.value.got) == (
        tmp_path / "f",
        "40 bytes",
        39,
    )


@pytest.mark.parametrize("by", ["unlink", "replace"])
def test_lost_name_raises(by: str, tmp_path: Path) -> None:
    file = _file(tmp_path / "f")
    if by == "unlink":
        (tmp_path / "f").unlink()
    else:
        (tmp_path / "other").write_bytes(b"." * 40)
        (tmp_path / "other").replace(tmp_path / "f")
    with pytest.raises(FailedError, match="removed or replaced") as raised:
        file.check_in_place(40)
    assert raised.value.where == tmp_path / "f"


def test_closed_descriptor_raises(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    os.close(fd)
    with pytest.raises(FailedError, match=r"stat: .* \(EBADF\)"):
        File(tmp_path / "f", fd).check_in_place()


def test_times_of_the_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would make its next sync slower."""
    file = _file(tmp_path / "f")
    read: list[int] = []
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: (read.append(fd), real(fd))[1])
    file.check_in_place(40)
    assert file.fd not in read
    file.status()
    assert file.fd in read
