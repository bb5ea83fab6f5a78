"""Closed stores: every call raises ClosedError, and nothing that was acknowledged is lost."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.store_calls import CALLS
from timerstore import (
    ClosedError,
    MessageError,
    TimerStore,
)
from timerstore._engine.base import failpoints
from timerstore.testing import ManualClock, Stepper


@pytest.mark.parametrize("name", CALLS)
def test_closed_store_rejects_calls(bench: Bench, name: str) -> None:
    bench.store.put("t", b"x")
    bench.store.close()
    with pytest.raises(ClosedError, match="closed"):
        CALLS[name](bench.store)
    bench.store.close()
    assert "closed" in repr(bench.store)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_closed_store_rejects_put_on_the_system_clock(tmp_path: Path, flush: str) -> None:
    """With the system clock `put` takes a fast path."""
    store = timerstore.open(tmp_path, small(flush=flush))
    put = store.put
    for _ in range(3):
        put("t", b"x")
    store.close()
    with pytest.raises(ClosedError):
        put("t", b"x")


def test_pending_iterator_raises_after_close(bench: Bench) -> None:
    bench.store.put_many("t", [b"x"] * 3, delay=1)
    begun, fresh = bench.store.pending(), bench.store.pending()
    next(begun)
    bench.store.close()
    for each in (begun, fresh):
        with pytest.raises(ClosedError):
            next(each)


@pytest.mark.parametrize("is_linked", [False, True])
def test_reopen_after_cancel_does_not_rebuild_from_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_linked: bool
) -> None:
    """The unit of the cancelled message is on the wheel, or is not linked yet."""
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


def test_with_block_closes_the_store(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, small(), threads=False) as store:
        store.put("t", b"x")
    with pytest.raises(ClosedError):
        store.flush()


class Callers:
    """Threads that call the store until they get ClosedError."""

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
        except BaseException as error:  # noqa: BLE001 - the test checks it
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
def test_close_during_calls_keeps_acknowledged_messages(
    tmp_path: Path, flush: str, turn: int
) -> None:
    """Uses threads, because their concurrency is under test."""
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


def test_services_cannot_be_stepped_after_close(bench: Bench) -> None:
    """Their memory is freed at close: a step would end the process."""
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


def test_stepper_rejects_a_store_with_threads(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, small()) as store, pytest.raises(MessageError, match="threads"):
        Stepper(store)
