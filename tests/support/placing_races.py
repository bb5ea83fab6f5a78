"""Run another operation between the planning of a change and its placement in the log.

Each change is planned without a lock and placed under the append lock. An operation on the same
message may run in between. Every counter must agree with a recount afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.bench import DAY, SECOND, Bench
from tests.support.inside import failpoints, inside
from timerstore import (
    CancelResult,
    FullError,
    PutReceipt,
)

LAP_S = 128  # of a bench's wheel

Act = Callable[[], object]


def recounted(bench: Bench) -> int:
    """Return the number of pending messages, and check that every counter agrees."""
    store = bench.store
    stats, waiting = store.stats(), list(store.pending())
    on_level = [one for one in waiting if one.timer_id < 0]
    by_topic: dict[str, int] = {}
    for one in waiting:
        by_topic[one.topic] = by_topic.get(one.topic, 0) + 1
    assert stats["pending_messages"] == len(waiting)
    assert stats["pending_by_topic"] == by_topic
    assert stats["level_pending_messages"] == len(on_level)
    assert sum(store.timing_distribution().values()) == len(waiting)
    assert sum(store.congestion().values()) == len(waiting) - len(on_level)
    now_ms = bench.clock.now_ms
    histogram = store.histogram(now_ms - DAY, now_ms + 30 * DAY, by="day")
    assert int(histogram.counts.sum()) == len(waiting)
    assert store.verify().clean
    return len(waiting)


def assert_all_delivered(bench: Bench, delivered: list[bytes]) -> None:
    """Check that each message is delivered once, and that no slot has an undelivered message."""
    recounted(bench)
    bench.turn(DAY)
    assert sorted(bench.bodies()) == sorted(delivered)
    assert recounted(bench) == 0
    parts = inside(bench.store)
    assert parts.open_slot.outstanding().tolist() == []
    assert bench.store.stats()["open_slot_messages"] == 0
    assert bench.store.stats()["paced_messages"] == 0
    bench.store.flush()
    assert parts.wheel.completed_replay_slot > bench.clock.now_ms // SECOND
    bench.reopen()
    assert recounted(bench) == 0
    assert sorted(bench.bodies()) == sorted(delivered)


@contextmanager
def before_space(bench: Bench, service: str, *acts: Act) -> Iterator[list[str]]:
    """Run each act once, between planning and placing.

    The log has no space when the service places its plan. Each act runs before space is made.
    """
    log, left, run = inside(bench.store).log, list(acts), list[str]()
    provide = log.provide_in_batch

    def between(status: int, need: int, what: str) -> None:
        if what == service and left:
            run.append(what)
            left.pop(0)()
        provide(status, need, what)
        if what == service and left:
            log.native.append_limit = 0  # no space for the next attempt either

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "provide_in_batch", between)
        log.native.append_limit = 0
        yield run
    assert len(run) == len(acts), "the service never placed anything"


@contextmanager
def at_failpoint(point: str, act: Act, *, always: bool = False) -> Iterator[list[str]]:
    """Run an act when a fail point is passed, the first time or always."""
    run: list[str] = []

    def hook(name: str) -> None:
        if name == point and (always or not run):
            run.append(name)
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hook", hook)
        yield run
    assert run, f"{point} was not passed"


def cancelling(bench: Bench, *receipts: PutReceipt) -> Act:
    def act() -> None:
        for one in receipts:
            assert bench.store.cancel(one) is CancelResult.CANCELLED

    return act


def turn_seconds(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.turn(SECOND)


def full() -> None:
    raise FullError("write: No space left on device (ENOSPC)")
