"""Record the durability of this process: replace the system's file calls by recorded ones.

The replaced calls are those of `os`, and those of the compiled disk layer. Syncs are recorded and
not done, so that tests stay fast.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import timerstore._engine.storage.file
from tests.support.durable.recorder import Barrier, Recorder, name_of
from timerstore._engine.base.native import lib


def _place(path: Any, dir_fd: int | None) -> str:
    folder = Path.cwd() if dir_fd is None else Path(name_of(dir_fd))
    return str(folder / os.fspath(path))


@contextmanager
def recording(top: Path, barriers: Sequence[Barrier] = ()) -> Iterator[Recorder]:
    """Record every sync of this process while inside."""
    recorder = Recorder(top, barriers)
    with pytest.MonkeyPatch.context() as patch:
        _replace_syncs(patch, recorder)
        _replace_names(patch, recorder)
        _replace_writes(patch, recorder)
        try:
            yield recorder
        finally:
            recorder.close()


def _replace_syncs(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    patch.setattr(os, "fsync", recorder.synced)
    patch.setattr(os, "fdatasync", recorder.synced)


def _replace_names(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    unlink, rmdir, rename, link = os.unlink, os.rmdir, os.rename, os.link

    def removing(act: str, call: Callable[..., None]) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            place = _place(path, dir_fd)
            recorder.reached(act, place)
            with recorder.going(place):
                call(path, dir_fd=dir_fd)

        return remove

    def renaming(
        old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        place, before = _place(new, dst_dir_fd), _place(old, src_dir_fd)
        if Path(before).is_dir():
            recorder.reached("rename_folder", before)
        else:
            recorder.reached("rename", place)
        with recorder.going(place):
            rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def linking(old: Any, new: Any, **how: Any) -> None:
        recorder.reached("link", _place(new, how.get("dst_dir_fd")))
        link(old, new, **how)

    patch.setattr(os, "unlink", removing("unlink", unlink))
    patch.setattr(os, "rmdir", removing("rmdir", rmdir))
    patch.setattr(os, "rename", renaming)
    patch.setattr(os, "replace", renaming)
    patch.setattr(os, "link", linking)


def _replace_writes(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    pwrite, ftruncate = os.pwrite, os.ftruncate

    def writing(fd: int, data: Any, offset: int, /) -> int:
        place = name_of(fd)
        raw = memoryview(data).cast("B")
        if os.pread(fd, len(raw), offset) != raw:  # the same bytes again change nothing
            recorder.writing(place, [offset])
        how = recorder.meets("write", place)
        if how is None:
            done = pwrite(fd, data, offset)
            recorder.wrote(fd, offset, done)
            return done
        if how == "torn":
            part = memoryview(data).cast("B")
            pwrite(fd, part[: len(part) // 2], offset)
        code = errno.ENOSPC if how == "full" else errno.EIO
        raise OSError(code, os.strerror(code))

    def resizing(fd: int, size: int, /) -> None:
        recorder.reached("resize", name_of(fd))
        ftruncate(fd, size)

    patch.setattr(os, "pwrite", writing)
    patch.setattr(os, "ftruncate", resizing)
    patch.setattr(timerstore._engine.storage.file, "lib", _NativeCalls(recorder))


class _NativeCalls:
    """The compiled calls of the disk layer, each recorded as an act."""

    _ACTS: ClassVar[dict[str, str]] = {
        "ts_write_each": "write",
        "ts_zero_range": "zero",
        "ts_punch": "punch",
    }

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        call = getattr(lib, name)
        act = self._ACTS.get(name)
        if act is None:
            return call

        def recorded(fd: int, *arguments: Any) -> int:
            self._recorder.reached(act, name_of(fd))
            return int(call(fd, *arguments))

        return self._write_each if act == "write" else recorded

    def _write_each(self, fd: int, pieces: Any, size: int, count: int, offsets: Any) -> int:
        place, recorder = name_of(fd), self._recorder
        recorder.writing(place, list(offsets[0:count]))
        how = recorder.meets("write", place)
        done = count if how is None else count // 2 if how == "torn" else 0
        status = int(lib.ts_write_each(fd, pieces, size, done, offsets))
        for at in range(done):
            recorder.wrote(fd, offsets[at], size)
        if how is None:
            return status
        return -(errno.ENOSPC if how == "full" else errno.EIO)
