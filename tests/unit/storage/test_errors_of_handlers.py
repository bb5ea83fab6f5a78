"""An OSError of the program's own signal handler is no error of the store."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.file import File


class JobTimeoutError(TimeoutError):
    """As a signal handler raises it: an OSError without a number."""


@pytest.fixture
def file(tmp_path: Path) -> File:
    return Disk().open(tmp_path / "f", create=True)


FILE_CALLS: dict[str, tuple[Any, Callable[[File], Any]]] = {
    "pwrite": (os, lambda f: f.write(b"x", 0)),
    "pread": (os, lambda f: f.read(0, 1)),
    "preadv": (os, lambda f: f.read_into(memoryview(bytearray(1)), 0)),
    "fdatasync": (os, lambda f: f.sync()),
    "fstat": (os, lambda f: f.size()),
    "ftruncate": (os, lambda f: f.resize(1)),
    "posix_fallocate": (os, lambda f: f.reserve(0, 1)),
    "lseek": (os, lambda f: (f.next_data(0), f.first_hole(0))),
    "lockf": (fcntl, lambda f: f.lock_first_byte()),
    "fcntl": (fcntl, lambda f: f.first_byte_holder()),
}
DISK_CALLS: dict[str, tuple[Any, Callable[[Disk, Path], Any]]] = {
    "open": (os, lambda d, p: d.open(p)),
    "stat": (os, lambda d, p: d.exists(p)),
    "listdir": (os, lambda d, p: d.list(p.parent)),
    "mkdir": (os, lambda d, p: d.make_directory(p.parent / "new")),
    "unlink": (os, lambda d, p: d.remove(p)),
    "rename": (os, lambda d, p: d.rename(p, p)),
    "rmdir": (os, lambda d, p: d.remove_empty(p.parent)),
    "fsync": (os, lambda d, p: d.sync_directory(p.parent)),
}


def interrupt(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, kind: Any) -> None:
    def call(*_given: Any, **_named: Any) -> Any:
        raise kind

    monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize("kind", [JobTimeoutError, InterruptedError, FileNotFoundError])
@pytest.mark.parametrize("name", FILE_CALLS)
def test_error_of_a_handler_passes_through_a_file(
    file: File, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[OSError]
) -> None:
    module, call = FILE_CALLS[name]
    with monkeypatch.context() as patched:
        interrupt(patched, module, name, kind)
        with pytest.raises(kind):
            call(file)


@pytest.mark.parametrize("kind", [JobTimeoutError, FileNotFoundError, FileExistsError])
@pytest.mark.parametrize("name", DISK_CALLS)
def test_error_of_a_handler_passes_through_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[OSError]
) -> None:
    module, call = DISK_CALLS[name]
    path = tmp_path / "f"
    path.touch()
    with monkeypatch.context() as patched:
        interrupt(patched, module, name, kind)
        with pytest.raises(kind):
            call(Disk(), path)
