"""The fast put and put_many with flush="sync": they wait for the sync and report its error.

Some tests use threads because they close a store during a put.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import timerstore
from tests.support.bench import small
from tests.support.held_sync import PATIENCE_S, HeldSync
from timerstore import TimerStore
from timerstore._engine.write.put import PutWriter
from timerstore._engine.write.put_many import PutBatchWriter
from timerstore.errors import ClosedError, FailedError

Put = Callable[[TimerStore], Any]
PUTS: dict[str, Put] = {
    "put": lambda store: store.put("t", b"body", delay=3600),
    "put now": lambda store: store.put("t", b"body"),
    "put_many": lambda store: store.put_many("t", [b"one", b"two"], delay=3600)[1],
}
every_put = pytest.mark.parametrize("put", list(PUTS.values()), ids=list(PUTS))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "store", small(flush="sync"), threads=False) as made:
        made.put("t", b"first")
        yield made


def _is_quick(store: TimerStore) -> bool:
    """Return whether a put uses the fast path in C."""
    return store.put.__self__ is store._putter  # type: ignore[attr-defined]


def _never(*_args: Any, **_given: Any) -> NoReturn:
    raise AssertionError("the slow path was called")


@every_put
def test_put_is_durable_when_it_returns(
    store: TimerStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _is_quick(store)
    monkeypatch.setattr(PutWriter, "put", _never)
    monkeypatch.setattr(PutBatchWriter, "put_many", _never)
    receipt = put(store)
    log = store._engine.log
    assert log.durable == log.end > receipt.log_offset
    assert store._putter.inside == 0


@every_put
def test_close_waits_for_put(store: TimerStore, put: Put) -> None:
    held, done = HeldSync(store._engine.log.segments), []
    putting = threading.Thread(target=lambda: done.append(put(store)))
    putting.start()
    assert held.is_reached.wait(PATIENCE_S)
    assert store._putter.inside == 1
    closing = threading.Thread(target=store.close)
    closing.start()
    while not store._blocked:
        time.sleep(0)
    with pytest.raises(ClosedError):
        put(store)
    assert store._engine.directory.is_held, "the store closed while a put was running"
    held.is_released.set()
    for thread in (putting, closing):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(done) == 1
    assert not store._engine.directory.is_held


@every_put
def test_failed_sync_raises_and_is_final(store: TimerStore, put: Put) -> None:
    held = HeldSync(store._engine.log.segments)
    held.error = FailedError("no such luck", where=store._engine.log.segments.directory)
    held.is_released.set()
    with pytest.raises(FailedError, match="no such luck"):
        put(store)
    assert store._putter.inside == 0
    with pytest.raises(FailedError, match="no such luck"):
        put(store)


BEGUN: dict[str, Put] = {
    "put": lambda store: store._begin_put("t", b"body", delay=3600),
    "put now": lambda store: store._begin_put("t", b"body"),
    "put_many": lambda store: store._begin_put_many("t", [b"one", b"two"], delay=3600),
}


@pytest.mark.parametrize("put", list(BEGUN.values()), ids=list(BEGUN))
def test_begun_put_does_not_wait_for_the_sync(store: TimerStore, put: Put) -> None:
    log = store._engine.log
    held, before = HeldSync(log.segments), log.end
    assert put(store)
    assert not held.is_reached.is_set()
    assert log.durable == before < log.end
    held.is_released.set()
    store._sync_begun(log.end)
    assert log.durable == log.end


NOT_PLAIN: dict[str, Put] = {
    "another topic": lambda store: store._begin_put("u", b"body"),
    "no body": lambda store: store._begin_put("t"),
    "text": lambda store: store._begin_put("t", "body"),
    "tags": lambda store: store._begin_put("t", b"body", tags="x"),
    "flush": lambda store: store._begin_put("t", b"body", flush="async"),
    "time": lambda store: store._begin_put("t", b"body", deliver_ms="soon"),
    "a tuple": lambda store: store._begin_put_many("t", (b"one",)),
    "an empty list": lambda store: store._begin_put_many("t", []),
    "one that is none": lambda store: store._begin_put_many("t", [b"one", 2]),
    "too many": lambda store: store._begin_put_many("t", [b"one"] * 1025),
    "one time too few": lambda store: store._begin_put_many("t", [b"one", b"two"], deliver_ms=[1]),
}


@pytest.mark.parametrize("put", list(NOT_PLAIN.values()), ids=list(NOT_PLAIN))
def test_other_put_is_not_begun(store: TimerStore, put: Put) -> None:
    end = store._engine.log.end
    assert put(store) is None
    assert store._engine.log.end == end


def test_put_is_not_begun_when_store_is_closed(store: TimerStore) -> None:
    store.close()
    assert store._begin_put("t", b"body") is None
    assert store._begin_put_many("t", [b"body"]) is None


def test_put_is_not_begun_when_class_overrides_put(tmp_path: Path) -> None:
    class Counting(TimerStore):
        def put(self, *given: Any, **named: Any) -> Any:
            return super().put(*given, **named)

    with Counting(tmp_path / "own", small(flush="sync"), threads=False) as made:
        made.put("t", b"first")
        assert made._begin_put("t", b"body") is None
        assert made._begin_put_many("t", [b"body"]) is not None
