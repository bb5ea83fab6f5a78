"""File.check_in_place: a file that lost its name or its length is an error, at a small price."""

import errno
import os
import subprocess
import sys
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


_WITHOUT_STATX = """
import ctypes, os, platform, struct, sys
from pathlib import Path
from timerstore._engine.storage.disk import Disk

file = Disk().open(Path(sys.argv[1]), create=True)
number = {"x86_64": 332, "aarch64": 291}[platform.machine()]
load, equal, answer = 0x20, 0x15, 0x06
steps = [(load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, 0x50000 | int(sys.argv[2])),
         (answer, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *one) for one in steps)

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, ctypes.byref(Program(len(steps), code)), 0, 0) == 0  # the filter
assert libc.syscall(number, 0, None, 0, 0, None) == -1
assert ctypes.get_errno() == int(sys.argv[2])
file.check_in_place(0)
print("in place")
os.unlink(sys.argv[1])
file.check_in_place(0)
"""


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_file_is_checked_where_the_call_is_missing_or_forbidden(code: int, tmp_path: Path) -> None:
    """Old kernels lack `statx`, and old container runtimes forbid it."""
    command = [sys.executable, "-c", _WITHOUT_STATX, str(tmp_path / "f"), str(code)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "FailedError: the file was removed or replaced" in ended.stderr.splitlines()[-1]
    assert ended.stdout == "in place\n"
