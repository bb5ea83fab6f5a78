"""Opening, closing, forking, failing: who may hold a directory, and what is left of a store."""

import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.bench import NOW, Bench, small
from tests.support.driver import abandon
from tests.support.inside import inside
from timerstore import (
    ClosedError,
    ConfigError,
    CorruptError,
    FailedError,
    ForkedError,
    LockedError,
    MessageError,
    TimerStore,
    TimerStoreError,
)
from timerstore._engine.base import failpoints
from timerstore._engine.storage import disk as disk_module
from timerstore.testing import ManualClock, Stepper

CALLS: dict[str, Callable[[TimerStore], object]] = {
    "put": lambda store: store.put("t", b"x"),
    "put_many": lambda store: store.put_many("t", [b"x"]),
    "cancel": lambda store: store.cancel("djEgdCBiIDUgaWQgMA=="),
    "cancel_many": lambda store: store.cancel_many(["djEgdCBiIDUgaWQgMA=="]),
    "pull": lambda store: store.pull("t", 0, 0),
    "pull_batch": lambda store: store.pull_batch("t", 0, 0),
    "pending": lambda store: store.pending(),
    "stats": lambda store: store.stats(),
    "topics": lambda store: store.topics(),
    "flush": lambda store: store.flush(),
    "verify": lambda store: store.verify(),
}


# --- closed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_store_says_so(bench: Bench, name: str) -> None:
    bench.store.put("t", b"x")
    bench.store.close()
    with pytest.raises(ClosedError, match="closed"):
        CALLS[name](bench.store)
    bench.store.close()
    assert "closed" in repr(bench.store)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_closed_store_on_the_systems_clock_says_so(tmp_path: Path, flush: str) -> None:
    """There put has a quick way of its own."""
    store = timerstore.open(tmp_path, small(flush=flush))
    put = store.put
    for _ in range(3):
        put("t", b"x")
    store.close()
    with pytest.raises(ClosedError):
        put("t", b"x")


def test_an_iterator_of_what_waits_ends_with_its_store(bench: Bench) -> None:
    bench.store.put_many("t", [b"x"] * 3, delay=1)
    begun, fresh = bench.store.pending(), bench.store.pending()
    next(begun)
    bench.store.close()
    for each in (begun, fresh):
        with pytest.raises(ClosedError):
            next(each)


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_cancel_before_closing_is_no_reason_to_read_the_whole_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_linked: bool
) -> None:
    """What was cancelled waits no longer, and its unit is in the wheel, or has still to come."""
    kept = bench.store.put("t", b"kept", delay=50)
    gone = bench.store.put("t", b"gone", delay=50)
    if is_linked:
        bench.turn()
    bench.store.cancel(gone)
    bench.store.close()
    points: list[str] = []
    monkeypatch.setattr(failpoints, "hook", points.append)
    bench.open()
    assert "recover_rebuild_begun" not in points
    assert [one.message_id for one in bench.store.pending()] == [kept.message_id]
    bench.turn(60_000)
    assert bench.bodies() == [b"kept"]


def test_close_leaves_a_block_by_itself(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, small(), threads=False) as store:
        store.put("t", b"x")
    with pytest.raises(ClosedError):
        store.flush()


class Callers:
    """Threads that put, pull, cancel, flush and look until they are told that it is closed."""

    def __init__(self, store: TimerStore) -> None:
        self.store = store
        self.answered: list[list[bytes]] = [[], [], []]
        self.all_answered = threading.Event()
        self.odd: list[BaseException] = []
        calls = [self.put_now, self.put_later, self.put_many, self.look, self.cancel, self.flush]
        self._ready = threading.Barrier(len(calls) + 1)
        self._threads = [threading.Thread(target=self._work, args=(call,)) for call in calls]
        for thread in self._threads:
            thread.start()
        self._ready.wait()

    def _work(self, call: Callable[[int], None]) -> None:
        self._ready.wait()
        k = 0
        try:
            while True:
                call(k)
                k += 1
        except ClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.odd.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _note(self, which: int, body: bytes) -> None:
        self.answered[which].append(body)
        if all(self.answered):
            self.all_answered.set()

    def put_now(self, k: int) -> None:
        self.store.put("t", b"now-%d" % k)
        self._note(0, b"now-%d" % k)

    def put_later(self, k: int) -> None:
        self.store.put("t", b"later-%d" % k, delay=0.01)
        self._note(1, b"later-%d" % k)

    def put_many(self, k: int) -> None:
        self.store.put_many("t", [b"many-%d" % k], flush="sync" if k % 2 else None)
        self._note(2, b"many-%d" % k)

    def look(self, k: int) -> None:
        self.store.pull("t", 0, k, wait=0.01)
        list(self.store.pending())
        self.store.stats()

    def cancel(self, k: int) -> None:
        self.store.cancel(self.store.put("t", b"cancelled-%d" % k, delay=50))

    def flush(self, k: int) -> None:
        self.store.flush()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("turn", range(2))
def test_close_beside_callers_loses_nothing_that_was_answered(
    tmp_path: Path, flush: str, turn: int
) -> None:
    """Threads are the subject."""
    store = timerstore.open(tmp_path, small(flush=flush))
    store.put("t", b"first")
    callers = Callers(store)
    assert callers.all_answered.wait(60)
    store.close()
    callers.join()
    assert callers.odd == []
    for_ever = timerstore.StoreConfig(retention_ms=0)
    late = ManualClock(int(2e12))
    with timerstore.open(tmp_path, for_ever, clock=late, threads=False) as again:
        Stepper(again).settle()
        report = again.verify()
        assert report.clean, report
        found: list[bytes] = []
        while len(batch := again.pull_batch("t", 0, len(found))):
            found += [m.body for m in batch]
    for one in callers.answered:
        assert set(one) <= set(found)
    assert len(set(found)) == len(found)


# --- forked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", sample(["manual", "system"], "ends"))
@pytest.mark.parametrize("name", [*CALLS, "close"])
def test_a_forked_child_is_refused_and_the_parent_goes_on(
    tmp_path: Path, name: str, clock: str
) -> None:
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


# --- a second opener ------------------------------------------------------------------------------


def test_a_second_opener_in_the_same_process(bench: Bench, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(bench.root)
    for path in (bench.root, str(bench.root), link):
        with bench.refused(LockedError, "this process"):
            timerstore.open(path, small(), threads=False)
    bench.reopen()
    bench.store.put("t", b"x")


def test_a_close_that_was_cut_off_is_taken_up_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put("t", b"x")

    def no_memory() -> None:
        raise MemoryError

    monkeypatch.setattr(inside(bench.store).puller, "close", no_memory)
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


def test_a_second_opener_in_another_process_until_the_first_is_killed(tmp_path: Path) -> None:
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


# --- standard input, output and error -------------------------------------------------------------


DAEMON = """
import os, sys, threading, timerstore
from pathlib import Path
from tests.support.bench import small
from timerstore._engine.tables.store_summary import look
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
def test_what_a_daemon_prints_does_not_land_in_its_store(
    tmp_path: Path, left_open: tuple[int, ...]
) -> None:
    """It has closed standard input, output and error: no file of a store takes their numbers."""
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


# --- configuration --------------------------------------------------------------------------------


GEOMETRY = {
    "commit_log_segment_bytes": 1 << 21,
    "queue_segment_bytes": 4000,
    "timer_log_segment_bytes": 128 * 1024,
    "wheel_slot_count": 256,
    "precision_ms": 100,
}


def test_sizes_are_taken_from_the_files(tmp_path: Path) -> None:
    made = small(**GEOMETRY)
    bench = Bench(tmp_path, made)
    bench.store.put("t", b"x", delay=3)
    bench.store.put("t", b"y")
    bench.turn()
    bench.close()
    bench.config = timerstore.StoreConfig(reserve_bytes=0)
    bench.open()
    for name, value in GEOMETRY.items():
        assert getattr(bench.store.config, name) == value
    bench.turn(3000)
    assert bench.bodies() == [b"y", b"x"]
    bench.close()


@pytest.mark.parametrize("name", GEOMETRY)
def test_sizes_that_contradict_the_files_are_refused(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, small(**GEOMETRY))
    bench.store.put("t", b"x", delay=3)
    bench.store.put("t", b"y")
    bench.turn()
    bench.close()
    other = dataclasses.replace(bench.config, **{name: 2 * GEOMETRY[name]})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError) as caught:
        timerstore.open(tmp_path, other, threads=False)
    assert str(2 * GEOMETRY[name]) in str(caught.value)
    assert str(GEOMETRY[name]) in str(caught.value)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    bench.open()
    bench.turn(3000)
    assert bench.bodies() == [b"y", b"x"]
    bench.close()


@pytest.mark.parametrize(
    ("left", "is_closed"),
    [
        (None, True), (0, True), (32 * 10 + 7, True), (32 * 128, True), (32 * 300, True),
        (None, False), (32 * 128, False),
    ],
)  # fmt: skip
def test_a_wheel_of_another_length_is_made_anew(
    tmp_path: Path, left: int | None, is_closed: bool
) -> None:
    """The watermark knows how many slots the store has."""
    made = small(**GEOMETRY)
    bench = Bench(tmp_path / "store", made)
    bodies = [b"%d" % n for n in range(20)]
    for n, body in enumerate(bodies):
        bench.store.put("t", body, delay=1 + n)
    bench.turn(3000)
    if is_closed:
        bench.close()
    else:
        bench.store.flush()
        inside(bench.store).checkpoint.run()
        killed = tmp_path / "killed"
        shutil.copytree(bench.root, killed)
        bench.close()
        bench.root = killed
    wheel = bench.root / "timerwheel"
    if left is None:
        wheel.unlink()
    else:
        wheel.write_bytes(wheel.read_bytes()[:left].ljust(left, b"\1"))
    problems = timerstore.verify_directory(bench.root).problems
    assert [one.where for one in problems if "derived" in one.what] == [str(wheel)]
    repaired = tmp_path / "repaired"
    assert timerstore.repair(bench.root, repaired).clean
    assert (repaired / "timerwheel").stat().st_size == 32 * made.wheel_slot_count
    for root, config in (
        (repaired, made),
        (shutil.copytree(bench.root, tmp_path / "copy"), timerstore.StoreConfig(reserve_bytes=0)),
        (bench.root, made),
    ):
        bench.root, bench.config = root, config
        bench.open()
        assert bench.store.config.wheel_slot_count == made.wheel_slot_count
        now_ms = bench.clock.now_ms
        bench.turn(60_000)
        assert bench.bodies() == bodies
        bench.clock.set(now_ms)
        bench.close()
        assert (root / "timerwheel").stat().st_size == 32 * made.wheel_slot_count
        assert timerstore.verify_directory(root).clean


def test_a_wheel_as_a_broker_makes_it_counts(tmp_path: Path) -> None:
    """Somebody had a broker make it anew, and it takes no other."""
    bench = Bench(tmp_path, small(**GEOMETRY))
    bench.store.put("t", b"x", delay=3)
    bench.turn()
    bench.close()
    usual = timerstore.StoreConfig().wheel_slot_count
    wheel = tmp_path / "timerwheel"
    wheel.unlink()
    with wheel.open("wb") as file:
        file.truncate(32 * usual)
    with pytest.raises(ConfigError, match=f"configured 256, but .*timerwheel shows {usual}"):
        bench.open()
    bench.config = timerstore.StoreConfig(reserve_bytes=0)
    bench.open()
    assert bench.store.config.wheel_slot_count == usual
    bench.turn(3000)
    assert bench.bodies() == [b"x"]
    bench.close()


@pytest.mark.parametrize("config", [None, small()], ids=["found", "configured"])
def test_a_log_cut_to_a_length_that_none_has(
    tmp_path: Path, config: timerstore.StoreConfig | None
) -> None:
    """That is damage, and no wrong setting."""
    bench = Bench(tmp_path, small())
    bench.store.put("t", b"x", delay=1)
    bench.turn()
    bench.close()
    file = tmp_path / "commitlog" / f"{0:020d}"
    os.truncate(file, 100)
    with pytest.raises(CorruptError, match="wanted 4096 to 2147483647 bytes; got 100") as caught:
        timerstore.open(tmp_path, config)
    assert caught.value.where == file


def test_every_contradiction_is_said_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small())
    bench.store.put("t", b"x", delay=1)
    bench.turn()
    bench.close()
    with pytest.raises(ConfigError) as caught:
        timerstore.open(tmp_path, small(wheel_slot_count=64, timer_log_segment_bytes=4096))
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    "given", [{"config": {"flush": "async"}}, {"config": "async"}, {"clock": 5}, {"clock": "now"}]
)
def test_a_config_or_clock_that_is_none(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="wanted a"):
        timerstore.open(tmp_path, threads=False, **given)
    timerstore.open(tmp_path, small(), threads=False).close()


def test_a_store_host_of_the_next_version(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="IPv6"):
        timerstore.open(tmp_path, small(store_host="[::1]:10911"), threads=False)


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(TimerStoreError, match="file"):
        timerstore.open(path, threads=False)
    assert path.read_bytes() == b"mine"


def test_a_directory_of_shards_is_no_store(tmp_path: Path) -> None:
    """One made in it would have messages that no shard delivers."""
    root = tmp_path / "orders.shards"
    timerstore.open_shards(root, 2, small(), threads=False).close()
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError, match="got a directory of shards: open_shards") as caught:
        timerstore.open(root, small(), threads=False)
    assert str(root) in str(caught.value)
    assert sorted(root.rglob("*")) == before
    timerstore.open(root / "shard-00001", small(), threads=False).close()


def test_no_path_at_all_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_services_of_a_closed_store_are_not_stepped(bench: Bench) -> None:
    """Memory that they work on is given back: a step there ended the process."""
    bench.store.put("t", b"m", delay=1)
    bench.store.put_every("t", b"m", every=1)
    services = bench.store.services()
    bench.close()
    bench.clock.advance(5000)
    for name, service in services.items():
        with pytest.raises(ClosedError):
            service.step()
        with pytest.raises(ClosedError):
            bench.stepper.step(name)


def test_services_of_a_store_with_threads_are_not_stepped(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, small()) as store, pytest.raises(MessageError, match="threads"):
        Stepper(store)


# --- failed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(1, 9))
def test_the_first_failed_sync_is_final(
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

    monkeypatch.setattr(disk_module.os, "fdatasync", failing)

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


def test_an_abandoned_store_frees_its_directory(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.put_many("t", [b"x"] * 10, delay=np.arange(10))
    abandon(bench.store)
    bench.open()
    bench.turn(20_000)
    assert len(bench.bodies()) == 10
    bench.close()
