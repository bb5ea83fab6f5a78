"""Fast puts of threads with flush="sync": one thread syncs, and the others wait in C for it."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import small
from tests.support.elsewhere import elsewhere
from tests.support.held_sync import PATIENCE_S, HeldSync
from tests.support.inside import inside, log_write_lock
from timerstore import FailedError, ReentrantCallError, TimerStore
from timerstore._engine.storage import guarded_map

CALLERS = 8


class Shared:
    """A store, the calls that put into it, and its syncs."""

    def __init__(self, store: TimerStore) -> None:
        self.store = store
        self.log = inside(store).log
        self.rounds = inside(store).sync_rounds
        self.asked: list[int] = []
        self._calls: list[Future[Any]] = []
        self.held = HeldSync(self.log.segments)
        self.held.is_released.set()
        self._sync_through = self.log.sync_through
        self.log.sync_through = self.sync_through

    def sync_through(self, offset: int) -> None:
        self.asked.append(offset)
        self._sync_through(offset)

    def start(self, act: Callable[[], Any]) -> None:
        """Run a call on a thread of its own."""
        call: Future[Any] = Future()
        self._calls.append(call)

        def run() -> None:
            try:
                call.set_result(act())
            except BaseException as error:  # noqa: BLE001 - handed on
                call.set_exception(error)

        threading.Thread(target=run, daemon=True).start()

    def start_puts(self, count: int) -> None:
        """Start so many puts, and return when all of them wait for another thread's sync."""
        before = self.rounds.waiter_count
        for n in range(count):
            self.start(lambda body=b"%d" % n: self.store.put("t", body, delay=3600))  # type: ignore[misc]
        self.wait_until(lambda: self.rounds.waiter_count == before + count)

    def start_leader(self) -> None:
        """Start a put that leads a round, and return when it syncs, until `held.is_released`."""
        self.held.is_released.clear()
        self.start(lambda: self.store.put("t", b"leads", delay=3600))
        assert self.held.is_reached.wait(PATIENCE_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until
            time.sleep(0)

    def errors(self) -> list[BaseException | None]:
        """Return the errors of all calls, after they ended."""
        return [call.exception(PATIENCE_S) for call in self._calls]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    with timerstore.open(tmp_path / "store", small(flush="sync"), threads=False) as made:
        made.put("t", b"first")
        yield Shared(made)


def test_waiting_puts_are_served_by_one_sync_without_python(shared: Shared) -> None:
    with log_write_lock(shared.log):  # so that the leader does not write yet
        shared.start(lambda: shared.store.put("t", b"leads", delay=3600))
        shared.wait_until(lambda: len(shared.asked) == 1)
        shared.start_puts(CALLERS)
    assert shared.errors() == [None] * (CALLERS + 1)
    assert (shared.held.count, len(shared.asked)) == (1, 1)
    assert shared.log.durable == shared.log.end
    assert shared.store._putter.inside == 0


def test_put_during_a_sync_is_served_by_the_next(shared: Shared) -> None:
    shared.start_leader()
    shared.start_puts(CALLERS)
    shared.held.is_released.set()
    assert shared.errors() == [None] * (CALLERS + 1)
    assert shared.held.count == 2
    assert shared.log.durable == shared.log.end


def test_failed_sync_raises_in_each_waiting_put(shared: Shared) -> None:
    shared.start_leader()
    shared.start_puts(CALLERS)
    shared.held.error = FailedError("no such luck", where=shared.store.path)
    shared.held.is_released.set()
    errors = shared.errors()
    assert len(errors) == CALLERS + 1
    assert all(isinstance(one, FailedError) and "no such luck" in str(one) for one in errors)
    assert shared.held.count == 1
    assert shared.store._putter.inside == 0


def test_close_waits_for_waiting_puts(shared: Shared) -> None:
    shared.start_leader()
    shared.start_puts(CALLERS)
    shared.start(shared.store.close)
    shared.wait_until(lambda: shared.store._blocked)
    assert inside(shared.store).directory.is_held
    shared.held.is_released.set()
    assert shared.errors() == [None] * (CALLERS + 2)
    assert not inside(shared.store).directory.is_held


class _StopError(Exception):
    pass


@contextmanager
def signalled(shared: Shared, act: Callable[[], object]) -> Iterator[None]:
    """Send a signal to this thread once it waits; its handler calls `act`."""
    main, done = threading.get_ident(), threading.Event()
    count = shared.rounds.waiter_count

    def send() -> None:
        shared.wait_until(lambda: shared.rounds.waiter_count > count or done.is_set())
        while not done.wait(0.01):  # a signal that comes before the system call does not end it
            signal.pthread_kill(main, signal.SIGUSR1)

    def handle(*_: object) -> None:
        if not done.is_set():
            done.set()
            act()

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)


def test_interrupted_put_raises_and_the_others_return(shared: Shared) -> None:
    def stop() -> None:
        raise _StopError

    shared.start_leader()
    shared.start_puts(CALLERS)
    with signalled(shared, stop), pytest.raises(_StopError):
        shared.store.put("t", b"interrupted", delay=3600)
    assert shared.store._putter.inside == CALLERS + 1
    shared.held.is_released.set()
    assert shared.errors() == [None] * (CALLERS + 1)
    shared.store.put("t", b"after", delay=3600)
    assert len(list(shared.store.pending())) == CALLERS + 3, "the interrupted put was not stored"
    assert shared.log.durable == shared.log.end


def test_put_in_a_handler_waits_like_the_interrupted_put(shared: Shared) -> None:
    """A thread waits at most once, so it cannot be chosen to lead while its handler waits."""
    inner: list[Any] = []

    def has_waiter() -> bool:
        return bool(shared.rounds.waiter_count)

    def put() -> None:
        shared.start(lambda: (shared.wait_until(has_waiter), shared.held.is_released.set()))
        inner.append(shared.store.put("t", b"of the handler", delay=3600))

    shared.start_leader()
    with signalled(shared, put):
        outer = shared.store.put("t", b"interrupted", delay=3600)
    assert inner[0].log_offset > outer.log_offset
    assert shared.errors() == [None] * 2
    assert shared.log.durable == shared.log.end


def test_put_by_the_holder_of_the_write_lock_raises(shared: Shared) -> None:
    """A finalizer may put while its thread holds this lock. The leader may wait for it."""
    shared.start_leader()
    with log_write_lock(shared.log), pytest.raises(ReentrantCallError, match="same thread"):
        shared.store.put("t", b"of a finalizer", delay=3600)
    shared.held.is_released.set()
    assert shared.errors() == [None]


def test_put_looks_for_truncated_files_after_a_fault_during_its_wait(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []

    def truncated_below(root: Path) -> None:
        looked.append(root)

    monkeypatch.setattr(guarded_map, "truncated_below", truncated_below)
    shared.start_leader()
    shared.start_puts(1)
    guarded_map.fault_count[0] += 1  # of another store's file
    shared.held.is_released.set()
    assert shared.errors() == [None, None]
    assert looked, "no put looked"
    looked.clear()
    shared.store.put("t", b"after", delay=3600)
    elsewhere(lambda: shared.store.put("t", b"after", delay=3600))
    assert not looked, "the same fault was looked for twice"
