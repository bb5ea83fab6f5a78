"""A heartbeat renews a lease while a block runs, and tells when the lease is lost."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.until import until
from timerstore import AckResult, LeaseLostError, UnavailableError
from timerstore._engine.leases.lease_consumer import Beats, Heartbeat
from timerstore.aio.async_leases import AsyncHeartbeat

EXPIRED = LeaseLostError("over", result=AckResult.EXPIRED)
SETTLED = LeaseLostError("settled", result=AckResult.SETTLED)
AWAY = UnavailableError("no server")


@pytest.mark.parametrize(
    ("results", "goes_on", "lost"),
    [
        ([None], True, None),
        ([AWAY], True, None),
        ([AWAY, AWAY], True, None),
        ([AWAY, AWAY, AWAY], False, "EXPIRED"),
        ([AWAY, AWAY, None, AWAY, AWAY], True, None),
        ([EXPIRED], False, "EXPIRED"),
        ([SETTLED], False, None),
    ],
)
def test_errors_that_can_pass_are_tried_again_until_the_lease_ends(
    results: list[Any], goes_on: bool, lost: str | None
) -> None:
    now_s = 0.0
    beats, last = Beats(30.0, lambda: now_s), True
    assert beats.interval_s == 10.0
    beats.begin()
    beats.renewed()
    for one in results:
        assert last
        now_s += beats.interval_s
        beats.begin()
        if one is None:
            beats.renewed()
        else:
            last = beats.failed(one)
    assert last is goes_on
    assert (beats.lost and beats.lost.result) == lost


def test_renewal_that_fails_after_the_end_of_the_lease_is_the_last() -> None:
    now_s = 0.0
    beats = Beats(30.0, lambda: now_s)
    beats.begin()
    now_s = 5.0  # the answer came late: the lease may have begun with the call
    beats.renewed()
    now_s = 29.9
    assert beats.failed(AWAY)
    assert not beats.may_be_lost
    now_s = 30.0
    assert beats.may_be_lost
    assert not beats.failed(AWAY)
    assert beats.lost is not None
    assert not beats.may_be_lost


def _renewals(*results: Any) -> Callable[[], int]:
    left = list(results)

    def renew() -> int:
        result = left.pop(0) if left else SETTLED
        if isinstance(result, Exception):
            raise result
        return 0

    return renew


@pytest.mark.parametrize("is_async", [False, True])
def test_lease_ends_as_long_after_the_last_renewal_as_after_the_first(*, is_async: bool) -> None:
    now_s, renew = 0.0, _renewals(0, AWAY, AWAY)

    async def renewed() -> int:
        return renew()

    beat: Any = AsyncHeartbeat(renewed, 30.0) if is_async else Heartbeat(renew, 30.0)
    beat._beats = beats = Beats(30.0, lambda: now_s)
    beats.begin()
    beats.renewed()

    def goes_on_at(time_s: float) -> bool:
        nonlocal now_s
        now_s = time_s
        return bool(asyncio.run(beat._beat()) if is_async else beat._beat())

    assert [goes_on_at(one) for one in (10.0, 39.9, 40.0)] == [True, True, False]
    assert beat.lost.result is AckResult.EXPIRED


def _block_until_lost(error: Exception | None, *results: Any) -> None:
    with Heartbeat(_renewals(*results), 0.003) as beat:
        while beat.lost is None:
            pass
        if error is not None:
            raise error


def test_end_of_the_block_raises_if_the_lease_was_lost() -> None:
    with pytest.raises(LeaseLostError, match="over"):
        _block_until_lost(None, 0, 0, EXPIRED)
    with pytest.raises(ZeroDivisionError):
        _block_until_lost(ZeroDivisionError(), 0, EXPIRED)
    with pytest.raises(LeaseLostError, match="over"), Heartbeat(_renewals(EXPIRED), 30.0):
        raise AssertionError("the block begins without a lease")


def test_end_of_an_awaited_block_raises_its_own_error_first() -> None:
    async def block(error: Exception | None) -> None:
        renew = _renewals(0, EXPIRED)

        async def renewed() -> int:
            return renew()

        async with AsyncHeartbeat(renewed, 30.0) as beat:
            assert not await beat._beat()
            if error is not None:
                raise error

    with pytest.raises(LeaseLostError, match="over"):
        asyncio.run(block(None))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(block(ZeroDivisionError()))


def test_block_that_ends_during_a_renewal_without_an_answer_raises() -> None:
    calls: list[int] = []
    begun = threading.Event()

    def renew() -> int:
        calls.append(1)
        if len(calls) == 2:
            begun.set()
            until(lambda: beat._beats.may_be_lost)
        if len(calls) > 1:
            raise AWAY
        return 0

    beat = Heartbeat(renew, 0.06)
    with pytest.raises(LeaseLostError, match="no server"), beat:
        assert begun.wait(20)


@pytest.mark.parametrize(("answer", "is_lost"), [(EXPIRED, True), (SETTLED, False), (0, False)])
def test_task_that_blocks_its_loop_for_a_whole_lease(answer: Any, is_lost: bool) -> None:
    """No renewal can run in that time. The one at the end of the block tells what has happened."""
    renew = _renewals(0, answer)

    async def renewed() -> int:
        return renew()

    async def run() -> None:
        async with AsyncHeartbeat(renewed, 0.03) as beat:
            until(lambda: beat._beats.may_be_lost)  # it blocks

    if is_lost:
        with pytest.raises(LeaseLostError, match="over"):
            asyncio.run(run())
    else:
        asyncio.run(run())


class _Waits:
    """Takes the place of the waits between two renewals; the third one ends the block."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.is_over = threading.Event()
        self.set = self.is_over.set

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        if len(self.seconds) == 3:
            self.set()
        return self.is_over.is_set()


@pytest.mark.parametrize("is_async", [False, True])
def test_renewal_begins_when_a_third_of_the_lease_has_passed(
    monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    waits, renew, sleep = _Waits(), _renewals(0, 0, 0, 0), asyncio.sleep

    async def renewed() -> int:
        return renew()

    async def slept(seconds: float) -> None:
        await (asyncio.Event().wait() if waits.wait(seconds) else sleep(0))

    async def block() -> None:
        async with AsyncHeartbeat(renewed, 30.0):
            while not waits.is_over.is_set():
                await sleep(0)

    if is_async:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", slept)
            asyncio.run(block())
    else:
        beat: Any = Heartbeat(renew, 30.0)
        beat._is_over = waits
        with beat:
            assert waits.is_over.wait(20)
    assert waits.seconds == [10.0, 10.0, 10.0]
