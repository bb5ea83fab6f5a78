"""The long-poll table: no pull misses its message, and a message wakes its own queue only."""

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import flush_is_requested, forget_flush_request, inside
from tests.support.waiting_calls import WaitingPullCaller, long_poll_count, woken_count

# --- messages that arrive while a pull begins to wait --------------------------------------------

STORE_STEPS = ("put", "dispatch", "flush")
PULL_STEPS = ("look", "enter")
ORDERS = [
    order
    for order in set(itertools.permutations((*STORE_STEPS, *PULL_STEPS)))
    if order.index("put") < min(order.index("dispatch"), order.index("flush"))
    and order.index("look") < order.index("enter")
]


@pytest.mark.parametrize("visibility", ["durable", "written"])
@pytest.mark.parametrize("offset", [0, 1])
def test_pull_misses_no_message_in_any_order_of_steps(
    tmp_path: Path, visibility: str, offset: int
) -> None:
    bench = Bench(tmp_path, small(visibility=visibility))
    bench.store.put("t", b"makes the queues", queue_id=len(ORDERS))
    for queue_id in range(len(ORDERS) * offset):
        bench.store.put("t", b"before", queue_id=queue_id)
    bench.turn()
    for queue_id, order in enumerate(sorted(ORDERS)):
        waiting = WaitingPullCaller(bench, offset, queue_id)
        steps: dict[str, Callable[[], object]] = {
            "put": partial(bench.store.put, "t", b"now", queue_id=queue_id),
            "dispatch": partial(bench.stepper.step, "dispatch"),
            "flush": partial(bench.stepper.step, "flush"),
            "look": waiting.look,
            "enter": waiting.enter,
        }
        for name in order:
            steps[name]()
        if waiting.is_waiting:
            assert waiting.wake_count == 1, f"{order}: it sleeps although its message has arrived"
        waiting.resume()
        assert waiting.bodies == [b"now"], order
        assert long_poll_count(bench) == 0
        bench.turn()
    bench.close()


@pytest.mark.parametrize(("first", "last"), [("flush", "dispatch"), ("dispatch", "flush")])
def test_pull_sees_a_message_that_arrives_while_it_enters_the_table(
    queues: Bench, first: str, last: str
) -> None:
    """The message arrives after the check of the queue and before the poll sleeps."""
    waiting = WaitingPullCaller(queues)
    queue = inside(queues.store).routes.get("t", 0).queue
    parts = inside(queues.store)
    queues.store.put("t", b"now", queue_id=0)
    queues.stepper.step(first)
    arriving = threading.Thread(target=queues.stepper.step, args=(last,))

    def visible(log_end: int) -> int:
        seen = type(queue).visible(queue, log_end)
        if arriving.ident is None:
            before = (parts.dispatch.dispatched, parts.log.durable)
            arriving.start()
            while before == (parts.dispatch.dispatched, parts.log.durable):
                assert arriving.is_alive()
            # It has advanced the visible end; it scans the table next, or scans it already.
        return seen

    queue.visible = visible  # type: ignore[method-assign]
    assert waiting.enter(), "it used an old visible end"
    arriving.join(10)
    assert not arriving.is_alive()
    assert waiting.wake_count == 1
    waiting.resume()
    assert waiting.bodies == [b"now"]


# --- the pulls that a message wakes ---------------------------------------------------------------


def test_message_wakes_only_the_pulls_of_its_queue(queues: Bench) -> None:
    waiting = [[WaitingPullCaller(queues, 0, queue_id) for _ in range(5)] for queue_id in range(3)]
    assert all(one.enter() for row in waiting for one in row)
    assert long_poll_count(queues) == 15
    queues.store.put("t", b"x", queue_id=1)
    queues.turn()
    assert [[one.wake_count for one in row] for row in waiting] == [[0] * 5, [1] * 5, [0] * 5]
    assert (long_poll_count(queues), woken_count(queues)) == (10, 5)
    for one in waiting[1]:
        assert one.resume() is not None
        assert one.bodies == [b"x"]


def test_keyboard_interrupt_during_wake_still_wakes_every_pull(queues: Bench) -> None:
    """The interrupt reaches the thread that syncs or closes, between two wake calls."""
    wake_count: list[str] = []

    def ring() -> None:
        wake_count.append("first")
        if len(wake_count) == 1:
            raise KeyboardInterrupt

    first, last = WaitingPullCaller(queues), WaitingPullCaller(queues)
    assert first.pull.enter(ring)
    assert last.enter()
    with pytest.raises(KeyboardInterrupt):
        inside(queues.store).long_polls.wake_all()
    assert last.wake_count


def test_message_wakes_one_of_a_thousand_waiting_pulls(bench: Bench) -> None:
    count = 1000
    bench.store.put("t", b"makes the topic", queue_id=count)
    bench.turn()
    waiting = [WaitingPullCaller(bench, 0, queue_id) for queue_id in range(count)]
    assert all(one.enter() for one in waiting)
    for expected, queue_id in enumerate((7, 0, 999, 500), 1):
        bench.store.put("t", b"x", queue_id=queue_id)
        bench.turn()
        assert woken_count(bench) == expected
        assert sum(one.wake_count for one in waiting) == expected
        assert waiting[queue_id].wake_count == 1


def test_message_wakes_no_pull_and_requests_a_sync_until_durable(queues: Bench) -> None:
    waiting = WaitingPullCaller(queues)
    waiting.enter()
    queues.store.put("t", b"x", queue_id=0)
    flush = inside(queues.store).pipeline.flush
    forget_flush_request(flush)
    queues.stepper.step("dispatch")
    assert waiting.wake_count == 0
    assert flush_is_requested(flush), "a pull waits for this"
    queues.stepper.step("flush")
    assert waiting.wake_count == 1


def test_pull_that_begins_to_wait_requests_a_sync_of_appended_messages(queues: Bench) -> None:
    flush = inside(queues.store).pipeline.flush
    forget_flush_request(flush)
    WaitingPullCaller(queues).enter()
    assert not flush_is_requested(flush), "nothing is behind"
    queues.store.put("t", b"x", queue_id=0)
    forget_flush_request(flush)
    WaitingPullCaller(queues).enter()
    assert flush_is_requested(flush)


def test_sync_does_not_scan_queues_without_new_messages(queues: Bench) -> None:
    waiting = WaitingPullCaller(queues)
    waiting.enter()
    queue = inside(queues.store).routes.get("t", 0).queue
    queue.visible = lambda _end: pytest.fail("looked")  # type: ignore[method-assign]
    queues.store.put("t", b"x", queue_id=1)
    queues.turn()
    queues.store.flush()
    assert waiting.wake_count == 0
    del queue.visible
    waiting.pull.leave()


def test_delivery_wakes_a_pull(queues: Bench) -> None:
    queues.store.put("t", b"later", delay=5, queue_id=0)
    queues.turn()
    waiting = WaitingPullCaller(queues)
    waiting.enter()
    queues.turn(4999)
    assert waiting.wake_count == 0
    queues.turn(1)
    assert waiting.wake_count == 1
    waiting.resume()
    assert waiting.bodies == [b"later"]
