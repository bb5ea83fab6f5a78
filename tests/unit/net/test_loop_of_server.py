"""What the loop of a server does itself: puts without a task, quick syncs and leases."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.held_sync import PATIENCE_S, HeldSync
from tests.support.inside import inside
from tests.support.served_bench import ServedBench
from tests.support.until import until
from timerstore import AckResult, LeasedMessage
from timerstore.aio import quick_work
from timerstore.errors import ConnectionLostError, FailedError, MessageError
from timerstore.net.server_connection import ServerConnection
from timerstore.net.server_limits import ServerLimits

LOOP, POOL, SYNC = "timerstore-net", "timerstore-net_", "timerstore-aio-sync"
"""How the names of threads begin."""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedBench]]:
    """Make a server of a store that syncs each put, and whose topics exist."""
    with ExitStack() as stack:

        def made(**limits: int) -> ServedBench:
            bench = Bench(tmp_path / "store", small(flush="sync"))
            for topic in ("t", "u"):
                bench.store.put(topic, b"first", message_id="first")
            one = ServedBench(bench, tmp_path / "x.sock", limits=ServerLimits(**limits))
            stack.callback(one.close)
            # The loop syncs this put. A thread would count as syncing until after the answer.
            one.connect().put("u", b"second")
            return one

        yield made


@pytest.fixture(params=["quick", "slow"])
def synced(
    serve: Callable[..., ServedBench],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> ServedBench:
    """A server. quick: its loop makes all syncs. slow: threads make them."""
    monkeypatch.setattr(quick_work, "_QUICK_S", 1e9 if request.param == "quick" else -1.0)
    monkeypatch.setattr(quick_work, "_PAUSES", 1e9)
    return serve()


def _held(served: ServedBench) -> HeldSync:
    return HeldSync(inside(served.bench.store).log.segments)


def _is_quick(request: pytest.FixtureRequest) -> bool:
    return request.node.callspec.params["synced"] == "quick"  # type: ignore[no-any-return]


def _running(served: ServedBench) -> int:
    return served.server.stats()["net_running_requests"]


def _waiting(served: ServedBench) -> int:
    return served.server.stats()["net_waiting_requests"]


def test_puts_in_one_packet_share_a_sync(
    synced: ServedBench, request: pytest.FixtureRequest
) -> None:
    raw = synced.raw()
    raw.hello()
    held = _held(synced)
    held.is_released.set()
    raw.send_all([2, k, "put", ["t", b"x"], {"message_id": f"m{k}"}] for k in range(1, 101))
    assert [raw.reply()[:2] for _ in range(100)] == [[5, k] for k in range(1, 101)]
    (name,) = held.threads
    assert (name == LOOP) if _is_quick(request) else name.startswith(SYNC), name


def test_leases_are_made_by_the_loop_if_that_is_quick(
    synced: ServedBench, request: pytest.FixtureRequest
) -> None:
    remote = synced.connect()
    remote.ack_many(remote.receive("t", "g"))  # makes the group and its queues
    remote.put("t", b"x")
    held = _held(synced)
    held.is_released.set()
    found = remote.receive("t", "g")
    assert [one.body for one in found] == [b"x"]
    assert remote.ack_many(found) == [AckResult.ACKED]
    assert len(held.threads) == 2
    for name in held.threads:
        assert name == LOOP if _is_quick(request) else name.startswith(POOL)


def test_failed_sync_ends_the_connection_of_a_client(synced: ServedBench) -> None:
    """Whether the message is stored is unknown: the next opening of the store tells."""
    remote = synced.connect(retry_for=0)
    held = _held(synced)
    held.error = FailedError("no such luck", where=synced.bench.root)
    held.is_released.set()
    with pytest.raises(ConnectionLostError, match=r"the server ends: .*no such luck"):
        remote.put("t", b"x")


@pytest.mark.parametrize("synced", ["slow"], indirect=True)
def test_put_that_waits_for_its_sync_is_answered_before_the_server_ends(
    synced: ServedBench,
) -> None:
    remote = synced.connect()
    raw = synced.raw()
    raw.hello()
    raw.send([2, 1, "receive", ["other", "g"], {"wait": 60.0}])
    while not _waiting(synced):
        pass
    held = _held(synced)
    with ThreadPoolExecutor(2) as pool:
        putting = pool.submit(remote.put, "t", b"x")
        assert held.is_reached.wait(PATIENCE_S)
        closing = pool.submit(synced.server.close)
        while _waiting(synced):  # the end of the server ends it
            pass
        held.is_released.set()
        assert putting.result(PATIENCE_S).message_id
        closing.result(PATIENCE_S)


@pytest.mark.parametrize("synced", ["slow"], indirect=True)
def test_put_of_a_closed_connection_is_stored(synced: ServedBench) -> None:
    connections = synced.server.stats()["net_connections"]
    raw = synced.raw()
    raw.hello()
    held = _held(synced)
    raw.send([2, 1, "put", ["t", b"not answered"], {"message_id": "m"}])
    assert held.is_reached.wait(PATIENCE_S)
    raw.close()
    while synced.server.stats()["net_connections"] > connections:
        pass
    assert _running(synced) == 1
    held.is_released.set()
    while _running(synced):
        pass
    synced.bench.turn()
    assert synced.bench.bodies("t") == [b"first", b"not answered"]


@pytest.mark.parametrize("wait", [0.0, 60.0])
@pytest.mark.parametrize("synced", ["slow"], indirect=True)
def test_messages_that_are_leased_for_a_closed_connection_are_given_back(
    synced: ServedBench, wait: float
) -> None:
    remote = synced.connect()
    remote.receive("other", "g")  # the loop makes the first one
    connections = synced.server.stats()["net_connections"]
    raw = synced.raw()
    raw.hello()
    held = _held(synced)
    raw.send([2, 1, "receive", ["t", "g"], {"wait": wait}])
    assert held.is_reached.wait(PATIENCE_S), "the message is leased"
    raw.close()
    until(lambda: synced.server.stats()["net_connections"] == connections)
    held.is_released.set()
    until(lambda: not _running(synced))
    found: list[LeasedMessage] = []
    until(lambda: found.extend(remote.receive("t", "g")) or found)  # a thread gives it back
    assert [(one.body, one.attempt) for one in found] == [(b"first", 1)]


def test_messages_that_a_close_has_given_back_are_not_sent(
    synced: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close() gives messages back that no answer has claimed."""
    synced.connect().receive("other", "g")  # makes the group
    raw = synced.raw()
    raw.hello()
    claimed: list[int] = []

    def claim(_store: object, found: list[object]) -> list[object]:
        claimed.append(len(found))
        return []

    monkeypatch.setattr(type(synced.bench.local), "_claim", claim)
    raw.send([2, 1, "receive", ["t", "g"], {}])
    assert raw.reply()[:3] == [5, 1, []]
    assert claimed == [1]


@pytest.mark.parametrize("synced", ["slow"], indirect=True)
def test_slow_sync_does_not_block_other_calls(synced: ServedBench) -> None:
    remote = synced.connect()
    held = _held(synced)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(remote.put, "t", b"x")
        assert held.is_reached.wait(PATIENCE_S)
        assert "t" in synced.connect().topics()
        assert not putting.done()
        held.is_released.set()
        putting.result(PATIENCE_S)


def test_running_puts_count_for_the_limit_of_calls(serve: Callable[..., ServedBench]) -> None:
    served = serve(in_flight_max=3)
    raw = served.raw()
    raw.hello()
    held = _held(served)
    raw.send_all([2, k, "put", ["t", b"%d" % k], {"message_id": f"m{k}"}] for k in range(1, 11))
    assert held.is_reached.wait(PATIENCE_S)
    assert _running(served) == 3
    held.is_released.set()
    assert [raw.reply()[1] for _ in range(10)] == list(range(1, 11))


def test_receipt_longer_than_a_frame_is_an_error(serve: Callable[..., ServedBench]) -> None:
    remote = serve(frame_bytes_max=90).connect(retry_for=0)
    with pytest.raises(MessageError, match="longer than a frame, which has at most 90 bytes"):
        remote.put("t" * 50, b"x")  # the topic is made by a task
    with pytest.raises(MessageError, match="is stored, but its receipt is longer than a frame"):
        remote.put("t" * 50, b"x")


def test_answer_that_fails_keeps_no_other_from_its_client(
    synced: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = synced.raw()
    raw.hello()
    held = _held(synced)
    held.is_released.set()
    send, calls = ServerConnection._send_receipt, count(1)

    def failing(*given: Any) -> None:
        if next(calls) == 2:
            raise MemoryError
        send(*given)

    monkeypatch.setattr(ServerConnection, "_send_receipt", failing)
    raw.send_all([2, k, "put", ["t", b"x"], {"message_id": f"m{k}"}] for k in range(1, 4))
    replies = [raw.reply() for _ in range(3)]
    assert [one[:2] for one in replies] == [[5, 1], [6, 2], [5, 3]]
    assert replies[1][2] == "ServerError"
    assert "its result cannot be sent (MemoryError" in replies[1][3]
    assert _running(synced) == 0
