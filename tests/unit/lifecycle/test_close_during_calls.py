"""P18: close during every call, each on its own thread. Every call ends, and no data is damaged."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import small
from tests.support.switching import many_switches
from timerstore import ClosedError, NotPendingError, TimerStore

Call = Callable[[TimerStore, Path], object]

CALLS_MAX = 200  # calls that return before the store is closed


def _reschedule(store: TimerStore, _scratch: Path) -> None:
    try:
        store.reschedule(store.put("t", b"moved", delay=9), delay=0.001)
    except NotPendingError:
        raise AssertionError("nobody else has its handle") from None


def _consume(store: TimerStore, _scratch: Path) -> None:
    with store.consumer("t", "g", wait=0.01) as consumer:
        consumer.poll(5, 0.01)
        consumer.commit()


CALLS: dict[str, Call] = {
    "put": lambda store, _scratch: store.put("t", b"now", keys=("k",)),
    "put and wait": lambda store, _scratch: store.put("t", b"sync", flush="sync"),
    "put later": lambda store, _scratch: store.put("t", b"later", delay=0.01),
    "put by level": lambda store, _scratch: store.put("t", b"level", level=1),
    "put_many": lambda store, _scratch: store.put_many("t", [b"a", b"b"], delay=0.005),
    "atomic": lambda store, _scratch: store.put_many("t", [b"a", b"b"], atomic=True),
    "once": lambda store, _scratch: store.put("t", b"once", message_id="the-same"),
    "cancel": lambda store, _scratch: store.cancel(store.put("t", b"not", delay=9)),
    "cancel many": lambda store, _scratch: store.cancel_many(
        store.put_many("t", [b"a", b"b"], delay=9)
    ),
    "reschedule": _reschedule,
    "pull": lambda store, _scratch: store.pull("t", 0, 0),
    "pull that waits": lambda store, _scratch: store.pull("idle", 0, 1, wait=5),
    "pull_batch": lambda store, _scratch: store.pull_batch("t", 0, 0, tags="none"),
    "consume": _consume,
    "query": lambda store, _scratch: store.query("t", "k", max_count=3),
    "pending": lambda store, _scratch: list(store.pending()),
    "stats": lambda store, _scratch: (store.stats(), store.topics(), store.congestion()),
    "flush": lambda store, _scratch: store.flush(),
    "verify": lambda store, _scratch: store.verify(),
    "backup": lambda store, scratch: store.backup(scratch / "saved"),
    "offset_at": lambda store, _scratch: store.offset_at("t", 0, 0),
}


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    with many_switches():
        yield


class Callers:
    """A thread for each call, which it repeats until it gets ClosedError."""

    def __init__(self, store: TimerStore, scratch: Path) -> None:
        self.odd: list[tuple[str, BaseException]] = []
        self.counts = dict.fromkeys(CALLS, 0)
        self.returned = threading.Semaphore(0)  # once for each call
        self._threads = [
            threading.Thread(target=self._repeat, args=(name, store, scratch), name=name)
            for name in CALLS
        ]
        for thread in self._threads:
            thread.start()

    def _repeat(self, name: str, store: TimerStore, scratch: Path) -> None:
        try:
            while True:
                CALLS[name](store, scratch)
                self.counts[name] += 1
                self.returned.release()
        except ClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.odd.append((name, error))

    def join(self, seconds: float) -> list[str]:
        """Return the calls that do not end."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]


@pytest.mark.parametrize("turn", range(4))
def test_close_during_every_call(turn: int, tmp_path: Path) -> None:
    draw = random.Random(turn)
    config = small(
        flush=draw.choice(("sync", "async")), checkpoint_interval_ms=10, retention_ms=1000
    )
    root = tmp_path / "store"
    store = timerstore.open(root, config)
    for topic in ("t", "idle"):
        store.put(topic, b"first", queue_id=0)
    callers = Callers(store, tmp_path)
    for _ in range(draw.randrange(CALLS_MAX)):
        assert callers.returned.acquire(timeout=60)
    closers = [threading.Thread(target=store.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(60)
        assert not closer.is_alive(), "close does not end"
    assert callers.join(60) == []
    assert callers.odd == []
    with timerstore.open(root, config) as again:
        report = again.verify()
        assert report.clean, report
