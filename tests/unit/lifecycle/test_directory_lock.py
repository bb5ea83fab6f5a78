"""Promises P16 and P17: one owner of a directory, although record locks are dropped by any close,
lock files are replaced, and forked children outlive their parent.
"""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW, small
from tests.support.inside import DIRECTORY_HELD_LOCK, GUARD_LOCK, Attribute, inside
from tests.support.programs import end_child, run_child
from timerstore import FailedError, LockedError, TimerStore
from timerstore._engine.storage import disk as disk_module
from timerstore.testing import ManualClock

CHILD_S = 20

OPENER = """
import sys, timerstore
from tests.support.bench import small
try:
    timerstore.open(sys.argv[1], small(), threads=False).close()
except timerstore.LockedError as error:
    print("locked", error)
else:
    print("opened")
"""
BROKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _running(text: str, argument: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-c", text, str(argument)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield child
    finally:
        child.communicate()


def _opened_by_another(root: Path) -> str:
    with _running(OPENER, root) as child:
        assert child.stdout is not None
        return child.stdout.read().decode()


def _said(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[TimerStore]:
    one = timerstore.open(root, small(), clock=ManualClock(NOW), threads=False)
    yield one
    if inside(one).log.failed is not None:
        one.close()
    else:
        one.close()
        timerstore.open(root, small(), threads=False).close()


# --- the record lock on `lock`, which a broker takes ----------------------------------------------


def test_closing_the_lock_file_admits_no_other_store(store: TimerStore, root: Path) -> None:
    (root / "lock").read_bytes()  # drops the record lock of this process
    assert "locked" in _opened_by_another(root)


def test_dropped_record_lock_is_taken_again_at_the_next_checkpoint(
    store: TimerStore, root: Path
) -> None:
    with _running(BROKER, root / "lock") as broker:
        assert _said(broker) == "refused"
    (root / "lock").read_bytes()
    with _running(BROKER, root / "lock") as broker:
        assert _said(broker) == "locked"  # for that reason
    store.put("t", b"x")
    store.flush()
    with _running(BROKER, root / "lock") as broker:
        assert _said(broker) == "refused"


def test_broker_that_takes_the_lock_fails_the_store(store: TimerStore, root: Path) -> None:
    (root / "lock").read_bytes()
    with _running(BROKER, root / "lock") as broker:
        assert _said(broker) == "locked"
        store.put("t", b"x")
        with pytest.raises(FailedError, match="another process took") as caught:
            store.flush()
        assert str(root / "lock") in str(caught.value)
        with pytest.raises(FailedError, match="reopened"):
            store.put("t", b"y")


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_replaced_lock_file_fails_the_store(way: str, store: TimerStore, root: Path) -> None:
    (root / "lock").unlink()
    if way == "replaced":
        (root / "lock").write_bytes(b"lock")
    assert "locked" in _opened_by_another(root)  # the directory itself is locked, too
    (root / "lock").unlink(missing_ok=True)
    store.put("t", b"x")
    with pytest.raises(FailedError, match="removed or replaced"):
        store.flush()


def test_lock_is_released_when_a_second_store_cannot_be_locked(root: Path) -> None:
    """A rejected second opener closes descriptors, and must not drop a lock with them."""
    with timerstore.open(root, small(), threads=False) as store:
        for _ in range(3):
            with pytest.raises(LockedError, match="this process"):
                timerstore.open(root, small(), threads=False)
        assert not fcntl_is_free(root / "lock")
        store.put("t", b"x")


def fcntl_is_free(path: Path) -> bool:
    def take() -> bool:
        with path.open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError:
                return False
            return True

    return run_child(take, patience_s=CHILD_S) == 0


# --- forked children ------------------------------------------------------------------------------


def test_forked_child_can_open_only_after_its_parent_closes(root: Path) -> None:
    store = timerstore.open(root, small(), threads=False)
    store.put("t", b"x")
    is_closed, tell_closed = os.pipe()
    is_refused, tell_refused = os.pipe()

    def opens_twice() -> bool:
        os.close(tell_closed)
        with pytest.raises(LockedError, match="another process"):
            timerstore.open(root, small(), threads=False)
        os.write(tell_refused, b"1")
        os.read(is_closed, 1)
        timerstore.open(root, small(), threads=False).close()
        return True

    child = os.fork()
    if child == 0:
        end_child(opens_twice, patience_s=CHILD_S)
    os.close(tell_refused)
    assert os.read(is_refused, 1)
    store.close()
    os.close(tell_closed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(is_closed)
    os.close(is_refused)


FORKER = """
import os, sys, time, timerstore
from tests.support.bench import small
store = timerstore.open(sys.argv[1], small(), threads=False)
store.put("t", b"x")
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_child_of_a_killed_parent_does_not_keep_the_lock(root: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", FORKER, str(root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    child = int(_said(holder))
    try:
        with pytest.raises(LockedError, match=f"process {holder.pid}"):
            timerstore.open(root, small(), threads=False)
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives
        timerstore.open(root, small(), threads=False).close()
    finally:
        os.kill(child, signal.SIGKILL)
        assert holder.stdout is not None
        holder.stdout.close()


@pytest.mark.parametrize("lock", [DIRECTORY_HELD_LOCK, GUARD_LOCK], ids=["held", "guard"])
def test_child_forked_during_an_opening_does_not_block(lock: Attribute, tmp_path: Path) -> None:
    """The thread that holds the lock is not in the child, so no thread would release it there."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.value:
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()

    def opens() -> bool:
        timerstore.open(tmp_path / "other", small(), threads=False).close()
        return True

    try:
        assert run_child(opens, patience_s=CHILD_S) == 0
    finally:
        over.set()
        thread.join()


def test_forked_child_leaves_files_of_its_parent_unchanged(store: TimerStore, root: Path) -> None:
    """Everything that the child inherited is closed, collected and written at its exit."""
    store.put("t", b"x", delay=5)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    def exits() -> bool:
        sys.stdout.flush()
        return {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before

    assert run_child(exits, patience_s=CHILD_S) == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert not fcntl_is_free(root / "lock")
    store.put("t", b"y")
    assert store.verify().clean


# --- access by other users ---


def test_started_programs_inherit_no_descriptor(store: TimerStore, root: Path) -> None:
    store.put("t", b"x")
    here = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert any(path.is_relative_to(root) for path in here)
    listed = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], close_fds=False, check=True, capture_output=True
    )
    assert str(root).encode() not in listed.stdout


def test_store_files_are_private_to_their_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        root = tmp_path / "store"
        with timerstore.open(root, small(), threads=False) as store:
            store.put("t", b"x", keys=("k",))
            store.put("t", b"x", delay=5)
            store.flush()
            modes = {path: path.lstat().st_mode for path in (root, *root.rglob("*"))}
    finally:
        os.umask(before)
    assert len(modes) > 15
    for path, mode in modes.items():
        wanted = disk_module.DIRECTORY_MODE if stat.S_ISDIR(mode) else disk_module.FILE_MODE
        assert stat.S_IMODE(mode) == wanted, path
