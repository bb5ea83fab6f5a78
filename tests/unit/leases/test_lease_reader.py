"""The reader of a group that leases: one filter while calls wait, and no consumer of the group."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import NOW, Bench, small
from tests.support.inside import groups_by_topic, inside
from tests.support.shards import ShardBench
from timerstore import FullError, MessageError
from timerstore._engine.leases import WaitingReceive, leases
from timerstore._engine.leases.lease_reader import LeaseReader
from timerstore._engine.read.consumer_offsets import Offsets
from timerstore._engine.read.groups import Groups
from timerstore.testing import ManualClock, Stepper

OTHER = r"group 'g' waits for 't' with tags 'a', sql None, .*; got tags 'b', sql None"


def put(bench: Bench, body: bytes, **more: Any) -> None:
    bench.store.put("t", body, **more)
    bench.turn()


class ReceiveCaller:
    """The caller of a `receive` that waits without a thread."""

    def __init__(self, begun: WaitingReceive) -> None:
        self.woken: list[int] = []
        self._begun = begun
        assert begun.enter(lambda: self.woken.append(1))

    def answer(self) -> list[bytes]:
        self._begun.leave()
        found = self._begun.answer(self._begun.look())
        assert found is not None
        self._begun.end()
        return [one.body for one in found]


def test_receive_with_another_filter_ends_no_wait(bench: Bench) -> None:
    first = ReceiveCaller(bench.store.begin_receive("t", "g", wait=60, tags="a"))
    second = ReceiveCaller(bench.store.begin_receive("t", "g", wait=60, tags="a"))
    for wait in (0, 60):
        with pytest.raises(MessageError, match=OTHER):
            bench.store.receive("t", "g", wait=wait, tags="b")
    with pytest.raises(MessageError, match=OTHER):
        bench.store.begin_receive("t", "g", wait=60, tags="b")
    assert bench.store.receive("t", "g", tags="a") == []  # the same filter as the waiting calls
    assert bench.store.receive("t", "other", tags="b") == []
    assert not first.woken
    assert not second.woken
    put(bench, b"for a", tags="a")
    assert first.woken
    assert first.answer() == [b"for a"]
    put(bench, b"next", tags="a")
    assert second.woken
    assert second.answer() == [b"next"]


def test_filter_may_change_when_no_receive_waits(bench: Bench) -> None:
    waiting = ReceiveCaller(bench.store.begin_receive("t", "g", wait=60, tags="a"))
    bench.turn(60_000)
    assert waiting.answer() == []
    begun = [bench.store.begin_receive("t", "g", tags="b")]  # it has no time to wait
    put(bench, b"for c", tags="c")
    assert [one.body for one in bench.store.receive("t", "g", tags="c")] == [b"for c"]
    assert begun.pop().look() == []
    begun.append(bench.store.begin_receive("t", "g", wait=60, tags="b"))
    with pytest.raises(MessageError, match="got tags 'c'"):
        bench.store.receive("t", "g", tags="c")
    begun.clear()  # no call waits with this filter
    assert bench.store.receive("t", "g", tags="c") == []


def test_loop_with_another_filter_is_rejected_while_a_receive_waits(bench: Bench) -> None:
    """Two waiting calls once ended each other's wait at once, and used a whole processor."""
    waiting = ReceiveCaller(bench.store.begin_receive("t", "g", wait=3600, tags="a"))
    with pytest.raises(MessageError, match=OTHER):
        next(bench.store.lease_consumer("t", "g", tags="b"))
    put(bench, b"for a", tags="a")
    assert waiting.answer() == [b"for a"]


def test_awaited_receive_with_another_filter_ends_no_wait(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        async with timerstore.aio.open(
            tmp_path, small(), clock=clock, threads=False, workers=1
        ) as store:
            waiting = asyncio.create_task(store.receive("t", "g", wait=1000, tags="a"))
            for _ in range(3):
                await store.stats()  # one pool thread: earlier calls have ended
            with pytest.raises(MessageError, match=OTHER):
                await store.receive("t", "g", tags="b")
            await store.put("t", b"for a", tags="a")
            Stepper(store.blocking).settle()
            (found,) = await waiting
            assert found.body == b"for a"
            given_up = asyncio.create_task(store.receive("t", "g", wait=1000, tags="a"))
            await asyncio.sleep(0)  # it is with the pool
            given_up.cancel()
            await asyncio.wait([given_up])
            await store.stats()  # what it had begun is dropped by now
            assert await store.receive("t", "g", tags="b") == []

    asyncio.run(run())


def test_sharded_receive_with_another_filter_ends_no_wait(tmp_path: Path) -> None:
    shards = ShardBench(tmp_path / "shards", 3)
    waiting = shards.store.begin_receive("t", "g", wait=60, tags="a")
    woken: list[int] = []
    assert waiting.enter(lambda: woken.append(1))
    for call in (shards.store.receive, shards.store.begin_receive):
        with pytest.raises(MessageError, match=f"shard 0: {OTHER}"):
            call("t", "g", wait=60, tags="b")
    assert not woken
    waiting.leave()
    waiting.end()
    assert shards.store.receive("t", "g", tags="b") == []
    shards.close()


# --- consumers of the same group ------------------------------------------------------------------


def test_consumer_cannot_join_after_a_concurrent_receive(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer once checked whether the group leases, and joined afterwards."""
    put(bench, b"a")
    join = Groups.join
    leased: list[bytes] = []

    def late(self: Groups, *given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        leased.extend(one.body for one in bench.store.receive("t", "g"))
        return join(self, *given, **named)

    monkeypatch.setattr(Groups, "join", late)
    with pytest.raises(MessageError, match="'g' leases 't' in this process"):
        bench.store.consumer("t", "g")
    assert leased == [b"a"]


def test_consumer_cannot_join_while_a_receive_begins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receive once checked whether a consumer reads, and joined much later."""
    put(bench, b"a")
    said: list[str] = []

    def late(*given: Any) -> LeaseReader:
        try:
            bench.store.consumer("t", "g")
        except MessageError as error:
            said.append(str(error))
        return LeaseReader(*given)

    monkeypatch.setattr(leases, "LeaseReader", late)
    assert [one.body for one in bench.store.receive("t", "g")] == [b"a"]
    assert said == ["group: 'g' leases 't' in this process (receive)"]


def test_consumer_of_the_retry_topic_is_rejected_after_a_receive(bench: Bench) -> None:
    """A consumer there once took messages that were to be leased again."""
    put(bench, b"a")
    again = "%RETRY%g|t"
    assert len(bench.store.receive("t", "g", lease=1)) == 1
    bench.turn(1000)
    with pytest.raises(MessageError, match=r"'g' leases '%RETRY%g\|t' in this process"):
        bench.store.consumer(again, "g", queues=[0])
    with pytest.raises(MessageError, match="by a receive of 't'"):
        bench.store.receive(again, "g")
    with bench.store.consumer(again, "other") as other:
        assert [one.body for one in other.poll()] == [b"a"]
    (leased,) = bench.store.receive("t", "g")
    assert (leased.body, leased.attempt) == (b"a", 2)


def test_receive_is_rejected_when_a_consumer_reads_the_retry_topic(bench: Bench) -> None:
    put(bench, b"a")
    with (
        bench.store.consumer("%RETRY%g|t", "g"),
        pytest.raises(MessageError, match=r"a consumer of group 'g' reads '%RETRY%g\|t'"),
    ):
        bench.store.receive("t", "g")
    assert len(bench.store.receive("t", "g")) == 1
    assert bench.store.receive("%RETRY%h|t", "h") == []
    with pytest.raises(MessageError, match=r"'h' leases '%RETRY%h\|t' .* of '%RETRY%h\|t'"):
        bench.store.receive("t", "h")
    assert bench.store.receive("%RETRY%h|t", "h") == []


@pytest.mark.parametrize("fails", [False, True])
def test_group_can_lease_when_its_consumer_was_closed_during_a_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    put(bench, b"a")
    put(bench, b"b")
    consumer = bench.store.consumer("t", "g")
    consumer.poll(1)
    wait_for_commit = Offsets.wait_for_commit

    def close_first(self: Offsets, pending: Any) -> None:
        consumer.close()
        assert inside(bench.store).groups.known() == []
        if fails:
            raise FullError("disk")
        wait_for_commit(self, pending)

    with monkeypatch.context() as patch:
        patch.setattr(Offsets, "wait_for_commit", close_first)
        try:
            consumer.commit()
        except FullError:
            assert fails
    assert not groups_by_topic(inside(bench.store).groups), (
        "the group has no consumer and no pending commit"
    )
    (one,) = bench.store.receive("t", "g")
    assert one.body == (b"a" if fails else b"b")


def test_group_is_kept_while_a_commit_is_pending(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next consumer waits for the commit; one that joined during the commit stays."""
    put(bench, b"a")
    first = bench.store.consumer("t", "g")
    first.poll()
    wait_for_commit = Offsets.wait_for_commit
    came = []

    def close_first(self: Offsets, pending: Any) -> None:
        first.close()
        came.append(bench.store.consumer("t", "g"))
        wait_for_commit(self, pending)

    with monkeypatch.context() as patch:
        patch.setattr(Offsets, "wait_for_commit", close_first)
        assert first.commit() == {0: 1}
    with pytest.raises(MessageError, match="a consumer of group 'g'"):
        bench.store.receive("t", "g")
    put(bench, b"b")
    assert [one.body for one in came[0].poll()] == [b"b"]


def test_collected_consumer_does_not_prevent_leasing(bench: Bench) -> None:
    put(bench, b"a")
    consumer = bench.store.consumer("t", "g")
    consumer.poll()
    del consumer
    gc.collect()
    assert inside(bench.store).groups.known() == []
    assert [one.body for one in bench.store.receive("t", "g")] == [b"a"]


@pytest.mark.parametrize("wrong", [{"tags": 5}, {"sql": "a >"}, {"lease": -5}, {"max_count": 0}])
def test_rejected_receive_does_not_prevent_a_consumer(bench: Bench, wrong: dict[str, Any]) -> None:
    put(bench, b"a")
    with pytest.raises(MessageError, match=next(iter(wrong))):
        bench.store.receive("t", "g", **wrong)
    with bench.store.consumer("t", "g") as consumer:
        assert [one.body for one in consumer.poll()] == [b"a"]
    assert [one.body for one in bench.store.receive("t", "g")] == [b"a"]
    for _ in range(2):  # also where the group leases: nothing has changed
        with pytest.raises(MessageError, match=next(iter(wrong))):
            bench.store.receive("t", "g", **wrong)
    put(bench, b"b")
    assert [one.body for one in bench.store.receive("t", "g")] == [b"b"]


def test_rejected_filter_loses_no_redelivered_message(bench: Bench) -> None:
    """A consumer was once made before the filter was checked, and lived as long as the error."""
    put(bench, b"a")
    assert len(bench.store.receive("t", "g", lease=1)) == 1
    with pytest.raises(MessageError, match="tags") as caught:
        bench.store.receive("t", "g", tags=5)  # type: ignore[arg-type]
    bench.turn(1000)
    (again,) = bench.store.receive("t", "g")
    assert (again.body, again.attempt) == (b"a", 2)
    assert caught.value.problems
