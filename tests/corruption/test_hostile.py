"""T-HOST (promises.md K): directories that somebody prepared are refused with a clear error, or do
no harm; opening them neither hangs nor follows a link out of the store.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerstore
from tests.corruption.answers import ask
from tests.corruption.golden import CONFIG, NOW_MS, Golden, make
from timerstore import TimerStoreError, verify_directory
from timerstore.testing import ManualClock

LOG = "commitlog/00000000000000000000"
FILES = (
    LOG, "consumequeue/orders/0/00000000000000000000", "timerlog/00000000000000001024",
    "timerwheel", "timerstore/watermark", "timerstore/state", "timerstore/counts",
    "timerstore/staging", "timerstore/index", "config/topics.json", "config/consumerOffset.json",
    "lock",
)  # fmt: skip
FOLDERS = ("commitlog", "consumequeue/orders/0", "consumequeue/orders", "consumequeue", "timerlog",
           "timerstore", "config", "index")  # fmt: skip


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make(tmp_path_factory.mktemp("golden") / "store", is_closed=True)


@pytest.fixture
def root(golden: Golden, tmp_path: Path) -> Path:
    golden.write(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A plain open of a FIFO waits for ever: then the alarm ends the test."""

    def rang(_number: int, _frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, rang)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _open(root: Path) -> None:
    clock = ManualClock(NOW_MS)
    timerstore.open(root, CONFIG, clock=clock, threads=False).close()


def _refused_or_unchanged(root: Path, wanted: list[object], outside: dict[Path, bytes]) -> str:
    try:
        got = list(ask(root))
    except TimerStoreError as error:
        said = str(error)
    else:
        assert got == wanted
        said = ""
    for path, data in outside.items():
        assert path.read_bytes() == data, f"{path}, outside of the store, was written to"
    return said


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.slow
@pytest.mark.parametrize("put", [_fifo, _socket, Path.mkdir], ids=["fifo", "socket", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_refused_in_place_of_one(
    name: str, put: Callable[[Path], None], root: Path, golden: Golden, tmp_path: Path
) -> None:
    golden.write(tmp_path / "whole")
    wanted: list[object] = list(ask(tmp_path / "whole"))
    (root / name).unlink()
    put(root / name)
    said = _refused_or_unchanged(root, wanted, {})
    assert not said or str(root) in said
    assert (root / name).exists()
    assert not said or name != LOG or "0000" in said
    verify_directory(root)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_link_is_not_followed(name: str, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (root / name).rename(outside)
    (root / name).symlink_to(outside)
    before = outside.read_bytes()
    with pytest.raises(TimerStoreError) as caught:
        _open(root)
    assert str(root) in str(caught.value)
    assert outside.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_a_link_is_not_followed(name: str, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (root / name).rename(outside)
    (root / name).symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(TimerStoreError, match="link") as caught:
        _open(root)
    assert name in str(caught.value)
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", FOLDERS)
def test_a_file_in_place_of_a_folder_is_refused(name: str, root: Path, tmp_path: Path) -> None:
    (root / name).rename(tmp_path / "aside")
    (root / name).write_bytes(b"no folder")
    try:
        _open(root)
    except TimerStoreError as error:
        assert name.split("/", maxsplit=1)[0] in str(error)  # noqa: PT017 - derived ones may be made anew
    else:
        assert name.startswith(("consumequeue/", "index"))


@pytest.mark.parametrize(
    "name",
    [LOG, "timerlog/00000000000000001024", "timerwheel", "timerstore/watermark",
     "timerstore/counts", "config/topics.json"],
)  # fmt: skip
def test_a_huge_sparse_file_costs_neither_time_nor_memory(name: str, root: Path) -> None:
    with (root / name).open("r+b") as file:
        file.truncate(1 << 40)
    begun = time.monotonic()
    with pytest.raises(TimerStoreError) as caught:
        _open(root)
    assert str(root) in str(caught.value)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "name",
    ["..x", "a b", "%2e%2e", "TOPIC\u202e", "x" * 250, "new\nline", "-rf", "COM1", "Orders",
     b"not-utf-8-\xff\xfe"],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("folder", ["consumequeue", "commitlog", "index", "config", ""])
def test_odd_names_are_passed_over_or_refused(folder: str, name: str | bytes, root: Path) -> None:
    raw = name if isinstance(name, bytes) else name.encode()
    (root / folder / os.fsdecode(raw) / "0").mkdir(parents=True)
    try:
        _open(root)
    except TimerStoreError as error:
        assert folder in str(error)  # noqa: PT017 - either is right
    verify_directory(root)
