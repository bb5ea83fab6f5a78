"""Opening a store: locks, arguments and paths; forked children; and failed syncs."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.bench import NOW, Bench, small
from tests.support.driver import abandon
from tests.support.inside import inside
from tests.support.store_calls import CALLS
from timerstore import (
    ClosedError,
    ConfigError,
    FailedError,
    ForkedError,
    LockedError,
    TimerStoreError,
)
from timerstore.testing import ManualClock, Stepper


@pytest.mark.parametrize("clock", sample(["manual", "system"], "ends"))
@pytest.mark.parametrize("name", [*CALLS, "close"])
def test_forked_child_raises_and_parent_continues(tmp_path: Path, name: str, clock: str) -> None:
    given = ManualClock(NOW) if clock == "manual" else None
    store = timerstore.open(tmp_path, small(), clock=given, threads=False)
    store.put("t", b"before")
    store.put("t", b"before")
    call = CALLS.get(name, lambda store: store.close())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call(store)
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.put("t", b"after")
    Stepper(store).settle()
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"before", b"before", b"after"]
    assert store.verify().clean
    with pytest.raises(LockedError):
        timerstore.open(tmp_path, small(), threads=False)
    store.close()
    timerstore.open(tmp_path, small(), threads=False).close()


def test_second_open_in_the_same_process_raises(bench: Bench, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(bench.root)
    for path in (bench.root, str(bench.root), link):
        with bench.refused(LockedError, "this process"):
            timerstore.open(path, small(), threads=False)
    bench.reopen()
    bench.store.put("t", b"x")


def test_close_can_be_repeated_after_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put("t", b"x")

    def no_memory() -> None:
        raise MemoryError

    monkeypatch.setattr(inside(bench.store).puller.long_polls, "close", no_memory)
    with pytest.raises(MemoryError):
        bench.store.close()
    with pytest.raises(ClosedError):
        bench.store.put("t", b"y")
    with pytest.raises(LockedError):
        timerstore.open(bench.root, small(), threads=False)
    monkeypatch.undo()
    bench.store.close()
    bench.store.close()
    bench.open()
    assert bench.bodies() == [b"x"]


HOLDER = """
import sys, timerstore
from timerstore import StoreConfig
store = timerstore.open(sys.argv[1], StoreConfig(commit_log_segment_bytes=1 << 20, reserve_bytes=0))
store.put("t", b"of the holder")
print("open", flush=True)
sys.stdin.read()
"""


def test_second_open_raises_until_the_owner_process_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        for _ in range(2):
            with pytest.raises(LockedError, match=f"process {holder.pid}"):
                timerstore.open(root, threads=False)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with timerstore.open(root, threads=False) as store:
        Stepper(store).settle()
        assert [m.body for m in store.pull("t", 0, 0).messages] == [b"of the holder"]
        assert store.verify().clean


DAEMON = """
import os, sys, threading, timerstore
from pathlib import Path
from tests.support.bench import small
from timerstore._engine.snapshot.live_stats import look
from timerstore._engine.maintenance import verify_directory
from timerstore.testing import Stepper
closed, root, told = {0, 1, 2} - set(map(int, sys.argv[3:])), sys.argv[1], []
report = os.open(sys.argv[2], os.O_WRONLY)
for fd in closed:
    os.close(fd)

def look_at_standard(when):
    for fd in closed:
        try:
            told.append(f"{when}: {fd} is {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            pass

def print_all_the_time():
    while not is_over:
        for fd in (1, 2):
            try:
                os.write(fd, b"printed")
            except OSError:
                pass  # it is closed

is_over = []
printer = threading.Thread(target=print_all_the_time)
with timerstore.open(root, small(index_enabled=True, reserve_bytes=0)) as store:
    printer.start()
    store.put("t", b"w", flush="sync")
with timerstore.open(root, small(index_enabled=True, reserve_bytes=0), threads=False) as store:
    look_at_standard("opened")
    store.put("t", b"x", keys="k")
    store.put("t", b"y", delay=60)
    store.put("t", b"z", level=3)
    store.put_many("t", [b"m"] * 1000)
    store.flush()
    Stepper(store).settle()
    told += [f"pulled {m.body}" for m in store.pull("t", 0, 0).messages[:1]]
    store.query("t", "k")
    look_at_standard("used")
look_at_standard("closed")
with timerstore.open(root, threads=False) as store:
    Stepper(store).settle()
    store.backup(root + ".backup")
    told.append(f"clean {store.verify().clean}")
    look_at_standard("opened again")
told.append(f"at rest {verify_directory(root).clean}")
look(Path(root))
look_at_standard("looked at")
is_over.append(True)
printer.join()
os.write(report, "\\n".join(told).encode())
"""


@pytest.mark.parametrize("left_open", [(), (0, 1)])
def test_store_files_never_take_standard_descriptors(
    tmp_path: Path, left_open: tuple[int, ...]
) -> None:
    """A daemon has closed descriptors 0 to 2; no file of a store takes their numbers."""
    report = tmp_path / "report"
    report.touch()
    words = [str(tmp_path / "store"), str(report), *map(str, left_open)]
    subprocess.run(
        [sys.executable, "-c", DAEMON, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    said = [one for one in report.read_text().splitlines() if not one.endswith("is /dev/null")]
    assert said == ["pulled b'w'", "clean True", "at rest True"]


@pytest.mark.parametrize(
    "given", [{"config": {"flush": "async"}}, {"config": "async"}, {"clock": 5}, {"clock": "now"}]
)
def test_open_rejects_wrong_types_of_config_and_clock(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="wanted a"):
        timerstore.open(tmp_path, threads=False, **given)
    timerstore.open(tmp_path, small(), threads=False).close()


def test_open_rejects_an_ipv6_store_host(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="IPv6"):
        timerstore.open(tmp_path, small(store_host="[::1]:10911"), threads=False)


def test_open_rejects_a_file_as_path(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(TimerStoreError, match="file"):
        timerstore.open(path, threads=False)
    assert path.read_bytes() == b"mine"


def test_open_rejects_a_directory_of_shards(tmp_path: Path) -> None:
    """No shard would deliver messages of a store that is made there."""
    root = tmp_path / "orders.shards"
    timerstore.open_shards(root, 2, small(), threads=False).close()
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError, match="got a directory of shards: open_shards") as caught:
        timerstore.open(root, small(), threads=False)
    assert str(root) in str(caught.value)
    assert sorted(root.rglob("*")) == before
    timerstore.open(root / "shard-00001", small(), threads=False).close()


@pytest.mark.parametrize("url", ["s3://bucket/a", "unix:///run/s", "tls://u:secret@h:1/x?y"])
def test_url_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """It would be a folder of this name below the working directory."""
    monkeypatch.chdir(tmp_path)
    expected = f"wanted a path of this machine, got a URL, {url.partition('//')[0]}//\\.\\.\\.$"
    with timerstore.open(tmp_path / "s", small(), threads=False) as store:
        before = sorted(tmp_path.rglob("*"))
        calls = {
            "backup": lambda: store.backup(url),
            "path": lambda: timerstore.open(url, small(), threads=False),
            "restore": lambda: timerstore.restore("backup", url),
            "verify": lambda: timerstore.verify_directory(url),
        }
        for name, call in calls.items():
            with pytest.raises(ConfigError, match=f"^{name}: {expected}"):
                call()
        assert sorted(tmp_path.rglob("*")) == before


def test_empty_path_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="path: wanted a folder, got ''"):
        timerstore.open("", small(), threads=False)
    with pytest.raises(ConfigError, match="path: wanted a folder, got ''"):
        timerstore.open_shards("", 2, small(), threads=False)
    assert list(tmp_path.iterdir()) == []
    with timerstore.open(".", small(), threads=False) as store:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ConfigError, match="backup: wanted a folder, got ''"):
            store.backup("")
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("which", range(1, 9))
def test_first_failed_sync_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    bench = Bench(tmp_path, small(flush="sync"))
    acked = [bench.store.put("t", b"acked-%d" % k, delay=k) for k in range(5)]
    bench.turn(1000)
    cancelled = acked[4]
    assert bench.store.cancel(cancelled) == "CANCELLED"
    left = which
    real = os.fdatasync

    def failing(fd: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", failing)

    def until_it_fails() -> None:
        for k in range(10):
            bench.store.put("t", b"doubtful-%d" % k)
            acked.append(None)  # type: ignore[arg-type]
            bench.turn()
            bench.store.flush()

    with pytest.raises(FailedError):
        until_it_fails()
    assert left == 0
    sure = len(acked) - 5
    for call in (
        lambda: bench.store.put("t", b"x"),
        lambda: bench.store.put("t", b"x", delay=1, flush="async"),
        lambda: bench.store.put("new", b"x"),
        lambda: bench.store.put_many("t", [b"x"] * 3),
        lambda: bench.store.cancel(acked[3]),
        bench.store.flush,
    ):
        for _ in range(2):
            with pytest.raises(FailedError):
                call()
    monkeypatch.undo()
    bench.store.close()
    bench.open()
    bench.turn(10_000)
    found = bench.bodies()
    for k in range(4):
        assert found.count(b"acked-%d" % k) == 1
    assert b"acked-4" not in found
    for k in range(sure):
        assert found.count(b"doubtful-%d" % k) == 1
    assert len(found) == len(set(found)) <= 4 + sure + 1
    bench.store.put("t", b"works")
    bench.turn()
    assert bench.bodies()[-1] == b"works"
    bench.close()


def test_dropped_store_releases_its_directory(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.put_many("t", [b"x"] * 10, delay=np.arange(10))
    abandon(bench.store)
    bench.open()
    bench.turn(20_000)
    assert len(bench.bodies()) == 10
    bench.close()
