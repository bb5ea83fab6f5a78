"""Pauses of dispatch: messages due soon wake it, messages due later are collected."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.bench import Bench
from tests.support.inside import (
    dispatch_batch,
    inside,
    service_event,
    set_unlinked_requests,
)
from tests.support.wakeups import PAUSE_S, PUTS, Put, armed, woken
from timerstore import PullResult, TimerStore
from timerstore._engine.read.waiting import WaitingPull
from timerstore._engine.timer.timer_arrays import REQUEST
from timerstore.errors import FullError
from timerstore.testing import Stepper

NEAR: dict[str, Put] = {
    "put": lambda store: store.put("t", b"x", delay=1),
    "put_many": lambda store: store.put_many("t", [b"x", b"y"], delay=1),
    "put with a key": lambda store: store.put("t", b"x", delay=1, keys="k"),
    "level": lambda store: store.put("t", b"x", level=1),
}
SOON: dict[str, Put] = {
    "now": lambda store: store.put("t", b"x"),
    "put": lambda store: store.put("t", b"x", delay=0.02),
    "put_many": lambda store: store.put_many("t", [b"x"], delay=0.02),
    "put with a key": lambda store: store.put("t", b"x", delay=0.02, keys="k"),
}


def waiting_pull(store: TimerStore) -> "WaitingPull[PullResult]":
    """Begin to wait for the first message of another topic."""
    store.put("other", b"x")
    while inside(store).dispatch.step():
        pass
    pull = store.begin_pull("other", 0, 1, wait=60)
    assert pull.enter(lambda: None)
    return pull


def pauses(store: TimerStore) -> None:
    """Make dispatch pause after a near message."""
    dispatch = inside(store).dispatch
    NEAR["put"](store)
    assert dispatch.step()
    assert dispatch.pause_s() == PAUSE_S


@pytest.mark.parametrize("name", list(PUTS))
def test_dispatch_does_not_pause_after_far_messages(store: TimerStore, name: str) -> None:
    """It continues when the flush interval ends, however many messages are put before."""
    dispatch = inside(store).dispatch
    for _ in range(3):
        armed(store, 1)
        woken(store)
        PUTS[name](store)
        assert dispatch.step()
        assert dispatch.pause_s() == 0.0
        assert not dispatch.step()
        assert dispatch.idle_s() == store.config.flush_interval_ms / 1000
        assert inside(store).log.native.dispatch_scheduled == 0


@pytest.mark.parametrize("name", list(NEAR))
@pytest.mark.parametrize("is_armed", [0, 1])
def test_near_put_wakes_dispatch_when_it_does_not_pause(
    store: TimerStore, name: str, is_armed: int
) -> None:
    dispatch = inside(store).dispatch
    flush = set() if is_armed else {"flush"}
    pauses(store)
    armed(store, is_armed)
    woken(store)
    NEAR[name](store)
    assert woken(store) == flush
    while dispatch.step():
        pass
    dispatch.idle_s()
    armed(store, is_armed)
    NEAR[name](store)
    assert woken(store) == flush | {"dispatch"}


@pytest.mark.parametrize("name", list(SOON))
def test_soon_put_always_wakes_dispatch_if_a_pull_waits(store: TimerStore, name: str) -> None:
    dispatch = inside(store).dispatch
    _pull = waiting_pull(store)
    armed(store, 1)
    for _ in range(2):
        woken(store)
        SOON[name](store)
        assert woken(store) == {"dispatch"}
        assert dispatch.pause_s() == 0.0, "it continues with soon messages"
        assert dispatch.step()
        assert dispatch.pause_s() == PAUSE_S
        while dispatch.step():
            pass


@pytest.mark.parametrize("name", list(SOON))
def test_soon_put_wakes_a_pausing_dispatch_only_if_a_pull_waits(
    store: TimerStore, name: str
) -> None:
    """Without a pull, puts at short intervals would cost a step of dispatch each."""
    dispatch = inside(store).dispatch
    armed(store, 1)
    pauses(store)
    woken(store)
    SOON[name](store)
    assert woken(store) == set()
    assert dispatch.step()
    assert dispatch.pause_s() == PAUSE_S
    pull = waiting_pull(store)
    pauses(store)
    armed(store, 1)
    woken(store)
    SOON[name](store)
    assert woken(store) == {"dispatch"}
    pull.leave()
    SOON[name](store)
    assert woken(store) == set()


def test_dispatch_does_not_pause_when_half_a_staging_is_undispatched(store: TimerStore) -> None:
    dispatch = inside(store).dispatch
    pauses(store)
    dispatch.dispatched -= 1 << 20
    assert dispatch.pause_s() == PAUSE_S
    dispatch.dispatched -= 1
    assert dispatch.pause_s() == 0.0
    dispatch.dispatched += (1 << 20) + 1


def test_dispatch_sees_a_near_put_before_it_goes_idle(store: TimerStore) -> None:
    """The put saw that dispatch pauses, so it woke no service."""
    dispatch = inside(store).dispatch
    native = inside(store).log.native
    pauses(store)
    armed(store, 1)
    woken(store)
    NEAR["put"](store)
    assert woken(store) == set()
    assert dispatch.idle_s() == PAUSE_S
    assert native.dispatch_scheduled == 1
    assert dispatch.step()
    dispatch.idle_s()
    assert native.dispatch_scheduled == 0


def test_dispatch_is_woken_after_a_full_disk(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats the step after a while, or when it is woken."""
    dispatch = inside(store).dispatch
    pauses(store)
    NEAR["put"](store)
    woken(store)

    def full(_written: int) -> bool:
        raise FullError("by the test")

    with monkeypatch.context() as patch:
        patch.setattr(*dispatch_batch(dispatch), full)
        with pytest.raises(FullError):
            dispatch.step()
    NEAR["put"](store)
    assert "dispatch" in woken(store)


def test_sync_of_a_near_put_wakes_dispatch_when_it_does_not_pause(synced: TimerStore) -> None:
    Stepper(synced).settle()
    dispatch = inside(synced).dispatch
    pauses(synced)
    woken(synced)
    NEAR["put"](synced)
    SOON["put"](synced)
    assert "dispatch" not in woken(synced)
    _pull = waiting_pull(synced)
    pauses(synced)
    woken(synced)
    SOON["put"](synced)
    assert "dispatch" in woken(synced)
    while dispatch.step():
        pass
    dispatch.idle_s()
    NEAR["put"](synced)
    assert "dispatch" in woken(synced)


def _put_now(store: TimerStore) -> None:
    store.put("t", b"x")


def test_sync_wakes_dispatch_when_due_soon_or_when_idle(synced: TimerStore) -> None:
    dispatch = inside(synced).dispatch
    dispatch.through(inside(synced).log.end)
    assert dispatch.idle_s() is None, "it is idle: it only continues when woken"

    def wakes(call: Put) -> bool:
        event = service_event(dispatch)
        event.clear()
        call(synced)
        return event.is_set()

    assert wakes(PUTS["put"])
    assert dispatch.step()
    assert dispatch.idle_s() == synced.config.flush_interval_ms / 1000, (
        "it waits for the flush interval"
    )
    assert not wakes(PUTS["put"])
    assert not wakes(PUTS["put_many"])
    assert wakes(_put_now)
    assert wakes(PUTS["put"]), "the message due now is not dispatched yet"
    assert dispatch.step()
    assert not wakes(PUTS["put"])
    dispatch.step()
    assert not dispatch.step()
    dispatch.idle_s()
    assert not dispatch.step()
    assert dispatch.idle_s() is None
    assert wakes(PUTS["put"])


def test_open_slot_wakes_linking_only_when_requests_wait(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    service = inside(bench.store).pipeline.enqueue_put
    event = service_event(service)

    def deliver_one() -> bool:
        bench.store.put("t", b"x", delay=1)
        bench.turn()
        event.clear()
        bench.clock.advance(1000)
        event.clear()  # the clock wakes all
        for name in ("dequeue_get", "dequeue_get_message", "dequeue_put"):
            bench.stepper.step(name)
        return event.is_set()

    assert not deliver_one()
    event.clear()
    set_unlinked_requests(service, np.empty(0, REQUEST))  # requests that found no slot
    service.open_slot_has_less()
    assert event.is_set()
    set_unlinked_requests(service, None)
    inside(bench.store).far_wheel.was_used = True
    assert deliver_one()
    inside(bench.store).far_wheel.was_used = False
    bench.close()
