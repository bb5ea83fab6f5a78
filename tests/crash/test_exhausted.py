"""Test that a lack of descriptors, memory, maps or threads raises an error and loses no message.

The limits are set in forked children, so that they affect no other test.
"""

import mmap
import os
import resource
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import timerstore
from tests.crash.any_line import ENDS_CALL, Lines
from tests.crash.scenes import SCENES, config_of
from tests.crash.story import Story
from tests.support.amounts import sample
from tests.support.inside.methods import (
    CHECKPOINT_TAKE,
    CHECKPOINT_WRITE,
    ENGINE_BUILD_READING,
    STORE_OWN,
    UNDOES,
    Attribute,
)
from timerstore import FailedError

_FEW = ("open", "put", "roll", "recover")
_OPENS_NOTHING = ("look",)  # descriptors that the child itself needs
_CHILD_S = 60
_MAPS_MAX = Path("/proc/sys/vm/max_map_count")


def in_child(work: Callable[[], Any]) -> str:
    """Call a function in a forked child. Return its result, or the way it died."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.alarm(_CHILD_S)
        said = "done"
        try:
            said = str(work())
        except BaseException:  # noqa: BLE001 - reported to the parent
            said = traceback.format_exc()
        finally:
            with suppress(OSError):
                os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    return said if not status else f"died: {status:#x}"


def play(
    folder: Path, name: str, limited: Callable[[], Any], allowed: tuple[type[Exception], ...] = ()
) -> str:
    """Run a scene within a limit, then check without it. Return the number of errors."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    scene = SCENES[name]
    story = Story(folder, config_of(scene), allowed)
    scene.before(story)
    assert not story.errors
    with limited():
        scene.during(story)
    found = len(story.errors)
    story.drop()
    scene.checked(story)
    return f"errors {found}"


@contextmanager
def descriptors(more: int) -> Iterator[None]:
    """Limit the number of descriptors that can still be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    fillers = [os.open("/dev/null", os.O_RDONLY)]
    while fillers[-1] < used:  # no free number remains below
        fillers.append(os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in fillers:
            os.close(one)


@pytest.mark.parametrize(
    "name", sample(["recover", "open", "roll"], "scenes without memory or descriptors")
)
def test_lack_of_descriptors_loses_no_message(name: str, tmp_path: Path) -> None:
    _run_out(name, tmp_path, descriptors, (0, 1, 3, 6, 10, 13, 16, 20))


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENES)
def test_lack_of_descriptors_loses_no_message_at_each_limit(name: str, tmp_path: Path) -> None:
    _run_out(name, tmp_path, descriptors, range(40), is_met=name not in _OPENS_NOTHING)


def _run_out(
    name: str,
    tmp_path: Path,
    limit: Callable[[int], AbstractContextManager[None]],
    amounts: Iterable[int],
    *,
    is_met: bool = True,
) -> None:
    """Run a scene with each limit, in a process of its own."""
    met = 0
    for more in amounts:
        said = in_child(
            lambda more=more: play(tmp_path / "s", name, lambda: limit(more), (MemoryError,))  # type: ignore[misc]
        )
        assert said.startswith("errors "), f"{more} more: {said}"
        met += said != "errors 0"
    assert met or not is_met, "the limit was never met"


@contextmanager
def address_space(more_kib: int) -> Iterator[None]:
    """Limit the memory that can still be allocated."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + more_kib * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("name", sample(_FEW, "scenes without memory or descriptors"))
def test_lack_of_memory_loses_no_message(name: str, tmp_path: Path) -> None:
    _run_out(name, tmp_path, address_space, (0, 12, 100, 300, 700))


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENES)
def test_lack_of_memory_loses_no_message_at_each_page(name: str, tmp_path: Path) -> None:
    _run_out(
        name, tmp_path, address_space, (*range(0, 400, 4), *range(400, 4000, 100)), is_met=False
    )


@contextmanager
def file_size(limit_kib: int) -> Iterator[None]:
    """Limit the size of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_kib * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", sample(_FEW, "scenes without memory or descriptors"))
def test_file_size_limit_loses_no_message(name: str, tmp_path: Path) -> None:
    _run_out(name, tmp_path, file_size, (0, 1, 2, 4), is_met=name != "put")


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENES)
def test_file_size_limit_loses_no_message_at_each_size(name: str, tmp_path: Path) -> None:
    _run_out(name, tmp_path, file_size, range(40), is_met=False)


def test_lines_without_memory_errors_exist() -> None:
    sources = [one.read_text() for one in Path(timerstore.__file__).parent.rglob("*.py")]
    for text in (ENDS_CALL, *(f"def {name}(" for name in UNDOES)):
        assert any(text in one for one in sources), text


def _at_line(tmp_path: Path, name: str, nth: int) -> str:
    """Run out of memory at the n-th line of the engine. Return the number of lines that ran."""
    lines = Lines(nth)
    said = play(tmp_path / "s", name, lines.watched, (MemoryError,))
    return f"{said} lines {lines.count}"


@pytest.mark.more
@pytest.mark.parametrize("name", sample(_FEW, "scenes without memory or descriptors"))
def test_memory_error_at_some_lines_loses_no_message(name: str, tmp_path: Path) -> None:
    _lines_of(name, tmp_path, 12)


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENES)
def test_memory_error_at_many_lines_loses_no_message(name: str, tmp_path: Path) -> None:
    _lines_of(name, tmp_path, 1500)


def _lines_of(name: str, tmp_path: Path, samples: int) -> None:
    said = in_child(lambda: _at_line(tmp_path, name, 0))
    assert said.startswith("errors 0 lines "), said
    count = int(said.split()[-1])
    step = max(1, count // samples) | 1
    for nth in range(1 + Random(name).randrange(step), count, step):
        said = in_child(lambda nth=nth: _at_line(tmp_path, name, nth))  # type: ignore[misc]
        assert said.startswith("errors "), f"line {nth} of {count}: {said}"


def _few_maps(left: int) -> list[mmap.mmap]:
    """Take all memory maps that a process may have, except for some."""
    taken = []
    try:
        while True:
            one = mmap.mmap(-1, 2 * mmap.PAGESIZE)
            # different protection keeps the kernel from merging it with its neighbours
            one.madvise(mmap.MADV_DONTFORK, 0, mmap.PAGESIZE)
            taken.append(one)
    except (OSError, MemoryError):
        if left:
            del taken[-left:]
    return taken


@contextmanager
def maps(left: int) -> Iterator[None]:
    """Limit the number of memory maps that can still be made."""
    taken = _few_maps(left)
    try:
        yield
    finally:
        for one in taken:
            one.close()


@pytest.mark.more
@pytest.mark.parametrize("name", ["recover"])
def test_lack_of_maps_loses_no_message(name: str, tmp_path: Path) -> None:
    if int(_MAPS_MAX.read_text()) > 200_000:
        pytest.skip("NOT RUN: a process may have too many maps here")
    _run_out(name, tmp_path, maps, (0, 1, 3))


@pytest.mark.parametrize("nth", sample(range(1, 10), "nth calls"))
def test_thread_that_cannot_be_started_raises_error(
    nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with timerstore.open(tmp_path / "s", threads=False) as store:
        store.put("t", b"body", queue_id=0)
    start, count = threading.Thread.start, 0

    def refused(self: threading.Thread) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    before = set(threading.enumerate())
    with pytest.raises(FailedError, match="thread"):
        timerstore.open(tmp_path / "s")
    assert set(threading.enumerate()) <= before
    monkeypatch.undo()
    with timerstore.open(tmp_path / "s") as store:
        assert [m.body for m in store.pull("t", 0, 0, wait=5.0).messages] == [b"body"]


def test_sync_is_repeated_after_a_keyboard_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that the interrupted sync did not reach are synced before a later put counts."""
    store = timerstore.open(tmp_path / "s", threads=False)
    store.put("t", b"1", flush="async")
    due: set[int] = set()
    synced: set[int] = set()

    def interrupted(fd: int) -> None:
        due.add(os.fstat(fd).st_ino)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put("t", b"2")
    sync = os.fdatasync

    def noted(fd: int) -> None:
        sync(fd)
        synced.add(os.fstat(fd).st_ino)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", noted)
        store.put("t", b"3")
    assert due
    assert due <= synced
    store.close()
    with timerstore.open(tmp_path / "s", threads=False) as store:
        assert [one.body for one in store.pull("t", 0, 0).messages] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("where", [CHECKPOINT_TAKE, CHECKPOINT_WRITE], ids=["take", "write"])
def test_memory_error_during_checkpoint_ends_the_store(
    where: Attribute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the copied data counts as clean, and the next checkpoint leaves it out."""
    store = timerstore.open(tmp_path / "s", threads=False)
    store.put("t", b"1", delay=100.0)
    before = where.value

    def cut_off(*given: Any, **named: Any) -> None:
        before(*given, **named)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(*where, cut_off)
        with pytest.raises(MemoryError):
            store.flush()
    with pytest.raises(FailedError, match="MemoryError"):
        store.flush()
    store.close()
    with timerstore.open(tmp_path / "s", threads=False) as store:
        assert len(list(store.pending())) == 1


@pytest.mark.parametrize("where", [ENGINE_BUILD_READING, STORE_OWN])
def test_interrupted_opening_releases_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    def cut_off(*_given: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(*where, cut_off)
        with pytest.raises(MemoryError):
            timerstore.open(tmp_path / "s", threads=False)
    timerstore.open(tmp_path / "s", threads=False).close()
