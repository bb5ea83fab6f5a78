"""ReceiveMessage: leases, filters, polls, repeated calls, and answers that cannot be sent."""

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.rocketmq
from tests.support.bench import small
from tests.support.held_sync import PATIENCE_S
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, seconds
from tests.support.until import until
from tests.support.ways import WAYS
from timerstore import TimerStore
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore.aio import AsyncTimerStore
from timerstore.aio.quick_work import QuickWork
from timerstore.errors import MessageError
from timerstore.net.server_counters import ServerCounters
from timerstore.rocketmq import known_clients, receiving
from timerstore.rocketmq.connected_calls import connected_calls
from timerstore.rocketmq.definitions import Code, FilterType, messages
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits


def receipts(found: list[Any]) -> list[str]:
    return [one.system_properties.receipt_handle for one in found]


def waits(served: RocketmqBench, count: int) -> None:
    """Return when as many polls wait."""
    while served.server.stats()["net_waiting_requests"] != count:
        threading.Event().wait(0.001)


def test_lease_that_ends_delivers_the_message_again(
    served: RocketmqBench, caller: RawCaller
) -> None:
    caller.send()
    served.bench.turn()
    [first] = caller.receive()
    assert caller.receive() == []
    served.bench.turn(30_000)
    [second] = caller.receive()
    assert second.system_properties.delivery_attempt == 2
    [late] = caller.ack(*receipts([first]))
    assert (late.status.code, late.status.message) == (Code.INVALID_RECEIPT_HANDLE, "EXPIRED")
    assert caller.ack(*receipts([second]))[0].status.code == Code.OK


def test_filters_select_messages(served: RocketmqBench, caller: RawCaller) -> None:
    for tag in ("a", "b", "c"):
        caller.send(body=tag.encode(), tag=tag)
    served.bench.turn()

    def bodies(group: str, kind: int, text: str) -> list[bytes]:
        expression = messages.FilterExpression(type=kind, expression=text)
        return [one.body for one in caller.receive(group=group, filter_expression=expression)]

    assert bodies("g1", FilterType.TAG, "a || c") == [b"a", b"c"]
    assert bodies("g2", FilterType.TAG, "*") == [b"a", b"b", b"c"]
    assert bodies("g3", FilterType.SQL, "TAGS = 'b'") == [b"b"]


def test_receipt_is_valid_after_a_restart(served: RocketmqBench, caller: RawCaller) -> None:
    caller.send()
    served.bench.turn()
    found = caller.receive(auto_renew=True)
    served.server.close()
    served.bench.reopen()
    served.serve()
    assert served.caller().ack(*receipts(found))[0].status.code == Code.OK


def test_poll_waits_for_a_message(served: RocketmqBench, caller: RawCaller) -> None:
    poll = caller.begin(
        "ReceiveMessage",
        caller.receive_request(long_polling_timeout=seconds(20)).SerializeToString(),
    )
    waits(served, 1)
    served.caller().send()
    served.bench.turn()
    assert [one.message.body for one in poll if one.HasField("message")] == [b"x"]


def test_poll_ends_before_the_deadline_of_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "_ANSWER_S", PATIENCE_S)
    with (
        timerstore.open(tmp_path / "store", small()) as store,  # its clock is the real one
        timerstore.rocketmq.serve(store, address="127.0.0.1:0") as server,
    ):
        caller = RawCaller(server.address)
        request = caller.receive_request(long_polling_timeout=seconds(60))
        answers = caller.call("ReceiveMessage", request, timeout=PATIENCE_S + 0.2)
        assert answers[0].status.code == Code.MESSAGE_NOT_FOUND
        caller.close()


def test_repeated_attempt_gets_the_same_messages(served: RocketmqBench, caller: RawCaller) -> None:
    for _ in range(3):
        caller.send()
    served.bench.turn()
    first = caller.receive(attempt_id="a", batch_size=2)
    assert caller.receive(attempt_id="a", batch_size=2) == first
    caller.ack(receipts(first)[0])
    assert caller.receive(attempt_id="a", batch_size=2) == first[1:]
    caller.ack(receipts(first)[1])
    assert len(caller.receive(attempt_id="a", batch_size=2)) == 1  # the third message


def test_cancelled_poll_takes_no_message_from_the_next(
    served: RocketmqBench, caller: RawCaller
) -> None:
    poll = caller.begin(
        "ReceiveMessage",
        caller.receive_request(long_polling_timeout=seconds(20)).SerializeToString(),
    )
    waits(served, 1)
    poll.cancel()
    waits(served, 0)
    other = served.caller()
    other.send()
    served.bench.turn()
    [one] = other.receive()
    assert one.system_properties.delivery_attempt == 1


def test_goodbye_ends_polls_and_leases(served: RocketmqBench, caller: RawCaller) -> None:
    caller.send()
    served.bench.turn()
    assert len(caller.receive(auto_renew=True)) == 1
    poll = caller.begin(
        "ReceiveMessage",
        caller.receive_request("u", long_polling_timeout=seconds(20)).SerializeToString(),
    )
    waits(served, 1)
    assert caller.call("NotifyClientTermination").status.code == Code.OK
    assert [one.status.code for one in poll] == [Code.MESSAGE_NOT_FOUND]
    other = served.caller()
    found: list[Any] = []
    while not found:  # the lease ends after the answer
        served.bench.turn()
        found = other.receive()
    assert found[0].system_properties.delivery_attempt == 2


def test_goodbye_ends_the_stream_of_its_connection_only(
    served: RocketmqBench, caller: RawCaller
) -> None:
    twin = served.caller(caller.client_id)
    mine, other = Stream(caller), Stream(twin)
    assert caller.call("NotifyClientTermination").status.code == Code.OK
    assert mine.rest() == []
    late = messages.TelemetryCommand(settings=messages.Settings(client_type=2))
    assert list(caller.telemetry(iter([late]))) == []  # of a client that opens it once more
    while served.server.stats()["net_connections"] != 1:
        threading.Event().wait(0.001)
    other.end()
    assert {(one.method, one.code) for one in served.server.calls()} == {
        ("NotifyClientTermination", "OK"), ("Telemetry", "OK"),
    }  # fmt: skip


def test_stream_of_a_silent_client_ends(
    served: RocketmqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_clients, "SILENT_S", 2.0)
    served.server.close()
    served.serve()  # the server reads the time when it starts
    silent, other = Stream(served.caller()), served.caller()
    stream = Stream(other)
    while served.server.stats()["net_connections"] == 2:
        assert other.call("Heartbeat").status.code == Code.OK
    assert silent.rest() == []
    assert served.server.stats()["net_connections"] == 1
    stream.end()


def test_goodbye_does_not_end_explicit_leases(served: RocketmqBench, caller: RawCaller) -> None:
    caller.send()
    served.bench.turn()
    found = caller.receive()
    caller.call("NotifyClientTermination")
    assert served.caller().ack(*receipts(found))[0].status.code == Code.OK


class Stream:
    """A Telemetry stream that is open until `end`."""

    def __init__(self, caller: RawCaller) -> None:
        self._ends = threading.Event()
        self._answers = caller.telemetry(self._requests())
        next(self._answers)

    def _requests(self) -> Any:
        yield messages.TelemetryCommand(settings=messages.Settings(client_type=2))
        self._ends.wait()

    def rest(self) -> list[Any]:
        """Return the answers until the server ends the stream."""
        found = list(self._answers)
        self._ends.set()
        return found

    def end(self) -> None:
        self._ends.set()
        list(self._answers)


def test_leases_end_when_the_stream_of_their_client_is_gone(
    served: RocketmqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_clients, "ABSENT_S", 0.01)
    push, other = served.caller(), served.caller()
    stream = Stream(push)
    push.send()
    served.bench.turn()
    assert len(push.receive(auto_renew=True)) == 1
    assert other.receive() == []
    stream.end()
    found: list[Any] = []
    while not found:
        served.bench.turn()
        found = other.receive()
    assert served.server.stats()["net_returned_leases"] == 1


def test_short_break_of_a_stream_ends_no_lease(
    served: RocketmqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, gone, seen = known_clients.KnownClients._left, threading.Event(), []

    def leave(self: known_clients.KnownClients, client: known_clients.Client) -> None:
        left(self, client)
        seen.append(self)
        gone.set()

    monkeypatch.setattr(known_clients.KnownClients, "_left", leave)
    push = served.caller("one")
    stream = Stream(push)
    push.send()
    served.bench.turn()
    found = push.receive(auto_renew=True)
    stream.end()
    assert gone.wait(20)
    assert list(seen[0]._absent) == ["one"]
    again = Stream(served.caller("one"))  # the same program on another connection
    assert push.ack(*receipts(found))[0].status.code == Code.OK
    assert not seen[0]._absent  # the next break has its whole time
    again.end()


def test_twin_with_the_same_id_does_not_end_the_leases_of_another(
    served: RocketmqBench, caller: RawCaller
) -> None:
    twin = served.caller(caller.client_id)
    streams = [Stream(caller), Stream(twin)]
    caller.send()
    served.bench.turn()
    found = caller.receive(auto_renew=True)
    twin.call("NotifyClientTermination")
    assert caller.ack(*receipts(found))[0].status.code == Code.OK
    for one in streams:
        one.end()


def break_connections(address: str) -> None:
    """Shut down the sockets of all clients, as the system does when a process dies."""
    port = int(address.rpartition(":")[2])
    for path in Path("/proc/self/fd").iterdir():
        try:
            one = socket.socket(fileno=int(path.name))
        except OSError:  # it is no socket
            continue
        with suppress(OSError):  # it has no peer
            if one.getpeername()[1:2] == (port,):
                one.shutdown(socket.SHUT_RDWR)
        one.detach()


def test_client_that_dies_during_an_answer_gets_no_message(
    served: RocketmqBench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        served.bench.store.put("t", bytes(200_000))
    rounds = 10
    with caplog.at_level(logging.ERROR):
        for k in range(rounds):
            served.bench.turn()
            caller = served.caller()
            request = caller.receive_request(auto_renew=True)
            answer = caller.begin("ReceiveMessage", request.SerializeToString())
            assert next(answer).status.code == Code.OK
            break_connections(served.server.address)
            while served.server.stats()["net_returned_leases"] < 4 * (k + 1):
                threading.Event().wait(0.001)
    assert not caplog.records
    assert [(one.code, one.calls) for one in served.server.calls()] == [("CANCELLED", rounds)]
    served.bench.turn()
    found = served.caller().receive()
    assert len(found) == 4
    assert {one.system_properties.delivery_attempt for one in found} == {1}


@pytest.mark.parametrize("left", ["call", "connection", "goodbye"])
def test_client_that_leaves_during_a_receive_in_the_pool_gets_no_message(
    served: RocketmqBench, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    real = TimerStore._make_each

    def slow(self: TimerStore, calls: Any) -> Any:
        if any(isinstance(one, ReceiveRequest) for one in calls):
            begun.set()
            assert goes_on.wait(PATIENCE_S)
        return real(self, calls)

    served.server.close()
    monkeypatch.setattr(QuickWork, "is_for_loop", False)
    monkeypatch.setattr(TimerStore, "_make_each", slow)
    served.bench.reopen()
    served.serve()
    caller, other = served.caller(), served.caller()
    served.bench.store.put("t", b"x")
    served.bench.turn()
    call = caller.begin("ReceiveMessage", caller.receive_request().SerializeToString())
    assert begun.wait(PATIENCE_S)
    if left == "call":
        call.cancel()
    elif left == "connection":
        break_connections(served.server.address)
    else:
        assert caller.call("NotifyClientTermination").status.code == Code.OK
        assert [one.status.code for one in call] == [Code.MESSAGE_NOT_FOUND]
    waits(served, 0)
    goes_on.set()

    found: list[Any] = []

    def receive() -> list[Any]:
        served.bench.turn()
        found.extend(other.receive())
        return found

    until(receive)
    assert [one.system_properties.delivery_attempt for one in found] == [1]


@pytest.mark.parametrize(
    ("way", "step_count"),
    [*(("open", k) for k in range(6)), *(("connect", k) for k in (0, 1, 2, 3, 5, 20, 100, 500))],
)
@pytest.mark.parametrize("by", ["client", "goodbye", "both"])
def test_poll_that_ends_at_any_step_loses_no_message(
    tmp_path: Path, by: str, way: str, step_count: int
) -> None:
    bench = WAYS[way](tmp_path / "store")
    bench.store.put("t", b"x")
    bench.turn()

    async def end_poll() -> Any:
        pool, client = ThreadPoolExecutor(1), known_clients.Client("one", "here")
        store: Any = AsyncTimerStore(bench.local, pool, may_block=True)
        if way == "connect":
            store = await connected_calls(bench.store)
        clients = known_clients.KnownClients(RocketmqLimits(), ServerCounters(), lambda *_: None)
        request = ReceiveRequest("t", "g", wait=20)
        poll = asyncio.ensure_future(clients.poll(client, store._receive, request))
        for _ in range(step_count):
            await asyncio.sleep(0)
        if by != "goodbye":
            poll.cancel()
        if by != "client":
            clients.goodbye(client)
        [found] = await asyncio.gather(poll, return_exceptions=True)
        assert clients.waiting_count == 0
        if way == "connect":
            await store.close()
        pool.shutdown()
        return found

    found = asyncio.run(end_poll())
    bench.turn()
    again: list[Any] = []
    if isinstance(found, list) and found:
        again += bench.store.receive("t", "g")
        assert again == []
    else:
        assert found == [] if by == "goodbye" else isinstance(found, asyncio.CancelledError)
        # The owner of a connected store may give it back a moment later.
        until(lambda: again.extend(bench.store.receive("t", "g")) or again)
        assert [one.attempt for one in again] == [1]
    bench.close()


def test_message_that_no_client_can_read_becomes_a_dead_letter(
    served: RocketmqBench, caller: RawCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def view(*_: Any) -> Any:
        raise MessageError("body: compressed with LZ4; only zlib is read, see raw_body")

    monkeypatch.setattr(receiving, "view", view)
    caller.send()
    served.bench.turn()
    assert caller.receive() == []
    served.bench.turn()
    [letter] = served.bench.store.dead_letters("g")
    assert letter.error is not None
    assert "LZ4" in letter.error
