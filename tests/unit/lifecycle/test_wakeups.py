"""Who puts what is due far ahead wakes nobody, but only while somebody comes by before long."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import DAY, Bench, small
from tests.support.inside import (
    dispatch_batch,
    inside,
    replaced_subscribers,
    service_event,
    set_unlinked_requests,
)
from timerstore import TimerStore
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.service import Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.timer.timer_arrays import REQUEST
from timerstore.errors import FullError
from timerstore.testing import Stepper

HOUR_S = 3600
PAUSE_S = 0.005
PATIENCE_S = 30.0
Put = Callable[[TimerStore], Any]
PUTS: dict[str, Put] = {
    "put": lambda store: store.put("t", b"x", delay=HOUR_S),
    "put_many": lambda store: store.put_many("t", [b"x", b"y"], delay=HOUR_S),
    "put_many with keys": lambda store: store.put_many("t", [b"x"], delay=HOUR_S, keys=["k"]),
    "put with a key": lambda store: store.put("t", b"x", delay=HOUR_S, keys="k"),
    "level": lambda store: store.put("t", b"x", level=18),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "store", small(), threads=False) as made:
        made.put("t", b"first")
        made.put("t", b"first", level=18)
        Stepper(made).settle()
        yield made


@pytest.fixture
def synced(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "store", small(flush="sync"), threads=False) as made:
        made.put("t", b"first")
        yield made


def woken(store: TimerStore) -> set[str]:
    """Who was woken since this was asked last."""
    found = set()
    for name in ("dispatch", "flush"):
        event = service_event(store.services()[name])
        if event.is_set():
            found.add(name)
        event.clear()
    return found


def armed(store: TimerStore, value: int | None = None) -> int:
    native = inside(store).log.native
    if value is not None:
        native.flush_armed = value
    return int(native.flush_armed)


@pytest.mark.parametrize("name", list(PUTS))
def test_both_are_woken_unless_one_comes_by_itself(store: TimerStore, name: str) -> None:
    for is_armed in (0, 1, 0):
        armed(store, is_armed)
        woken(store)
        PUTS[name](store)
        assert woken(store) == (set() if is_armed else {"dispatch", "flush"})


@pytest.mark.parametrize(
    ("given", "is_soon"),
    [
        ({"level": 18}, False),
        ({"level": 99}, False),
        ({"delay": HOUR_S, "atomic": True}, False),
        ({"delay": [HOUR_S, 0.02], "keys": ["k", "k"]}, True),
        ({"keys": ["k", "k"]}, True),
    ],
)
def test_lists_wake_dispatch_for_what_is_soon(
    store: TimerStore, given: dict[str, Any], is_soon: bool
) -> None:
    armed(store, 1)
    woken(store)
    store.put_many("t", [b"x", b"y"], **given)
    assert woken(store) == ({"dispatch"} if is_soon else set())


def test_what_is_due_soon_wakes_dispatch(store: TimerStore) -> None:
    armed(store, 1)
    woken(store)
    store.put("t", b"x", delay=1)
    assert woken(store) == {"dispatch"}
    store.put_many("t", [b"x"], delay=1)
    assert woken(store) == {"dispatch"}


def test_flush_that_waits_for_a_checkpoint_alone_is_woken(store: TimerStore) -> None:
    flush = store.services()["flush"]
    store.put("t", b"x", delay=HOUR_S)
    armed(store, 0)
    assert flush.idle_s() is not None
    assert armed(store) == 1, "what is not durable is synced when the interval is over"
    store.flush()
    flush.step()
    while inside(store).log.durable < inside(store).log.end:
        flush.step()
    store.put("t", b"x", delay=HOUR_S)
    inside(store).log.sync_through(inside(store).log.end)
    armed(store, 0)
    assert flush.idle_s() is not None, "a checkpoint is behind"
    assert armed(store) == 0


def test_dispatch_looks_again_until_nothing_came(store: TimerStore) -> None:
    dispatch = store.services()["dispatch"]
    interval_s = store.config.flush_interval_ms / 1000
    dispatch.idle_s()
    assert dispatch.idle_s() is None
    armed(store, 1)
    store.put("t", b"x", delay=HOUR_S)
    assert dispatch.step()
    assert dispatch.idle_s() == interval_s
    assert armed(store) == 1
    store.put("t", b"x", delay=HOUR_S)
    assert dispatch.idle_s() == interval_s, "it has come meanwhile, and woke nobody"
    assert armed(store) == 0, "the next one wakes"
    assert dispatch.step()
    assert dispatch.idle_s() == interval_s
    assert dispatch.idle_s() is None
    assert armed(store) == 0


def test_a_put_that_waits_for_its_sync_wakes_who_does_not_come(synced: TimerStore) -> None:
    Stepper(synced).settle()
    armed(synced, 1)
    woken(synced)
    synced.put("t", b"x", delay=HOUR_S)
    assert woken(synced) == {"dispatch", "flush"}
    flush, dispatch = synced.services()["flush"], synced.services()["dispatch"]
    assert flush.idle_s() is not None, "a checkpoint is behind"
    synced.put("t", b"x", delay=HOUR_S)
    assert woken(synced) == {"dispatch"}, "flush comes by itself"
    assert dispatch.step()
    assert dispatch.idle_s() is not None
    synced.put("t", b"x", delay=HOUR_S)
    assert woken(synced) == set()


def test_a_log_that_grows_has_its_checkpoint_made_before_appends_wait(tmp_path: Path) -> None:
    sizes = {"checkpoint_log_bytes": 64 << 10, "checkpoint_log_bytes_max": 1 << 20}
    with timerstore.open(tmp_path / "store", small(**sizes), threads=False) as store:
        store.put("t", b"first")
        Stepper(store).settle()
        armed(store, 1)
        woken(store)
        checkpoint = inside(store).checkpoint
        while not checkpoint.has_grown:
            assert "flush" not in woken(store)
            store.put("t", bytes(1000), delay=HOUR_S)
            armed(store, 1)
        begun = checkpoint.begun
        for _ in range(40):  # as much as is staged
            store.put("t", bytes(1000), delay=HOUR_S)
        assert "flush" in woken(store)
        assert checkpoint.begun == begun, "who puts does not make it himself"


def test_a_checkpoint_comes_however_many_ask_for_a_sync(tmp_path: Path) -> None:
    sizes = {"checkpoint_log_bytes": 64 << 10, "checkpoint_log_bytes_max": 1 << 20}
    with timerstore.open(tmp_path / "store", small(**sizes), threads=False) as store:
        Stepper(store).settle()
        flush, checkpoint = store.services()["flush"], inside(store).checkpoint
        begun, steps = checkpoint.begun, 0
        while checkpoint.begun == begun:
            steps += 1
            assert steps < 100
            store.put("t", bytes(4000), delay=HOUR_S)
            flush.request()
            flush.step()
        log_end = inside(store).log.end
        assert checkpoint.completed_log_end == log_end
        assert 15 <= steps <= 19, "one sync more than 64 KiB need, at most"


def test_a_synced_put_has_the_checkpoint_of_a_grown_log_made(tmp_path: Path) -> None:
    sizes = {"checkpoint_log_bytes": 8 << 10, "checkpoint_interval_ms": 600_000}
    config = small(flush="sync", reserve_bytes=1 << 20, **sizes)
    with timerstore.open(tmp_path / "store", config, threads=False) as store:
        store.put("t", b"first")
        Stepper(store).settle()
        store.put("t", bytes(100), delay=HOUR_S)
        assert store.services()["flush"].idle_s() is not None
        woken(store)
        while not inside(store).checkpoint.has_grown:
            assert "flush" not in woken(store)
            store.put("t", bytes(100), delay=HOUR_S)
        assert "flush" in woken(store)


def test_a_leader_who_is_interrupted_still_tells(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "store", small(flush="sync"), threads=False) as store:
        store.put("t", b"first")
        Stepper(store).settle()
        log = inside(store).log

        def interrupted(_took_ns: int) -> None:
            raise KeyboardInterrupt

        woken(store)
        synced = inside(store).signals.synced
        with replaced_subscribers(synced, interrupted), pytest.raises(KeyboardInterrupt):
            store.put("t", b"x", delay=HOUR_S)
        assert log.durable == log.end, "others whom this sync served were told so"
        assert "dispatch" in woken(store)


def test_a_checkpoint_that_was_asked_for_is_made_once_there_is_space(store: TimerStore) -> None:
    flush, checkpoint = store.services()["flush"], inside(store).checkpoint
    begun, run = checkpoint.begun, checkpoint.run

    def full(**_given: object) -> None:
        raise FullError("by the test")

    checkpoint.run = full  # type: ignore[method-assign, assignment]
    flush.request_checkpoint()  # type: ignore[attr-defined]
    for _ in range(3):
        with pytest.raises(FullError):
            flush.step()
    checkpoint.run = run  # type: ignore[method-assign]
    assert flush.step()
    assert checkpoint.begun == begun + 1
    assert not flush.step()


@pytest.mark.parametrize(
    ("call", "when"),
    [
        (lambda store: store.put("t", b"x", delay=3600), "far"),
        (lambda store: store.put("t", b"x", delay=1), "near"),
        (lambda store: store.put("t", b"x", delay=0.02), "soon"),
        (lambda store: store.put("t", b"x"), "soon"),
        (lambda store: store.put("t", b"x", delay=3600, tags="a"), "far"),
        (lambda store: store.put("t", b"x", delay=1, tags="a"), "near"),
        (lambda store: store.put("t", b"x", level=1), "near"),
        (lambda store: store.put("t", b"x", level=18), "far"),
        (lambda store: store.put_many("t", [b"x"] * 3, delay=3600), "far"),
        (lambda store: store.put_many("t", [b"x"] * 2000, delay=3600), "far"),
        (lambda store: store.put_many("t", [b"x"] * 2000, delay=1), "near"),
        (lambda store: store.put_many("t", [b"x"] * 3), "soon"),
        (lambda store: store.put_many("t", [b"x"] * 3, deliver_ms=_ms(1000, DAY, DAY)), "near"),
        (lambda store: store.put_many("t", [b"x"] * 3, deliver_ms=_ms(DAY, 20, DAY)), "soon"),
        (lambda store: store.put_many("t", [b"x"] * 3, deliver_ms=_ms(DAY, DAY, DAY)), "far"),
        (lambda store: store.put_many("t", [b"x"] * 3, delay=3600, atomic=True), "soon"),
        (lambda store: store.cancel(store.put("t", b"x", delay=3600)), "soon"),
    ],
)
def test_the_log_says_what_is_soon(synced: TimerStore, call: Put, when: str) -> None:
    """So that a sync wakes dispatch for that alone; what no put wrote is soon."""
    log = inside(synced).log
    begin = log.end
    assert log.native.soon_end <= begin
    assert log.native.near_end <= begin
    call(synced)
    assert (log.native.soon_end == log.end) is (when == "soon")
    assert (log.native.soon_end > begin) is (when == "soon")
    assert (log.native.near_end == log.end) is (when != "far")
    assert (log.native.near_end > begin) is (when != "far")


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


def pauses(store: TimerStore) -> None:
    """Have dispatch pause behind something near."""
    dispatch = inside(store).dispatch
    NEAR["put"](store)
    assert dispatch.step()
    assert dispatch.pause_s() == PAUSE_S


@pytest.mark.parametrize("name", list(PUTS))
def test_dispatch_does_not_pause_behind_what_is_far(store: TimerStore, name: str) -> None:
    """It comes when the flush interval is over, however many put meanwhile."""
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
def test_who_puts_what_is_near_wakes_a_dispatch_that_does_not_come(
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
def test_who_puts_what_is_soon_wakes_it_whether_it_comes_or_not(
    store: TimerStore, name: str
) -> None:
    dispatch = inside(store).dispatch
    armed(store, 1)
    for _ in range(2):
        woken(store)
        SOON[name](store)
        assert woken(store) == {"dispatch"}
        assert dispatch.pause_s() == 0.0, "it goes on with what is soon"
        assert dispatch.step()
        assert dispatch.pause_s() == PAUSE_S
        while dispatch.step():
            pass


def test_dispatch_does_not_pause_with_half_a_staging_before_it(store: TimerStore) -> None:
    dispatch = inside(store).dispatch
    pauses(store)
    dispatch.dispatched -= 1 << 20
    assert dispatch.pause_s() == 0.0
    dispatch.dispatched += 1 << 20


def test_what_came_near_as_dispatch_went_idle_is_seen(store: TimerStore) -> None:
    """Who put it saw that it comes, and woke nobody."""
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


def test_a_dispatch_that_found_no_room_does_not_come(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again after a while, or as soon as it is woken."""
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


def test_a_sync_of_what_is_near_wakes_a_dispatch_that_does_not_come(synced: TimerStore) -> None:
    Stepper(synced).settle()
    dispatch = inside(synced).dispatch
    pauses(synced)
    woken(synced)
    NEAR["put"](synced)
    assert "dispatch" not in woken(synced)
    SOON["put"](synced)
    assert "dispatch" in woken(synced)
    while dispatch.step():
        pass
    dispatch.idle_s()
    NEAR["put"](synced)
    assert "dispatch" in woken(synced)


def test_a_service_pauses_behind_work_until_it_is_woken() -> None:
    """Its thread is the subject: it would go on an hour later else. What it does when nobody wakes
    it is for pause_s to say.
    """
    began, goes_on = threading.Event(), threading.Event()

    class Pausing(Service):
        steps = 0

        def step(self) -> bool:
            self.steps += 1
            (began if self.steps == 1 else goes_on).set()
            return self.steps == 1

        def pause_s(self) -> float:
            return 3600.0

    service = Pausing(Metrics(), Signals())
    service.start()
    assert began.wait(PATIENCE_S)
    assert not goes_on.wait(0.05)
    service.wake()
    assert goes_on.wait(PATIENCE_S)
    service.stop()


def _ms(*delays_ms: int) -> list[int]:
    now_ms = time.time_ns() // 1_000_000
    return [now_ms + delay_ms for delay_ms in delays_ms]


def _put_now(store: TimerStore) -> None:
    store.put("t", b"x")


def test_a_sync_wakes_dispatch_for_what_is_soon_or_if_it_does_not_come(synced: TimerStore) -> None:
    dispatch = inside(synced).dispatch
    dispatch.through(inside(synced).log.end)
    assert dispatch.idle_s() is None, "it came to an end: only who wakes it gets it back"

    def wakes(call: Put) -> bool:
        event = service_event(dispatch)
        event.clear()
        call(synced)
        return event.is_set()

    assert wakes(PUTS["put"])
    assert dispatch.step()
    assert dispatch.idle_s() == synced.config.flush_interval_ms / 1000, "it comes by itself"
    assert not wakes(PUTS["put"])
    assert not wakes(PUTS["put_many"])
    assert wakes(_put_now)
    assert wakes(PUTS["put"]), "what was due now still waits for dispatch"
    assert dispatch.step()
    assert not wakes(PUTS["put"])
    dispatch.step()
    assert not dispatch.step()
    dispatch.idle_s()
    assert not dispatch.step()
    assert dispatch.idle_s() is None
    assert wakes(PUTS["put"])


def test_an_open_slot_that_has_less_wakes_linking_only_where_something_waits_for_it(
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
