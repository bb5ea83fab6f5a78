"""query() while messages are rescheduled, cancelled and delivered: each is found once, never twice
and never not at all, at whatever step of the one the other comes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.amounts import sample
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import QUERIER_STEPS, inside, readers_of_removals, recent_removals
from timerstore import Message, PutReceipt
from timerstore._engine.base import failpoints
from timerstore._engine.read.query import Querier

LATER = NOW + 60 * SECOND
OLD = NOW + 30 * SECOND


@pytest.fixture(params=["durable", "written"])
def waiting(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Bench, PutReceipt]]:
    bench = Bench(tmp_path, small(visibility=request.param))
    receipt = bench.store.put("t", b"x", keys="k", deliver_ms=OLD, flush="sync")
    bench.turn()
    yield bench, receipt
    bench.close()


def find(bench: Bench, how: str, receipt: PutReceipt) -> list[Message]:
    if how == "offset":
        host = inside(bench.store).log.native.host
        name = bytes(host[0:8]).hex().upper() + f"{receipt.log_offset:016X}"
        return bench.store.query("t", name)
    return bench.store.query("t", "k" if how == "key" else receipt.message_id)


class At:
    """Runs a function once, at the nth pass of a step."""

    def __init__(self, nth: int, action: Callable[[], object]) -> None:
        self.left = nth
        self.action = action

    def passed(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.action()


@pytest.mark.parametrize("how", ["key", "id", "offset"])
@pytest.mark.parametrize("to_ms", [LATER, NOW])
@pytest.mark.parametrize("point", ["reschedule_encoded", "reschedule_appended", "log_synced"])
def test_query_during_a_reschedule_finds_one_time(
    waiting: tuple[Bench, PutReceipt],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    to_ms: int,
    point: str,
) -> None:
    bench, receipt = waiting
    seen: list[list[Message]] = []

    def look(name: str) -> None:
        if name == point and not seen:
            seen.append([])
            seen[0] = find(bench, how, receipt)

    monkeypatch.setattr(failpoints, "hook", look)
    bench.store.reschedule(receipt, deliver_ms=to_ms)
    monkeypatch.setattr(failpoints, "hook", None)
    [message] = seen[0] or [None]
    is_moved = point == "log_synced"  # a staged record is not visible as written either
    if how == "offset" and is_moved:
        assert message is None  # at the old place nothing waits any more
    else:
        assert message is not None, "neither time shows"
        assert message.due_ms == (to_ms if is_moved else OLD)
    after = bench.store.query("t", receipt.message_id)
    assert [one.due_ms for one in after] == [to_ms]


@pytest.mark.parametrize("how", ["key", "id", "offset"])
def test_query_ignores_a_cancel_that_is_not_durable(
    waiting: tuple[Bench, PutReceipt], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    bench, receipt = waiting
    seen: list[int] = []

    def look(name: str) -> None:
        if name == "cancel_appended":
            seen.append(len(find(bench, how, receipt)))

    monkeypatch.setattr(failpoints, "hook", look)
    bench.store.cancel(receipt)
    monkeypatch.setattr(failpoints, "hook", None)
    assert seen == [1]
    assert find(bench, how, receipt) == []


@pytest.mark.parametrize("nth", sample(range(1, 6), "seeds"))
@pytest.mark.parametrize("place", list(QUERIER_STEPS))
@pytest.mark.parametrize("to_ms", [LATER, NOW, None])
def test_reschedule_during_a_query(
    waiting: tuple[Bench, PutReceipt],
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    place: str,
    to_ms: int | None,
) -> None:
    """A complete, durable reschedule at each step of the query: the query returns the old state."""
    bench, receipt = waiting

    def move() -> None:
        if to_ms is None:
            bench.clock.set(OLD)
            bench.stepper.settle()
        else:
            bench.store.reschedule(receipt, deliver_ms=to_ms)

    at = At(nth, move)
    inner: Callable[..., Any] = QUERIER_STEPS[place].value

    def noted(self: Querier, *arguments: Any, **given: Any) -> Any:
        at.passed()
        got = inner(self, *arguments, **given)
        if place == "waiting":
            at.passed()  # behind it, too
        return got

    with monkeypatch.context() as patched:
        patched.setattr(*QUERIER_STEPS[place], noted)
        [message] = bench.store.query("t", "k")
    assert message.due_ms == OLD
    if at.left <= 0:
        [after] = bench.store.query("t", "k")
        assert after.due_ms == (OLD if to_ms is None else to_ms)
        assert after.waits == (to_ms == LATER)


def test_many_reschedules_during_queries(waiting: tuple[Bench, PutReceipt]) -> None:
    bench, receipt = waiting
    for k in range(50):
        receipt = bench.store.reschedule(receipt, deliver_ms=LATER + k)
        [message] = bench.store.query("t", "k")
        assert message.due_ms == LATER + k
    removals = inside(bench.store).removals
    assert len(recent_removals(removals)) <= 1, "what is durable is forgotten"
    assert readers_of_removals(removals) == []
