"""receive(ordered=True) agrees with a model, in any order of calls, turns and reopenings."""

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests.support.bench import Bench
from tests.support.message_groups import LEASE_S, OTHER, A, B, C, numbers, take
from timerstore import AckResult
from timerstore._engine.leases import LeasedMessage


class Model:
    """The messages of each message group, in order, and those that are over."""

    def __init__(self) -> None:
        self.left: dict[str, deque[int]] = {}
        self.leased: dict[int, LeasedMessage] = {}

    def put(self, name: str, number: int) -> None:
        self.left.setdefault(name, deque()).append(number)

    def received(self, messages: list[LeasedMessage]) -> None:
        for one in messages:
            [number] = numbers([one])
            assert one.message_group is not None
            assert self.left[one.message_group][0] == number, "an earlier message is not over"
            self.leased[number] = one

    def over(self, one: LeasedMessage) -> None:
        assert one.message_group is not None
        [number] = numbers([one])
        assert self.left[one.message_group].popleft() == number
        del self.leased[number]


NAMES = [A, B, C, OTHER]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES)),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(
            st.sampled_from(["ack", "nack", "bury", "extend", "give_back"]), st.integers(0, 5)
        ),
        st.tuples(st.just("turn"), st.sampled_from([0, 1_000, 5_000, LEASE_S * 1000])),
        st.tuples(st.sampled_from(["reopen", "unordered reader"]), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(steps=STEPS, attempts_max=st.sampled_from([None, 2]))
def test_messages_of_a_group_agree_with_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]], attempts_max: int | None
) -> None:
    bench = Bench(tmp_path_factory.mktemp("model") / "store")
    model = Model()
    count = 0

    def dead_letters_are_over() -> None:
        dead = {int(one.body.decode().rpartition("-")[2]) for one in bench.store.dead_letters("g")}
        for left in model.left.values():
            if left and left[0] in dead:
                model.leased.pop(left.popleft(), None)

    for step, value in steps:
        held = list(model.leased.values())
        if step == "put":
            bench.store.put("t", f"{value}-{count}".encode(), message_group=value)
            model.put(value, count)
            count += 1
        elif step == "take":
            bench.stepper.settle()
            dead_letters_are_over()
            model.received(take(bench, value, max_attempts=attempts_max))
        elif step == "turn":
            bench.turn(value)
        elif step == "reopen":
            bench.reopen()
        elif held and step in ("ack", "nack", "bury", "extend", "give_back"):
            one = held[value % len(held)]
            _settle(bench, model, step, one)
    # In the end everything comes, in order.
    for _ in range(4 * count + 4):
        bench.turn(LEASE_S * 1000)
        dead_letters_are_over()
        model.received(found := take(bench, 100, max_attempts=attempts_max))
        for one in found:
            assert bench.store.ack(one) is AckResult.ACKED
            model.over(one)
    assert not any(model.left.values())
    bench.close()


def _settle(bench: Bench, model: Model, step: str, one: LeasedMessage) -> None:
    if step == "extend":
        try:
            bench.store.extend(one, lease=60)
        except timerstore.LeaseLostError:
            pass
        else:
            model.leased.pop(numbers([one])[0])  # its receipt is another one now
    elif step == "give_back":
        bench.store._give_back([one.receipt])
        model.leased.pop(numbers([one])[0])
    elif getattr(bench.store, step)(one) in (AckResult.ACKED, AckResult.BURIED):
        model.over(one)
