"""Interrupt one of many threads that share syncs, again and again, at any step of its puts."""

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import small
from timerstore import FailedError, ReentrantCallError, TimerStore

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

THREADS = 8
PUTS = 300
STORES = 8
EVERY_S = 0.0015


class _StopError(Exception):
    pass


class _Putters:
    """Threads that put until they have stored enough, or the store has failed."""

    def __init__(self, store: TimerStore) -> None:
        self._store = store
        self._stored = [0] * THREADS
        self._threads = [threading.Thread(target=self._put, args=(n,)) for n in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _put(self, number: int) -> None:
        for n in range(PUTS):
            try:
                self._store.put("t", b"%d of %d" % (n, number), delay=3600)
            except FailedError:
                return
            self._stored[number] += 1

    def join(self) -> int:
        """Return how many puts returned."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a put hangs"
        return sum(self._stored)


@contextmanager
def interrupted(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a signal handler of this thread, every so often."""
    is_acting = False

    def handle(*_: object) -> None:
        nonlocal is_acting
        if is_acting:  # a sync may take longer than the interval
            return
        is_acting = True
        try:
            act()
        finally:
            is_acting = False

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", range(STORES))
def test_handlers_that_raise_leave_no_put_waiting(tmp_path: Path, number: int) -> None:
    """The store fails if the interrupted put was syncing."""
    chance, is_inside, stored, stops = random.Random(number), False, 0, 0

    def stop() -> None:
        if is_inside and chance.random() < 0.3:
            raise _StopError

    store = timerstore.open(tmp_path / "s", small(flush="sync"))
    try:
        putters = _Putters(store)
        with interrupted(stop):
            n = 0
            while n < PUTS or not stops:  # puts can be faster than the first signals
                n += 1
                try:
                    is_inside = True
                    store.put("t", b"%d" % n, delay=3600)
                    is_inside = False
                    stored += 1
                except _StopError:
                    is_inside = False
                    stops += 1
                except FailedError:
                    is_inside = False
                    break
        stored += putters.join()
    finally:
        store.close()
    assert stops
    with timerstore.open(tmp_path / "s", small(flush="sync")) as store:
        assert sum(1 for _ in store.pending()) >= stored
        assert store.verify().clean


@pytest.mark.parametrize("number", range(STORES))
def test_handlers_that_put_leave_no_put_waiting(tmp_path: Path, number: int) -> None:
    """A put of a handler is rejected if its thread is syncing, and waits otherwise."""
    inner, rejected = 0, 0

    def put() -> None:
        nonlocal inner, rejected
        try:
            store.put("t", b"inner %d" % number, delay=3600)
            inner += 1
        except ReentrantCallError:
            rejected += 1

    with timerstore.open(tmp_path / "s", small(flush="sync")) as store:
        putters = _Putters(store)
        with interrupted(put):
            for n in range(PUTS):
                store.put("t", b"%d" % n, delay=3600)
        assert putters.join() == THREADS * PUTS
        assert inner + rejected, "no put was interrupted: the test shows nothing"
        store.flush()
    with timerstore.open(tmp_path / "s", small(flush="sync")) as store:
        total = sum(1 for _ in store.pending())
        # A rejected put may have been appended before it asked for the sync.
        assert 0 <= total - (THREADS + 1) * PUTS - inner <= rejected
        assert store.verify().clean
