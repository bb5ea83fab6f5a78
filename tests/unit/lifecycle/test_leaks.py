"""P20: what a store took it gives back when it is closed, at once, not when garbage is collected.

A load of hours is test_retention_soak.py's.
"""

import ctypes
import gc
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import timerstore
from tests.support.bench import small
from timerstore import TimerStoreError


class Taken(NamedTuple):
    """The descriptors and maps that the process has of a folder, and its threads."""

    descriptors: list[str]
    maps: list[str]
    threads: list[str]


_earlier: set[threading.Thread] = set()
"""Threads of earlier tests, which may end at any time."""


@pytest.fixture(autouse=True)
def _threads_of_earlier_tests() -> None:
    _earlier.clear()
    _earlier.update(threading.enumerate())


def taken(folder: Path) -> Taken:
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Taken(
        sorted(link for link in links if link.startswith(str(folder))),
        [line for line in lines if str(folder) in line],
        [one.name for one in threading.enumerate() if one not in _earlier],
    )


@contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def work(root: Path, *, threads: bool = True) -> None:
    """Make all calls that open, map or start something."""
    with timerstore.open(root, small(), threads=threads) as store:
        for n in range(20):
            store.put("t", b"x" * 100, keys=(f"k{n}",), delay=0.001 * n if n % 2 else None)
        store.cancel(store.put("t", b"y", delay=5))
        store.pull("t", 0, 0, wait=0.01)
        store.query("t", "k1")
        list(store.pending())
        store.flush()
        with store.consumer("t", "g", wait=0) as consumer:
            consumer.poll(2)
            consumer.commit()
        store.backup(root.with_name(f"{root.name}-saved"))
        assert store.verify().clean


@pytest.mark.parametrize("threads", [True, False])
def test_closed_store_has_no_open_file(threads: bool, tmp_path: Path) -> None:
    before = taken(tmp_path)
    with no_collection():
        for _ in range(2):  # made, and opened again
            work(tmp_path / "store", threads=threads)
            assert taken(tmp_path) == before


def test_recovery_after_a_kill_leaves_no_open_file(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        store = timerstore.open(tmp_path / "store", small(), threads=False)
        store.put("t", b"x", delay=3)
        os._exit(0)
    os.waitpid(child, 0)
    before = taken(tmp_path)
    with no_collection():
        work(tmp_path / "store")
        assert taken(tmp_path) == before


@pytest.mark.parametrize("name", ["commitlog", "timerlog", "timerwheel", "timerstore/watermark"])
def test_failed_opening_leaves_no_open_file(name: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    work(root)
    path = root / name
    if path.is_dir():
        (path / "stranger").write_bytes(b"x")
    else:
        path.rename(tmp_path / "aside")
        path.mkdir()
    before = taken(tmp_path)
    with pytest.raises(TimerStoreError):
        timerstore.open(root, small())
    gc.collect()  # an error refers to the frames it passed
    assert taken(tmp_path) == before
    if path.is_dir() and (path / "stranger").exists():
        (path / "stranger").unlink()
    else:
        path.rmdir()
        (tmp_path / "aside").rename(path)
    timerstore.open(root, small()).close()


def test_memory_and_objects_do_not_grow_with_openings(
    tmp_path: Path,
) -> None:
    trim = ctypes.CDLL(None).malloc_trim  # return freed memory: otherwise arenas of threads count

    def now(count: int) -> tuple[int, int, int]:
        for k in range(count):
            work(tmp_path / "store", threads=k % 2 == 0)
            shutil.rmtree(tmp_path / "store")
            shutil.rmtree(tmp_path / "store-saved")
        gc.collect()
        trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(gc.get_objects()), maps, pages * 4096

    now(4)  # kept permanently
    objects, maps, memory = now(2)
    later = now(8)
    assert later[0] - objects < 100
    assert later[1] - maps < 12
    assert later[2] - memory < 3 << 20
