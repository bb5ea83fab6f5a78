"""Receives of one turn of a loop: one sync, one read for calls with the same terms."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.bench import small
from tests.support.stepped_aio import Stepped, stepped_store
from tests.unit.fastpath.aio_puts import held_sync
from timerstore import AckResult, LeasedMessage, MessageError
from timerstore._engine.leases import shared_receive
from timerstore._engine.leases.receive_request import ReceiveRequest, check_receive
from timerstore._engine.leases.shared_receive import receive_together

Test = Callable[[Stepped], Awaitable[None]]


def run(root: Path, test: Test, flush: str = "async") -> None:
    async def opened() -> None:
        async with stepped_store(root, flush=flush) as one:
            await test(one)

    asyncio.run(opened())


async def _received_next(opened: Stepped) -> LeasedMessage:
    """Receive a message that a thread gives back at some time."""
    async with asyncio.timeout(60):
        while True:
            opened.stepper.settle()
            if found := await opened.store.receive("t", "g"):
                return found[0]


def bodies(found: list[LeasedMessage]) -> list[bytes]:
    return [one.body for one in found]


def test_receives_of_one_turn_take_messages_in_order_with_one_sync(tmp_path: Path) -> None:
    async def test(opened: Stepped) -> None:
        await opened.put(*(b"%d" % k for k in range(9)))
        held = held_sync(opened.store)
        held.is_released.set()
        found = await asyncio.gather(
            *(opened.store.receive("t", "g", max_count=count) for count in (1, 3, 1, 10, 1))
        )
        assert [bodies(one) for one in found] == [
            [b"0"], [b"1", b"2", b"3"], [b"4"], [b"5", b"6", b"7", b"8"], []
        ]  # fmt: skip
        assert held.count == 1
        assert len({one.receipt for part in found for one in part}) == 9

    run(tmp_path, test, flush="sync")


def test_receives_with_other_terms_are_not_mixed(tmp_path: Path) -> None:
    async def test(opened: Stepped) -> None:
        await opened.store.put_many("t", [b"a", b"b"])
        await opened.store.put("u", b"c")
        opened.stepper.settle()
        receive = opened.store.receive
        found = await asyncio.gather(
            receive("t", "g", lease=10),
            receive("t", "other", lease=10),
            receive("t", "g", lease=99, max_attempts=1),
            receive(["t", "u"], "third", max_count=5),
        )
        assert [bodies(one) for one in found] == [[b"a"], [b"a"], [b"b"], [b"a", b"b", b"c"]]
        now_ms = opened.clock.now_ms
        assert [one[0].lease_until_ms - now_ms for one in found] == [10_000, 10_000, 99_000, 30_000]
        assert [one[0].is_last_attempt for one in found] == [False, False, True, False]

    run(tmp_path, test)


def test_each_receive_gets_its_own_error(tmp_path: Path) -> None:
    async def test(opened: Stepped) -> None:
        await opened.put(b"a", b"b")
        told = await asyncio.gather(
            opened.store.receive("t", "g"),
            opened.store.receive("t", "g", max_count=0),
            opened.store.receive("t", "a b"),
            opened.store.receive("t", "g"),
            return_exceptions=True,
        )
        assert [str(one)[:9] for one in told if isinstance(one, MessageError)] == [
            "max_count",
            "group: wa",
        ]
        assert [bodies(one) for one in told if isinstance(one, list)] == [[b"a"], [b"b"]]

    run(tmp_path, test)


def test_error_of_a_read_goes_to_the_receives_without_a_message(tmp_path: Path) -> None:
    """A message whose properties leave no space for those of a lease."""

    async def test(opened: Stepped) -> None:
        await opened.store.put("t", b"a")
        await opened.store.put("t", b"b", properties={"p": "x" * 32_400})
        opened.stepper.settle()
        told = await asyncio.gather(
            *(opened.store.receive("t", "g") for _ in range(3)), return_exceptions=True
        )
        assert isinstance(told[0], list)
        assert bodies(told[0]) == [b"a"]
        for one in told[1:]:
            assert isinstance(one, MessageError)
            assert "receive: message 1 of 't'" in str(one)

    run(tmp_path, test)


def test_receives_without_a_message_wait(tmp_path: Path) -> None:
    async def test(opened: Stepped) -> None:
        await opened.put(b"a")
        receives = [
            asyncio.create_task(opened.store.receive("t", "g", wait=wait)) for wait in (9, 0, 9, 9)
        ]
        await asyncio.wait(receives, timeout=30, return_when="FIRST_COMPLETED")
        while not (receives[0].done() and receives[1].done()):
            await asyncio.sleep(0)
        assert bodies(receives[0].result()) == [b"a"]
        assert receives[1].result() == []
        await opened.put(b"b", b"c")
        assert [bodies(await one) for one in receives[2:]] == [[b"b"], [b"c"]]

    run(tmp_path, test)


@pytest.mark.parametrize("wait", [0, 9])
def test_message_of_a_cancelled_receive_goes_to_the_next(tmp_path: Path, wait: int) -> None:
    """It is cancelled while its turn is made."""

    async def test(opened: Stepped) -> None:
        await opened.put(b"a", b"b")
        held = held_sync(opened.store)
        receives = [
            asyncio.create_task(opened.store.receive("t", "g", wait=wait)) for _ in range(2)
        ]
        await held.reached()
        receives[0].cancel()
        await asyncio.wait(receives[:1])
        held.is_released.set()
        assert bodies(await receives[1]) == [b"b"]
        (again,) = await opened.store.receive("t", "g", wait=wait)
        assert (again.body, again.attempt) == (b"a", 1)

    run(tmp_path, test, flush="sync")


def test_receive_that_is_cancelled_with_its_answer_gives_it_back(tmp_path: Path) -> None:
    """It is cancelled after its answer was set, before it runs again."""

    async def test(opened: Stepped) -> None:
        await opened.put(b"a", b"b")

        async def receive_and_cancel() -> list[LeasedMessage]:
            found = await opened.store.receive("t", "g")
            second.cancel()
            return found

        first = asyncio.create_task(receive_and_cancel())
        second = asyncio.create_task(opened.store.receive("t", "g"))
        await asyncio.wait([first, second])
        assert bodies(first.result()) == [b"a"]
        assert second.cancelled()
        again = await _received_next(opened)
        assert (again.body, again.attempt) == (b"b", 1)

    run(tmp_path, test)


def test_close_returns_the_messages_of_receives_that_were_cancelled(tmp_path: Path) -> None:
    async def test(opened: Stepped) -> None:
        await opened.put(b"a")
        held = held_sync(opened.store)
        receive = asyncio.create_task(opened.store.receive("t", "g", lease=3600))
        await held.reached()
        receive.cancel()
        await asyncio.wait([receive])
        held.is_released.set()

    run(tmp_path, test, flush="sync")

    async def test_again(opened: Stepped) -> None:
        opened.stepper.settle()
        (again,) = await opened.store.receive("t", "g")
        assert (again.body, again.attempt) == (b"a", 1)

    run(tmp_path, test_again)


def test_ack_many_shares_the_sync_of_other_calls(tmp_path: Path) -> None:
    async def test(opened: Stepped) -> None:
        await opened.put(*(b"%d" % k for k in range(5)))
        leased = await opened.store.receive("t", "g", max_count=5)
        held = held_sync(opened.store)
        held.is_released.set()
        told = await asyncio.gather(
            opened.store.ack_many(leased[:2]),
            opened.store.ack(leased[2]),
            opened.store.ack_many([leased[3], "no receipt"]),
            opened.store.ack_many([]),
            return_exceptions=True,
        )
        assert told[:2] == [[AckResult.ACKED] * 2, AckResult.ACKED]
        assert isinstance(told[2], MessageError)
        assert "receipts[1]" in str(told[2])
        assert told[3] == []
        assert held.count == 1
        assert await opened.store.ack_many(leased[3:]) == [AckResult.ACKED] * 2

    run(tmp_path, test, flush="sync")


def test_calls_together_read_about_a_limit_of_bytes_and_the_others_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others get their messages, too, also those that do not wait."""
    monkeypatch.setattr(shared_receive, "PASS_BYTES_MAX", 100)

    async def test(opened: Stepped) -> None:
        await opened.put(*(bytes([k]) * 40 for k in range(8)))
        found = await asyncio.gather(
            *(opened.store.receive("t", "g", wait=wait) for wait in (0.0, 5.0, 0.0, 5.0)),
            *(opened.store.receive("t", "h") for _ in range(8)),
            opened.store.receive("t", "h"),
        )
        assert [len(one) for one in found[:4]] == [1] * 4
        assert sorted(one[0].body[0] for one in found[:4]) == [0, 1, 2, 3]
        # Calls that read alone have no order among them: any one of the nine gets nothing.
        assert sorted(len(one) for one in found[4:]) == [0] + [1] * 8
        assert sorted(one[0].body[0] for one in found[4:] if one) == list(range(8))

    run(tmp_path, test)


@pytest.mark.parametrize("groups", ["ggg", "ghi"])
@pytest.mark.parametrize(("body_bytes", "read_count"), [(49, 3), (50, 2)])
def test_reads_together_end_at_the_limit_of_bytes(
    monkeypatch: pytest.MonkeyPatch, groups: str, body_bytes: int, read_count: int
) -> None:
    """Each read finds one message. Calls of one group share reads; those of others do not."""
    monkeypatch.setattr(shared_receive, "PASS_BYTES_MAX", 100)
    sources: dict[str, Any] = {group: object() for group in groups}

    def prepare(request: ReceiveRequest) -> Any:
        return sources[request.group], check_receive(small(), request)

    def take(_source: object, _terms: object) -> list[Any]:
        return [SimpleNamespace(raw_body=bytes(body_bytes))]

    requests = [ReceiveRequest("t", one) for one in groups]
    calls: Any = receive_together(requests, prepare, take)
    assert [len(one.found) for one in calls] == [1] * read_count + [0] * (3 - read_count)
    assert [one.is_postponed for one in calls] == [False] * read_count + [True] * (3 - read_count)
