"""Lock and AppendLock: like threading.Lock, but a second acquire by the same thread raises."""

import gc
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.elsewhere import elsewhere
from timerstore._engine.base.native import AppendLock, Lock
from timerstore.errors import ReentrantCallError

PATIENCE_S = 30.0


both = pytest.mark.parametrize("kind", [Lock, AppendLock])


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread has the lock inside the context."""
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            begun.set()
            go.wait(PATIENCE_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert begun.wait(PATIENCE_S)
    try:
        yield
    finally:
        go.set()
        holder.join(PATIENCE_S)


@contextmanager
def alarms(handle: Callable[..., object]) -> Iterator[None]:
    """A signal is sent each hundredth of a second inside the context."""
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@both
def test_with_acquires_and_releases_lock(kind: Any) -> None:
    lock = kind()
    assert not lock.locked()
    with lock:
        assert lock.locked()
    assert not lock.locked()


def test_acquire_accepts_timeout_and_non_blocking() -> None:
    lock = Lock()
    assert not lock.locked()
    with lock:
        assert lock.locked()
        assert not elsewhere(lambda: lock.acquire(blocking=False))
        assert not elsewhere(lambda: lock.acquire(timeout=0.001))
    assert not lock.locked()
    assert elsewhere(lambda: (lock.acquire(timeout=5), lock.release()))
    assert lock.acquire()
    lock.release()


@both
def test_lock_is_released_when_the_block_raises(kind: Any) -> None:
    lock = kind()
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.locked()


@both
def test_with_raises_when_same_thread_has_the_lock(kind: Any) -> None:
    lock = kind()
    with lock:
        with pytest.raises(ReentrantCallError, match="same thread"), lock:
            raise AssertionError("it was taken twice")
        assert lock.locked()
    assert not lock.locked()


def test_acquire_raises_when_same_thread_has_the_lock() -> None:
    lock = Lock()
    with lock:
        assert lock.is_mine()
        with pytest.raises(ReentrantCallError):
            lock.acquire(timeout=1e12)
        assert not lock.acquire(blocking=False)
        assert not elsewhere(lock.is_mine)
    assert not lock.is_mine()


def test_release_by_another_thread_raises() -> None:
    lock = Lock()
    with pytest.raises(RuntimeError, match="does not have"):
        lock.release()
    with lock:
        with pytest.raises(RuntimeError):
            elsewhere(lock.release)
        assert lock.locked()


@both
def test_waiting_thread_lets_others_run(kind: Any) -> None:
    lock, begun, got = kind(), threading.Event(), threading.Event()

    def take() -> None:
        begun.set()
        with lock:
            got.set()

    thread = threading.Thread(target=take, daemon=True)
    with lock:
        thread.start()
        assert begun.wait(PATIENCE_S)
        assert not got.wait(0.01), "two have it"
    assert got.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


@both
def test_lock_excludes_many_threads(kind: Any) -> None:
    lock, inside, most, total = kind(), [0], [0], [0]

    def take() -> None:
        for _ in range(2_000):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                total[0] += 1
                inside[0] -= 1

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert most == [1]
    assert total == [8_000]


def test_wait_ends_when_signal_handler_raises() -> None:
    """If the handler does not raise, the wait continues."""
    lock, seen = Lock(), []

    def handle(*_: object) -> None:
        seen.append(0)
        if len(seen) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise InterruptedError

    with held_elsewhere(lock), alarms(handle), pytest.raises(InterruptedError), lock:
        raise AssertionError("two have it")
    assert seen == [0, 0]
    with lock:
        pass


def test_signals_do_not_extend_a_timeout() -> None:
    lock = Lock()
    with held_elsewhere(lock), alarms(lambda *_: None):
        assert not lock.acquire(timeout=0.05)


@pytest.mark.parametrize("given", [(True, -2.0), (True, math.nan), (False, 1.0)])
def test_invalid_timeouts_are_rejected(given: tuple[bool, float]) -> None:
    with pytest.raises(ValueError, match="wanted a timeout of 0 or more"):
        Lock().acquire(*given)


def test_lock_that_is_dropped_while_held_is_freed() -> None:
    for _ in range(100):
        lock = Lock()
        lock.acquire()
        del lock
    gc.collect()


def test_other_arguments_are_rejected() -> None:
    with pytest.raises(TypeError):
        Lock(1)
    with pytest.raises(TypeError):
        Lock(wide=True)
    with pytest.raises(TypeError):
        Lock().acquire(timeout="long")
