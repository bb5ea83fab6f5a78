"""Puts wake dispatch and flush only if these do not continue at a time of their own."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, small
from tests.support.inside import (
    inside,
    replaced_subscribers,
)
from tests.support.wakeups import HOUR_S, PATIENCE_S, PUTS, Put, armed, woken
from timerstore import TimerStore
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.service import Service
from timerstore._engine.base.signal import Signals
from timerstore.errors import FullError
from timerstore.testing import Stepper


@pytest.mark.parametrize("name", list(PUTS))
def test_put_wakes_dispatch_and_flush_unless_flush_is_armed(store: TimerStore, name: str) -> None:
    for is_armed in (0, 1, 0):
        armed(store, is_armed)
        woken(store)
        PUTS[name](store)
        assert woken(store) == (set() if is_armed else {"dispatch", "flush"})


@pytest.mark.parametrize("given", [{"unique": True}, {"replace": True}], ids=str)
def test_put_with_a_key_wakes_dispatch_and_flush(store: TimerStore, given: dict[str, Any]) -> None:
    """Otherwise a message put without a sync stays in memory until there is other work."""
    for key in ("a", "b"):
        armed(store, 0)
        woken(store)
        store.put("t", b"x", key=key, delay=HOUR_S, **given)
        assert woken(store) == {"dispatch", "flush"}


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
def test_put_many_wakes_dispatch_when_a_message_is_due_soon(
    store: TimerStore, given: dict[str, Any], is_soon: bool
) -> None:
    armed(store, 1)
    woken(store)
    store.put_many("t", [b"x", b"y"], **given)
    assert woken(store) == ({"dispatch"} if is_soon else set())


def test_put_wakes_dispatch_when_due_soon(store: TimerStore) -> None:
    armed(store, 1)
    woken(store)
    store.put("t", b"x", delay=1)
    assert woken(store) == {"dispatch"}
    store.put_many("t", [b"x"], delay=1)
    assert woken(store) == {"dispatch"}


def test_flush_is_woken_when_it_waits_only_for_a_checkpoint(store: TimerStore) -> None:
    flush = store.services()["flush"]
    store.put("t", b"x", delay=HOUR_S)
    armed(store, 0)
    assert flush.idle_s() is not None
    assert armed(store) == 1, "bytes that are not durable are synced when the interval ends"
    store.flush()
    flush.step()
    while inside(store).log.durable < inside(store).log.end:
        flush.step()
    store.put("t", b"x", delay=HOUR_S)
    inside(store).log.sync_through(inside(store).log.end)
    armed(store, 0)
    assert flush.idle_s() is not None, "a checkpoint is due"
    assert armed(store) == 0


def test_message_linked_after_a_checkpoint_wakes_flush_for_another(store: TimerStore) -> None:
    services = store.services()

    def woken_by_linking() -> set[str]:
        services["dispatch"].step()
        assert services["enqueue_get"].step()
        woken(store)
        assert services["enqueue_put"].step()
        return woken(store)

    store.put("t", b"x", delay=HOUR_S)
    store.flush()
    assert services["flush"].idle_s() is None, "nothing changed since the checkpoint"
    assert woken_by_linking() == {"flush"}
    assert services["flush"].idle_s() is not None
    store.put("t", b"x", delay=HOUR_S)
    assert woken_by_linking() == set(), "it continues by itself"


def test_dispatch_repeats_its_wait_until_the_log_has_not_grown(store: TimerStore) -> None:
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
    assert dispatch.idle_s() == interval_s, "a message arrived since, and woke no service"
    assert armed(store) == 0, "the next put wakes it"
    assert dispatch.step()
    assert dispatch.idle_s() == interval_s
    assert dispatch.idle_s() is None
    assert armed(store) == 0


def test_synced_put_wakes_services_that_are_not_armed(synced: TimerStore) -> None:
    Stepper(synced).settle()
    armed(synced, 1)
    woken(synced)
    synced.put("t", b"x", delay=HOUR_S)
    assert woken(synced) == {"dispatch", "flush"}
    flush, dispatch = synced.services()["flush"], synced.services()["dispatch"]
    assert flush.idle_s() is not None, "a checkpoint is due"
    synced.put("t", b"x", delay=HOUR_S)
    assert woken(synced) == {"dispatch"}, "flush is armed"
    assert dispatch.step()
    assert dispatch.idle_s() is not None
    synced.put("t", b"x", delay=HOUR_S)
    assert woken(synced) == set()


def test_log_growth_wakes_flush_for_a_checkpoint(tmp_path: Path) -> None:
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
        assert checkpoint.begun == begun, "the put does not make it"


def test_checkpoint_is_made_during_constant_sync_requests(tmp_path: Path) -> None:
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


def test_synced_put_wakes_flush_when_the_log_has_grown(tmp_path: Path) -> None:
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


def test_interrupted_sync_still_notifies_dispatch(tmp_path: Path) -> None:
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
        assert log.durable == log.end, "the other waiters of this sync were notified"
        assert "dispatch" in woken(store)


def test_requested_checkpoint_is_made_when_space_is_free_again(store: TimerStore) -> None:
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
        (lambda store: store.cancel(store.put("t", b"x", delay=3600)), "far"),
    ],
)
def test_log_records_up_to_where_messages_are_due_soon(
    synced: TimerStore, call: Put, when: str
) -> None:
    """A sync wakes dispatch only for these. A cancel is far; records of other calls are soon."""
    log = inside(synced).log
    begin = log.end
    assert log.native.soon_end <= begin
    assert log.native.near_end <= begin
    call(synced)
    assert (log.native.soon_end == log.end) is (when == "soon")
    assert (log.native.soon_end > begin) is (when == "soon")
    assert (log.native.near_end == log.end) is (when != "far")
    assert (log.native.near_end > begin) is (when != "far")


def _ms(*delays_ms: int) -> list[int]:
    now_ms = time.time_ns() // 1_000_000
    return [now_ms + delay_ms for delay_ms in delays_ms]


def test_service_pauses_after_work_until_it_is_woken() -> None:
    """Uses a thread, because its wait is under test: without the wake it would last an hour."""
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
