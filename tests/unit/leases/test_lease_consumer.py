"""A loop over leased messages."""

import asyncio
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.leasing import bodies, put, take
from timerstore import AckResult, MessageError
from timerstore._engine.leases import LeaseConsumer, Leases
from timerstore.aio import AsyncLeaseConsumer
from timerstore.errors import FullError


def test_lease_consumer(bench: Bench) -> None:
    put(bench, b"a", b"b", b"c")
    seen = []
    consumer = bench.store.lease_consumer("t", "g", wait=0, lease=30, backoff=0)
    for message in consumer:
        seen.append((message.body, message.attempt))
        try:
            with consumer.handling(message):
                if message.body == b"b" and message.attempt < 3:
                    raise ValueError
        except ValueError:
            bench.turn()
    assert seen[0] == (b"a", 1)
    assert sorted(seen) == [(b"a", 1), (b"b", 1), (b"b", 2), (b"b", 3), (b"c", 1)]
    assert bench.store.stats()["pending_messages"] == 0


def test_loop_leases_only_the_message_it_hands_out(bench: Bench) -> None:
    """A loop that leased a batch lost its other messages; they became dead letters."""
    put(bench, b"a", b"b")
    for count, _ in enumerate(bench.store.lease_consumer("t", "g", wait=0), 1):
        assert bench.store.stats()["pending_messages"] == count


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_count": 5}, "max_count: wanted none, because a loop leases one message .*, got 5"),
        ({"wiat": 1.0}, "lease_consumer: wanted some of backoff, .*, wait, got wiat"),
        ({"max_count": 1, "b": 2, "a": 1}, "max_count: .*, got 1; lease_consumer: .*, got a, b"),
    ],
)
def test_loop_rejects_invalid_options(bench: Bench, asked: dict[str, Any], said: str) -> None:
    """It hands out one message at a time; it would lose the others of a batch."""
    put(bench, b"a")
    with bench.refused(MessageError, said):
        bench.store.lease_consumer("t", "g", **asked)
    assert bodies(take(bench)) == [b"a"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_handling_raises_the_error_of_its_block(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """Also if the nack fails: the lease ends by itself."""

    def full(*_: Any) -> None:
        raise FullError("no space")

    raised = kind("why")
    put(bench, b"a")
    consumer = bench.store.lease_consumer("t", "g", wait=0)
    message = next(consumer)
    with monkeypatch.context() as patched:
        patched.setattr(Leases, "nack", full)
        with pytest.raises(kind) as caught, consumer.handling(message):
            raise raised
    assert caught.value is raised
    assert raised.__notes__ == ["and then the nack failed: FullError('no space')"]
    assert bench.store.ack(message) is AckResult.ACKED


@pytest.mark.parametrize(("wait", "is_found"), [(None, True), (5.0, False)])
@pytest.mark.parametrize("is_async", [False, True])
def test_loop_without_a_limit_waits_again(
    wait: float | None, *, is_found: bool, is_async: bool
) -> None:
    answers: list[list[Any]] = [[], [], ["found"]]

    def receive(*_: object, **__: object) -> list[Any]:
        return answers.pop(0)

    async def received(*_: object, **__: object) -> list[Any]:
        return answers.pop(0)

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("nothing is settled")

    async def first() -> Any:
        return await anext(AsyncLeaseConsumer(received, never, never, "t", "g", wait, {}), None)

    blocking: Any = LeaseConsumer(receive, never, never, "t", "g", wait, {})
    found = asyncio.run(first()) if is_async else next(blocking, None)
    assert found == ("found" if is_found else None)
