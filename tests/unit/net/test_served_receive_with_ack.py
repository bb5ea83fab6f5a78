"""`receive(ack=)` through a server, also one of an older version."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import Bench
from tests.support.leasing import bodies, put
from tests.support.served_bench import ServedBench
from timerstore import AckResult, MessageError
from timerstore.net import server_connection
from timerstore.net.remote_store import RemoteStore
from timerstore.net.server_limits import ServerLimits


def requests(served: ServedBench) -> int:
    return int(served.bench.store.stats()["net_requests"])


@pytest.fixture(params=["present", "older"])
def server_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many calls a server gets for one `receive(ack=)`."""
    if request.param == "older":
        monkeypatch.setattr(server_connection, "ACK_FEATURE", "unknown")
        return 2
    return 1


def test_call_acknowledges_and_receives(server_calls: int, served: ServedBench) -> None:
    remote = served.connect()
    put(served.bench, b"a", b"b", b"c")
    first = remote.receive("t", "g", max_count=2)
    before = requests(served)
    assert bodies(remote.receive("t", "g", ack=first)) == [b"c"]
    assert requests(served) - before == server_calls
    assert remote.ack_many(first) == [AckResult.SETTLED] * 2


def test_begun_call_acknowledges_and_receives(server_calls: int, served: ServedBench) -> None:
    remote = served.connect()
    put(served.bench, b"a", b"b")
    (first,) = remote.receive("t", "g")
    begun = remote.begin_receive("t", "g", ack=[first])
    while (found := begun.take()) is None:
        pass
    assert bodies(found) == [b"b"]
    assert remote.ack(first) is AckResult.SETTLED


def test_awaited_call_acknowledges_and_receives(server_calls: int, served: ServedBench) -> None:
    put(served.bench, b"a", b"b")

    async def run() -> None:
        async with timerstore.aio.connect(served.url) as remote:
            calls: Any = remote
            consumer = remote.lease_consumer("t", "g", wait=0)
            before = requests(served)
            seen = [message async for message in consumer.acking()]
            assert bodies(seen) == [b"a", b"b"]
            assert requests(served) - before == 1 + 2 * server_calls
            assert await calls.ack_many(seen) == [AckResult.SETTLED] * 2

    asyncio.run(run())


def test_wrong_receipt_is_named(remote: RemoteStore, served: ServedBench) -> None:
    put(served.bench, b"a")
    with pytest.raises(MessageError, match=r"ack\[0\]: "):
        remote.receive("t", "g", ack=["no receipt"])
    assert bodies(remote.receive("t", "g")) == [b"a"]


def test_acknowledged_leases_are_not_returned_with_their_connection(served: ServedBench) -> None:
    remote = served.connect(return_leases=True)
    put(served.bench, b"a", b"b")
    first = remote.receive("t", "g")
    held = remote.receive("t", "g", ack=first)
    assert (bodies(first), bodies(held)) == ([b"a"], [b"b"])
    remote.close()
    other = served.connect()
    served.bench.turn()
    (again,) = other.receive("t", "g", wait=20)
    assert (again.body, again.attempt) == (b"b", 2)
    assert served.bench.store.stats()["net_returned_leases"] == 1


def test_acknowledged_leases_do_not_count_for_the_limit(tmp_path: Path) -> None:
    served = ServedBench(
        Bench(tmp_path / "store"), tmp_path / "x.sock", limits=ServerLimits(leases_max=2)
    )
    remote = served.connect(return_leases=True)
    put(served.bench, *(b"%d" % k for k in range(6)))
    held = remote.receive("t", "g")
    for _ in range(5):
        held = remote.receive("t", "g", ack=held)
        assert len(held) == 1
    served.close()
