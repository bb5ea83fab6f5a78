"""Repeat failures that the kill tests found, step by step."""

from pathlib import Path

import timerstore
from tests.support.driver import START_MS, tiny
from timerstore.testing import ManualClock, Stepper

_SLOTS = 128  # of tiny()'s wheel


def test_late_message_is_not_lost_when_the_same_batch_needs_its_slot_a_lap_later(
    tmp_path: Path,
) -> None:
    precision_ms = 10
    clock = ManualClock(START_MS)
    config = tiny(precision_ms, "sync")
    store = timerstore.open(tmp_path, config, clock=clock, threads=False)
    stepper = Stepper(store)
    late_ms = START_MS + 5
    store.put("t", b"late", deliver_ms=late_ms)
    store.put("t", b"a lap later", deliver_ms=late_ms + _SLOTS * precision_ms)
    clock.advance((_SLOTS - 10) * precision_ms)
    stepper.step("dequeue_get")  # the wheel is empty, so the message linked below is late
    store.flush()  # the read slot is past the slot of the late message
    for name in ("dispatch", "enqueue_get", "enqueue_put"):
        stepper.step(name)
    store.close()  # before dequeue-put reads it
    store = timerstore.open(tmp_path, config, clock=clock, threads=False)
    clock.advance(20 * precision_ms)
    Stepper(store).settle()
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"late", b"a lap later"]
    assert store.stats()["pending_messages"] == 0
    store.close()
