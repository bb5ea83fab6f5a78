"""Calls from a finalizer or a callback during a call of the same thread raise ReentrantCallError.

Such calls are not supported. These tests show that the locks raise instead of deadlocking, and that
a refused call changes nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import small
from tests.support.collecting import at_collections
from tests.support.elsewhere import elsewhere
from tests.support.inside import (
    checkpoint_lock,
    inside,
    lock_of_key,
    log_write_lock,
    offsets_write_lock,
)
from timerstore import FailedError, ReentrantCallError, TimerStore
from timerstore.testing import Stepper

PATIENCE_S = 120.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", small(), threads=False) as one:
        one.put("t", b"first")
        yield one


LOCKS: dict[str, tuple[Callable[[Any], Any], Callable[[TimerStore], object]]] = {
    "append": (lambda parts: parts.log.lock, lambda store: store.put("t", b"x", tags="slow")),
    "quick append": (lambda parts: parts.log.lock, lambda store: store.put("t", b"x")),
    "write": (lambda parts: log_write_lock(parts.log), lambda store: store.flush()),
    "checkpoint": (lambda parts: checkpoint_lock(parts.checkpoint), lambda store: store.flush()),
    "wheel": (lambda parts: parts.wheel.lock, lambda store: list(store.pending())),
    "key": (
        lambda parts: lock_of_key(parts.replacing, "t", "k"),
        lambda store: store.put("t", b"x", delay=9, key="k", replace=True),
    ),
    "recurring": (
        lambda parts: parts.recurring.planner.lock,
        lambda store: store.put_every("t", b"x", every=60, name="beat"),
    ),
    "retention": (lambda parts: parts.retention._lock, lambda store: store.verify()),
}


@pytest.mark.parametrize("name", LOCKS)
def test_call_that_needs_a_held_lock_raises_and_changes_nothing(
    store: TimerStore, name: str
) -> None:
    lock_of, call = LOCKS[name]
    end = inside(store).log.end
    with lock_of(inside(store)), pytest.raises(ReentrantCallError, match="same thread"):
        call(store)
    assert inside(store).log.end == end
    call(store)
    assert store.verify().clean


def test_put_that_needs_no_held_lock_succeeds(store: TimerStore) -> None:
    with log_write_lock(inside(store).log):
        store.put("t", b"during")
    Stepper(store).settle()
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"first", b"during"]


def test_put_from_a_collection_during_make_room_is_stored_once_or_rejected(
    store: TimerStore,
) -> None:
    put, refused = [b"first"], []

    def inner() -> None:
        body = b"inner %d" % len(put)
        try:
            store.put("t", body + bytes(500))
        except ReentrantCallError as error:
            refused.append(error)
        else:
            put.append(body)

    def outer() -> None:
        kept = []  # objects that stay alive, so that the collector runs
        for n in range(300):
            body = b"outer %d" % n
            kept.append(store.put("t", body + bytes(500)))
            put.append(body)

    for each in (5, 2, 3, 4, 7, 11):  # from 3.12 on, collections come only between steps of Python
        with at_collections(inner, each=each):
            elsewhere(outer, PATIENCE_S)
        if refused:
            break
    assert any(one.startswith(b"inner") for one in put)
    assert refused, "no collection came while a lock was held: the test shows nothing"
    Stepper(store).settle()
    came = Counter(m.body.rstrip(b"\0") for m in store.pull("t", 0, 0, max_count=9_999).messages)
    assert came == Counter(put)
    assert store.verify().clean


def test_close_by_a_service_of_the_store_raises(tmp_path: Path) -> None:
    errors: list[object] = []
    asked = threading.Event()
    with timerstore.open(tmp_path / "s", small()) as store:
        flush = inside(store).pipeline.flush
        step = flush.step

        def closing() -> bool:
            if not asked.is_set():
                try:
                    store.close()
                except ReentrantCallError as error:
                    errors.append(error)
                asked.set()
            return step()

        flush.step = closing  # type: ignore[method-assign]
        store.put("t", b"x")
        assert asked.wait(PATIENCE_S)
        assert "same thread" in str(errors[0])
        assert store.pull("t", 0, 0, wait=PATIENCE_S).messages


def test_sync_during_a_sync_of_the_same_thread_raises(store: TimerStore) -> None:
    rounds, log = inside(store).sync_rounds, inside(store).log
    assert rounds.lead(1)
    with pytest.raises(ReentrantCallError, match="same thread"):
        log.sync_through(log.end)
    assert rounds.is_led_here, "the refused call ended the other one's round"
    rounds.abandon()
    store.flush()


def test_rejected_commit_commits_nothing(store: TimerStore) -> None:
    offsets = inside(store).group_offsets
    with offsets_write_lock(offsets), pytest.raises(ReentrantCallError):
        offsets.wait_for_commit(offsets.begin_commit("t", "refused", {0: 1}))
    offsets.wait_for_commit(offsets.begin_commit("t", "other", {0: 1}))
    assert not offsets.committed("t", "refused")
    assert offsets.committed("t", "other") == {0: 1}


def test_callback_of_a_waiting_pull_may_call_the_store(store: TimerStore) -> None:
    """Dispatch notifies after it released its lock."""
    sizes: list[object] = []
    stepper = Stepper(store)
    stepper.settle()
    waiting = store.begin_pull("t", 0, 1, wait=60)
    assert waiting.enter(lambda: sizes.append(store.stats()["log_end_bytes"]))
    store.put("t", b"second")
    stepper.settle()
    waiting.leave()
    assert sizes


def test_handler_that_interrupts_a_checkpoint_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages copied by then count as written, so a later checkpoint would omit them."""
    with timerstore.open(tmp_path / "s", small(), threads=False) as store:
        store.put("t", b"x", delay=5)
        parts = inside(store)

        def copy_dirty() -> None:
            store.stats()  # raises, as the checkpoint holds the append lock

        with monkeypatch.context() as patched:
            patched.setattr(parts.states, "copy_dirty", copy_dirty)
            with pytest.raises(ReentrantCallError):
                store.flush()
        with pytest.raises(FailedError):
            store.flush()
    with timerstore.open(tmp_path / "s", small(), threads=False) as store:
        assert store.verify().clean
        assert len(list(store.pending())) == 1
