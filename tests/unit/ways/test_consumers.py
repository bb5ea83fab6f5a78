"""Consumers in each way, also over a connection that is lost."""

import asyncio
import dataclasses
import os
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.ways import run
from timerstore import ClosedError, ConnectionLostError, MessageError
from timerstore.net import remote_consumer
from timerstore.net.async_channel import AsyncChannel
from timerstore.net.channel import Channel


@pytest.fixture
def five(bench: Bench) -> Bench:
    for k in range(5):
        bench.store.put("t", b"%d" % k, queue_id=0)
    bench.turn()
    return bench


def test_consumer_polls_iterates_commits_and_seeks(five: Bench) -> None:
    with five.store.consumer("t", "g", wait=0) as consumer:
        assert (consumer.topic, consumer.group, consumer.queues) == ("t", "g", (0,))
        assert "Consumer" in repr(consumer)
        assert [one.body for one in consumer.poll(2)] == [b"0", b"1"]
        assert consumer.commit() == {0: 2}
        third = next(consumer)
        next(consumer)
        assert consumer.commit(third) == {0: 3}
        assert consumer.commit({0: 4}) == {0: 4}
        assert consumer.seek(1) == {0: 1}
        assert consumer.queues == (0,)
        assert [one.body for one in consumer] == [b"1", b"2", b"3", b"4"]
        assert consumer.poll() == []
        with pytest.raises(MessageError, match="queue 0 was read to 5, got 99"):
            consumer.commit({0: 99})
        with pytest.raises(MessageError, match="this consumer reads 't', got one of 'u'"):
            consumer.commit(dataclasses.replace(third, topic="u"))
        with pytest.raises(MessageError, match="wanted whole numbers as queue_id"):
            consumer.commit(dataclasses.replace(third, queue_offset="1"))  # type: ignore[arg-type]
        for wrong in ((1, -1), (1, True), (1, None), (0, 0)):
            with pytest.raises(MessageError, match=r"wait|max_count"):
                consumer.poll(*wrong)
    with pytest.raises(ClosedError):
        consumer.poll()
    assert next(consumer, None) is None, "a loop ends when another thread closes its consumer"
    consumer.close()
    assert five.store.committed("t", "g") == {0: 4}
    with five.store.consumer("t", "g", queues=[0]) as again:
        assert [one.body for one in again.poll()] == [b"4"]


def test_closed_consumer_leaves_its_queues_to_others(five: Bench) -> None:
    first, second = (five.store.consumer("t", "g") for _ in range(2))
    assert first.queues == (0,)
    assert second.queues == ()
    assert len(first.poll(3)) == 3
    first.close()
    assert second.queues == (0,)
    assert next(one.body for one in second.poll(9)) == b"0", "nothing was committed"
    second.close()


def lose_connection(bench: Bench) -> None:
    """Cut the connection of a client below it, as a server does that dies."""
    if bench.is_awaited:

        async def abort() -> None:
            (await bench.store.one._channel())._transport.abort()

        run(abort())
        return
    channel = bench.store._connector._channel
    with socket.socket(fileno=os.dup(channel.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("is_known", [False, True], ids=["found by commit", "known before"])
def test_consumer_joins_again_after_a_lost_connection(five: Bench, is_known: bool) -> None:
    consumer = five.store.consumer("t", "g")
    assert len(consumer.poll(2)) == 2
    consumer.commit()
    (uncommitted,) = consumer.poll(1)
    lose_connection(five)
    if is_known:
        five.store.topics()
    assert consumer.commit(uncommitted) == {}, "its consumer has ended"
    assert [one.body for one in consumer.poll(9)] == [b"2", b"3", b"4"]
    assert consumer.commit() == {0: 5}
    consumer.close()


def test_calls_over_a_lost_connection_are_made_on_the_next_one(five: Bench) -> None:
    for k in range(5):
        lose_connection(five)
        assert not five.store.put("u", b"x", delay=5 + k).duplicate
        lose_connection(five)
        five.turn()
        (one,) = five.store.receive("t", "g")
        lose_connection(five)
        assert five.store.ack(one) == "ACKED"
    assert len(list(five.store.pending(topic="u"))) == 5
    assert five.store.receive("t", "g") == []


def test_poll_that_lost_its_connection_waits_for_the_rest_of_its_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bench.store.consumer("t", "g")
    waits: list[float] = []
    passed_s = 0.0

    def is_lost(spec: Any, options: Any) -> bool:
        nonlocal passed_s
        if spec.name != "poll":
            return False
        waits.append(options["wait"])
        if len(waits) > 1:
            return False
        passed_s = 7.0
        bench.local.put("t", b"x")
        bench.turn()
        return True

    lost = ConnectionLostError("lost")
    if bench.is_awaited:
        request = AsyncChannel.request

        async def awaited(
            self: AsyncChannel, spec: Any, args: Any, options: Any, *more: Any, **named: Any
        ) -> Any:
            if is_lost(spec, options):
                self._lose(lost)
                raise lost
            return await request(self, spec, args, options, *more, **named)

        async def patch_clock() -> None:
            loop = asyncio.get_running_loop()
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + passed_s)

        run(patch_clock())
        monkeypatch.setattr(AsyncChannel, "request", awaited)
    else:
        made = Channel.request

        def blocking(
            self: Channel, spec: Any, args: Any, options: Any, *more: Any, **named: Any
        ) -> Any:
            if is_lost(spec, options):
                self._lose(lost)
                raise lost
            return made(self, spec, args, options, *more, **named)

        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s, sleep=time.sleep)
        monkeypatch.setattr(remote_consumer, "time", clock)
        monkeypatch.setattr(Channel, "request", blocking)
    assert [one.body for one in consumer.poll(9, 10)] == [b"x"]
    assert waits[0] == 10
    assert 0 < waits[1] <= 3
