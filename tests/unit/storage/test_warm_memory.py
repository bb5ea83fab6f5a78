"""Memory that a process keeps warm for a benchmark: its owner, size and duration."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from benchmarks import harness, warm
from benchmarks.warm import warm_memory

FORKS = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


def children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update((task / "children").read_text().split())
    return found


def kept_bytes(process: str) -> int:
    """Return the private memory of a process, without its parent's; 0 after it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:"))


def has_ended(process: str) -> bool:
    """Wait until a process has ended, and return whether it did."""
    return is_ready(os.pidfd_open(int(process)))


def is_ready(process_fd: int) -> bool:
    try:
        return bool(select.select([process_fd], [], [], 60)[0])
    finally:
        os.close(process_fd)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set the memory that is reported as free."""
    file = tmp_path / "room"
    file.write_text(str(1 << 30))
    monkeypatch.setattr(warm, "room_bytes", lambda: int(file.read_text() or 0))
    return file


@FORKS
def test_warm_memory_is_kept_until_the_run_takes_it(room: Path) -> None:
    before = children()
    with warm_memory(1 << 28, ahead=0) as page_us:
        assert page_us is not None
        assert page_us > 0
        (child,) = children() - before
        assert kept_bytes(child) >= 1 << 28
        room.write_text(str((1 << 30) - 1))
        assert has_ended(child)  # with the last piece
        assert kept_bytes(child) == 0
    assert children() == before


@FORKS
def test_warm_memory_is_free_ahead_of_the_run(room: Path) -> None:
    before = children()
    with warm_memory(1 << 28, ahead=1):  # never so much, as no room is gained here
        (child,) = children() - before
        assert kept_bytes(child) < 1 << 26
    assert children() == before


@FORKS
def test_warm_memory_ends_with_a_run_that_fails(room: Path) -> None:
    before = children()
    with pytest.raises(harness.WorkError), warm_memory(1 << 26, ahead=0):
        raise harness.WorkError("no")
    assert children() == before


@FORKS
def test_warm_memory_ends_with_its_process(room: Path) -> None:
    told, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            with warm_memory(1 << 26, ahead=0):
                os.write(tell, " ".join(children()).encode())
                signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    child = os.read(told, 64).decode()
    os.close(told)
    assert kept_bytes(child) >= 1 << 26
    ended = os.pidfd_open(int(child))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert is_ready(ended)
    assert kept_bytes(child) == 0


@FORKS
def test_missing_warm_memory_is_reported(
    room: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise OSError("no memory")

    monkeypatch.setattr(warm, "touched", none)
    before = children()
    with warm_memory(1 << 26) as page_us:
        assert page_us is None
    assert "wanted 67108864 bytes, got 0" in capfd.readouterr().err
    room.write_text("0")
    with warm_memory() as page_us:  # nothing is wanted
        assert page_us is None
    assert capfd.readouterr().err == ""
    assert children() == before


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_room_is_not_more_than_a_container_has(
    limit: str, used: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(warm, "CGROUP", tmp_path)
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    for said, wanted in (("5000000", 4000000), ("999999", 0), ("1000000", 0)):
        (tmp_path / limit).write_text(f"{said}\n")
        (tmp_path / used).write_text("1000000\n")
        assert warm.room_bytes() == wanted
    (tmp_path / limit).write_text("max\n")
    assert warm.room_bytes() > 5000000
