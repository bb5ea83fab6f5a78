"""Few messages that become due one after the other wake few threads."""

from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import DEQUEUE_GET_LOADED_MAX, inside, service_event
from timerstore._engine.read.waiting import WaitingPull
from timerstore.errors import FullError


def awaited_delivery(bench: Bench) -> WaitingPull:  # type: ignore[type-arg]
    """Let a pull wait, and deliver a message for it; nothing is dispatched or synced yet."""
    bench.store.put("t", b"first")
    bench.store.put("t", b"x", delay=1)
    bench.turn()
    waiting = bench.store.begin_pull("t", 0, 1, wait=60)
    assert waiting.enter(lambda: None)
    bench.clock.advance(1000)
    for name in ("dequeue_get", "dequeue_get_message"):
        while bench.stepper.step(name):
            pass
    for name in ("dispatch", "dequeue_get", "flush"):
        service_event(bench.store.services()[name]).clear()
    bench.stepper.step("dequeue_put")
    return waiting


def is_woken(bench: Bench, name: str) -> bool:
    return service_event(bench.store.services()[name]).is_set()


def test_flush_dispatches_a_delivery_for_which_a_pull_waits(bench: Bench) -> None:
    waiting = awaited_delivery(bench)
    assert not is_woken(bench, "dispatch")
    assert is_woken(bench, "flush")
    bench.stepper.step("flush")
    assert [one.body for one in waiting.look().messages] == [b"x"]
    assert inside(bench.store).dispatch.dispatched == inside(bench.store).log.end
    assert not is_woken(bench, "dispatch")
    waiting.end()


def test_dispatch_takes_a_delivery_for_which_no_pull_waits(bench: Bench) -> None:
    awaited_delivery(bench).end()
    bench.stepper.step("flush")
    assert is_woken(bench, "dispatch")


def test_dispatch_takes_what_flush_could_not_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = awaited_delivery(bench)
    dispatch = inside(bench.store).dispatch

    def full(_offset: int) -> None:
        raise FullError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "through", full)
        bench.stepper.step("flush")
    assert inside(bench.store).log.durable == inside(bench.store).log.end
    assert is_woken(bench, "dispatch")
    bench.stepper.step("dispatch")
    assert [one.body for one in waiting.look().messages] == [b"x"]
    waiting.end()


def test_dispatch_takes_deliveries_that_are_read_without_a_sync(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(visibility="written"))
    awaited_delivery(bench).end()
    assert is_woken(bench, "dispatch")
    bench.close()


def test_dequeue_get_is_not_woken_by_a_delivery(bench: Bench) -> None:
    awaited_delivery(bench).end()
    assert not is_woken(bench, "dequeue_get")


@pytest.mark.parametrize("has_stopped", [False, True])
def test_dequeue_get_is_woken_by_a_delivery_for_which_it_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, has_stopped: bool
) -> None:
    """It begins no further slot while the open slot has many entries."""
    monkeypatch.setattr(*DEQUEUE_GET_LOADED_MAX, 0)
    bench.store.put_many("t", [b"a", b"b"], deliver_ms=[bench.clock.now_ms + 500] * 2)
    bench.store.put("t", b"later", delay=90)
    bench.turn()
    bench.clock.advance(500)
    for name in ("dequeue_get", "dequeue_get_message"):
        bench.stepper.step(name)
    service = bench.store.services()["dequeue_get"]
    if has_stopped:
        assert service.idle_s() is None
    service_event(service).clear()
    bench.stepper.step("dequeue_put")
    assert is_woken(bench, "dequeue_get") is has_stopped
