"""Signal handlers that raise during a call, as Ctrl-C does, and handlers that call the store.

A handler that raises leaves the store usable or failed, never hanging. A handler must not call the
store: where it would deadlock, it gets ReentrantCallError.
"""

import gc
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.inside import (
    has_waiting_pulls,
    inside,
    service_event,
    wait_queue_of,
    waiters_of,
)
from timerstore import FailedError, ReentrantCallError, StoreConfig, TimerStore
from timerstore._engine.storage.disk import File

# A handler may raise within a finalizer or a weak reference's callback, which ignores the error.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# Without threads of the store the call itself syncs, and the signal arrives there.
CONFIG = StoreConfig(flush="sync")


@contextmanager
def amid_a_sync(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Send a signal at the first sync of a file inside; yield the errors of its handler."""
    errors: list[Any] = []

    def handle(*_: object) -> None:
        try:
            act()
        except Exception as error:
            errors.append(error)
            raise

    def sync(file: File) -> None:
        monkeypatch.setattr(File, "sync", real)
        signal.raise_signal(signal.SIGUSR1)
        real(file)

    real = File.sync
    before = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(File, "sync", sync)
    try:
        yield errors
    finally:
        monkeypatch.setattr(File, "sync", real)
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", CONFIG, threads=False) as one:
        one.put("t", b"before")
        yield one


def test_close_in_a_handler_raises_during_a_put(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with amid_a_sync(monkeypatch, store.close) as errors, pytest.raises(ReentrantCallError):
        store.put("t", b"amid")
    assert "during another call of the same thread" in str(errors[0])
    with pytest.raises(FailedError):
        store.put("t", b"after")  # as after Ctrl-C during a sync


def test_close_during_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = timerstore.open(tmp_path / "s", CONFIG, threads=False)
    store.put("t", b"before")

    def close() -> None:
        with pytest.raises(ReentrantCallError, match="during another call of the same thread"):
            store.close()

    with amid_a_sync(monkeypatch, close) as errors:
        store.close()
    assert not errors
    store.close()


def test_close_of_shards_in_a_handler_raises_and_closes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them stay open."""
    with timerstore.open_shards(tmp_path / "shards", 2) as store:
        shard = store.stores[1]

        def close() -> None:
            with pytest.raises(ReentrantCallError):
                store.close()

        with amid_a_sync(monkeypatch, close) as errors:
            shard.flush()
        assert not errors
        store.put_many("t", [b"after"] * 9)


def test_put_in_a_handler_raises_during_a_put(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put() -> None:
        store.put("t", b"of the handler")

    with amid_a_sync(monkeypatch, put) as errors, pytest.raises(ReentrantCallError):
        store.put("t", b"amid")
    assert "during another call of the same thread" in str(errors[0])


def test_put_succeeds_when_handler_catches_the_error(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put() -> None:
        with pytest.raises(ReentrantCallError):
            store.put("t", b"of the handler")
        store.put("t", b"not waited for", flush="async")

    with amid_a_sync(monkeypatch, put) as errors:
        store.put("t", b"amid")
    store.put("t", b"after")
    assert not errors
    assert store.stats()["log_end_bytes"] > 0


def test_close_in_a_handler_raises_during_a_wait(store: TimerStore) -> None:
    main, has_come = threading.get_ident(), threading.Event()

    def handle(*_: object) -> None:
        if not has_come.is_set():
            has_come.set()
            with pytest.raises(ReentrantCallError):
                store.close()
            raise InterruptedError

    def signal_the_wait() -> None:
        """Signal until a handler runs: the first one may come just before the thread sleeps."""
        while not has_come.wait(0.01):
            if has_waiting_pulls(inside(store).long_polls):  # a timer could end before that
                signal.pthread_kill(main, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handle)
    thread = threading.Thread(target=signal_the_wait)
    thread.start()
    try:
        with pytest.raises(InterruptedError):
            store.pull("t", 0, 1, wait=30)
    finally:
        has_come.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)


class _StopError(BaseException):
    """The error that a handler raises, like KeyboardInterrupt."""


def work_until(come: list[bool], work: Callable[[], object]) -> None:
    """Work until a signal has come. CPython 3.13 has no handler of `try` for the jump at the end of
    a loop, so the loop is in a function of its own.
    """
    while not come:
        work()


def stop_amid(draw: random.Random, work: Callable[[], object]) -> None:
    """Repeat the work until a signal arrives at any time, whose handler raises."""
    come: list[bool] = []  # its error may be lost, as in a finalizer

    def handle(*_: object) -> None:
        come.append(True)
        raise _StopError

    # An exception in a callback of the collector (Hypothesis installs one) is not raised.
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 1e-3))
        work_until(come, work)
    except _StopError:
        pass
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks


@pytest.mark.parametrize("name", ["topics", "committed", "pace"])
def test_calls_stay_possible_when_handler_raises_during_them(store: TimerStore, name: str) -> None:
    """No interrupted call counts as running forever or blocks other calls."""
    given = {"topics": (), "committed": ("t", "g"), "pace": ("t", None)}[name]
    draw, call = random.Random(1), getattr(store, name)
    for _ in range(100):
        stop_amid(draw, lambda: call(*given))
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive(), "it waits for a call that is over"


def test_service_runs_when_handler_raises_during_a_wake(store: TimerStore) -> None:
    draw, service = random.Random(1), store.services()["flush"]

    def ring() -> None:
        service.wake()
        service_event(service).clear()

    for _ in range(100):
        stop_amid(draw, ring)
    woken: list[bool] = []

    def wake() -> None:
        service.wake()
        woken.append(service_event(service).wait(60))

    waker = threading.Thread(target=wake, daemon=True)
    waker.start()
    waker.join(60)
    assert woken == [True]


def test_consumer_continues_when_handler_raises_during_polls(tmp_path: Path) -> None:
    """The consumer's other threads continue, and `close` succeeds."""
    store = timerstore.open(tmp_path / "s", CONFIG, threads=False)
    draw, consumer = random.Random(1), store.consumer("t", "g")
    for _ in range(100):
        stop_amid(draw, consumer.poll)
    for _ in range(30):
        stop_amid(draw, lambda: consumer.poll(wait=0.0003))
    polled: list[Any] = []

    def poll() -> None:
        polled.append(consumer.poll())
        consumer.close()
        store.close()

    polling = threading.Thread(target=poll, daemon=True)
    polling.start()
    polling.join(30)
    assert polled, "it waits for a lock that nobody has"
    assert not polling.is_alive()


def test_exception_propagates_when_handler_raises_during_waits(store: TimerStore) -> None:
    """Its exception propagates, without a RuntimeError of a lock, and no waker blocks."""
    draw = random.Random(1)
    store.pull("t", 0, 0)  # makes the first file of the index, which may take longer than a turn
    for _ in range(1000):
        stop_amid(draw, lambda: store.pull("t", 0, 1, wait=0.0003))
    assert store.stats()["pull_waits"]


def test_next_waiter_polls_when_handler_raises_during_a_poll(
    tmp_path: Path,
) -> None:
    draw, found = random.Random(1), []
    with timerstore.open(tmp_path / "s", StoreConfig(flush="async")) as store:
        consumer = store.consumer("t", "g")
        reading = threading.Thread(target=lambda: found.extend(consumer.poll(wait=1e6)))
        for _ in range(500):
            stop_amid(draw, lambda: consumer.poll(wait=0.0003))
        reading.start()
        store.put("t", b"now")
        reading.join(20)
        for place in waiters_of(wait_queue_of(consumer)):  # so that the test ends
            place.wake()
        assert [one.body for one in found] == [b"now"], "one who is gone stands before it"
