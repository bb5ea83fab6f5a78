"""Limits on everything that a client can make grow."""

import asyncio
import gzip
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.bench import Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource, seconds
from tests.support.until import until
from timerstore.aio import AsyncTimerStore
from timerstore.errors import ConfigError
from timerstore.rocketmq import known_clients
from timerstore.rocketmq.byte_budget import answer_bytes, message_bytes
from timerstore.rocketmq.definitions import Code, messages
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Any]:
    made: list[RocketmqBench] = []

    def make(**limits: int) -> RocketmqBench:
        bench = Bench(tmp_path / f"store{len(made)}")
        made.append(RocketmqBench(bench, limits=RocketmqLimits(**limits)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def code_of(caller: RawCaller, topic: str = "t", group: str = "g", **fields: Any) -> int:
    request = caller.receive_request(topic, group, **fields)
    return int(caller.call("ReceiveMessage", request)[0].status.code)


def test_topics_that_clients_make_are_limited(limited: Any) -> None:
    served = limited(topics_max=2)  # one of them is that of the timers
    caller = served.caller()
    assert caller.send("one").status.code == Code.OK
    refused = caller.send("two").status
    assert (refused.code, "topics_max" in refused.message) == (Code.TOO_MANY_REQUESTS, True)
    assert caller.send("one").status.code == Code.OK


def test_topics_of_one_call_are_limited_together(limited: Any) -> None:
    system = messages.SystemProperties(message_type=1)
    sent = [
        messages.Message(topic=resource(name), body=b"x", system_properties=system)
        for name in ("one", "two", "three")
    ]
    entries = limited(topics_max=3).caller().call("SendMessage", messages=sent).entries
    codes = [one.status.code for one in entries]
    assert codes == [Code.OK, Code.OK, Code.TOO_MANY_REQUESTS]


def test_groups_are_limited(limited: Any) -> None:
    caller = limited(groups_max=1).caller()
    assert code_of(caller, group="one") == Code.MESSAGE_NOT_FOUND
    assert code_of(caller, group="not a group") == Code.ILLEGAL_CONSUMER_GROUP
    assert code_of(caller, group="two") == Code.TOO_MANY_REQUESTS
    assert code_of(caller, group="one") == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("name", ["polls_max", "client_polls_max"])
def test_polls_are_limited(limited: Any, name: str) -> None:
    served = limited(**{name: 1})
    caller = served.caller()
    poll = caller.begin(
        "ReceiveMessage",
        caller.receive_request(long_polling_timeout=seconds(20)).SerializeToString(),
    )
    while not served.server.stats()["net_waiting_requests"]:
        threading.Event().wait(0.001)
    assert code_of(caller) == Code.TOO_MANY_REQUESTS
    others = Code.TOO_MANY_REQUESTS if name == "polls_max" else Code.MESSAGE_NOT_FOUND
    assert code_of(served.caller()) == others
    poll.cancel()


def test_connections_are_limited(limited: Any) -> None:
    served = limited(connections_max=1)
    first, second = served.caller(), served.caller()
    assert first.send().status.code == Code.OK
    with pytest.raises(grpc.RpcError) as found:
        second.send()
    assert found.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_clients_are_limited(limited: Any) -> None:
    served = limited(clients_max=1)
    ends = threading.Event()

    def requests() -> Any:
        yield messages.TelemetryCommand(settings=messages.Settings(client_type=1))
        ends.wait()

    stream = served.caller().telemetry(requests())
    next(stream)
    assert [one.status.code for one in served.caller().telemetry(iter([]))] == [
        Code.TOO_MANY_REQUESTS
    ]
    ends.set()
    list(stream)


def send_request(body: bytes, *, is_gzip: bool = False) -> bytes:
    system = messages.SystemProperties(message_type=1, body_encoding=2 if is_gzip else 1)
    sent = gzip.compress(body) if is_gzip else body
    one = messages.Message(topic=resource("t"), body=sent, system_properties=system)
    return bytes(messages.SendMessageRequest(messages=[one]).SerializeToString())


@pytest.mark.parametrize("is_gzip", [False, True])
@pytest.mark.parametrize("missing", [0, 1])
def test_bytes_of_requests_and_bodies_are_limited(
    limited: Any, is_gzip: bool, missing: int
) -> None:
    raw = send_request(b"x" * 5000, is_gzip=is_gzip)
    caller = limited(sending_bytes_max=len(raw) + 5000 - missing).caller()
    answer = caller.call("SendMessage", raw)
    assert answer.status.code == (Code.TOO_MANY_REQUESTS if missing else Code.OK)
    assert ("sending_bytes_max" in answer.status.message) == bool(missing)
    while not missing and caller.call("SendMessage", raw).status.code != Code.OK:
        pass  # the first one soon counts no more


def test_decoded_memory_of_requests_is_limited(limited: Any) -> None:
    raw = messages.HeartbeatRequest(group=resource("g")).SerializeToString()
    for missing, code in ((0, Code.OK), (1, Code.TOO_MANY_REQUESTS)):
        caller = limited(sending_bytes_max=32 * len(raw) - missing).caller()
        assert caller.call("Heartbeat", raw).status.code == code
    command = messages.TelemetryCommand(settings=messages.Settings(client_type=1))
    size = 32 * len(command.SerializeToString())
    for missing, code in ((0, Code.OK), (1, Code.TOO_MANY_REQUESTS)):
        caller = limited(sending_bytes_max=size - missing).caller()
        assert [one.status.code for one in caller.telemetry(iter([command]))] == [code]


def test_clients_that_said_goodbye_are_limited(limited: Any) -> None:
    served = limited(clients_max=1)
    first, second = served.caller(), served.caller()
    command = messages.TelemetryCommand(settings=messages.Settings(client_type=1))
    for one in (first, second):
        one.call("NotifyClientTermination")
    assert list(second.telemetry(iter([command]))) == []
    assert len(list(first.telemetry(iter([command])))) == 1  # it is forgotten


def test_request_above_the_limit_is_refused_undecoded(limited: Any) -> None:
    caller = limited(sending_bytes_max=100).caller()
    assert caller.call("SendMessage", b"\x08" * 100).status.code == Code.BAD_REQUEST
    assert caller.call("SendMessage", b"\x08" * 101).status.code == Code.TOO_MANY_REQUESTS


def test_inflated_bodies_of_calls_at_a_time_are_limited_together(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, begun, goes_on = AsyncTimerStore.put, threading.Event(), threading.Event()

    async def slow(self: AsyncTimerStore, *args: Any, **options: Any) -> Any:
        begun.set()
        while not goes_on.is_set():
            await asyncio.sleep(0.001)
        return await put(self, *args, **options)

    monkeypatch.setattr(AsyncTimerStore, "put", slow)
    raw = send_request(b"x" * 5000, is_gzip=True)
    served = limited(sending_bytes_max=2 * (len(raw) + 5000) - 1)
    first: list[Any] = []
    one = served.caller()
    thread = threading.Thread(target=lambda: first.append(one.call("SendMessage", raw)))
    thread.start()
    assert begun.wait(20)
    caller = served.caller()
    assert caller.call("SendMessage", raw).status.code == Code.TOO_MANY_REQUESTS
    goes_on.set()
    thread.join()
    assert first[0].status.code == Code.OK
    while caller.call("SendMessage", raw).status.code != Code.OK:
        pass  # the first one soon counts no more


BODY = bytes(300_000)
"""No connection takes it before its client reads it."""


def answer_size(served: RocketmqBench) -> int:
    """Put three messages with this body; return the size of an answer with one of them."""
    for _ in range(3):
        served.bench.store.put("t", BODY)
    served.bench.turn()
    return answer_bytes(served.bench.store.receive("t", "other"))


def unread(served: RocketmqBench, client_id: str | None = None, **fields: Any) -> Any:
    """Return an answer with a message that its client does not read."""
    caller = served.caller(client_id)
    before = served.server.stats()["net_running_requests"]
    request = caller.receive_request(batch_size=1, **fields).SerializeToString()
    call = caller.begin("ReceiveMessage", request)
    assert next(call).status.code == Code.OK
    assert served.server.stats()["net_running_requests"] == before + 1
    return call


@pytest.mark.parametrize("missing", [0, 1])
def test_bytes_of_unread_answers_are_limited(limited: Any, missing: int) -> None:
    served = limited(unsent_bytes_max=2 * answer_size(limited()) - missing)
    answer_size(served)
    first, caller = unread(served), served.caller()
    if missing:
        assert code_of(caller, batch_size=1) == Code.TOO_MANY_REQUESTS
    else:
        second = unread(served)
        assert code_of(caller, batch_size=1) == Code.TOO_MANY_REQUESTS
        assert [len(one.message.body) for one in second if one.HasField("message")] == [len(BODY)]
    first.cancel()
    found: list[Any] = []
    while len(found) < 3 - (not missing):  # its message, and those of the refused calls
        served.bench.turn()
        with suppress(ValueError):  # the answer that was cancelled still counts
            found += caller.receive()
    assert {one.system_properties.delivery_attempt for one in found} == {1}


def test_repeated_call_above_the_limit_takes_no_lease_from_the_first(limited: Any) -> None:
    served = limited(unsent_bytes_max=answer_size(limited()))
    answer_size(served)
    first = unread(served, "one", attempt_id="a")
    again = served.caller("one")
    assert code_of(again, batch_size=1, attempt_id="a") == Code.TOO_MANY_REQUESTS
    assert acked(served, first) == [Code.OK]


def acked(served: RocketmqBench, answer: Any) -> list[int]:
    """Read the rest of an answer, and acknowledge its messages; return the codes."""
    receipts = [one.message.system_properties.receipt_handle for one in answer
                if one.HasField("message")]  # fmt: skip
    assert receipts
    return [one.status.code for one in served.caller().ack(*receipts)]


@pytest.mark.parametrize("fails", ["first", "again"])
def test_call_that_fails_takes_no_lease_from_its_repetition(limited: Any, fails: str) -> None:
    served = limited()
    answer_size(served)
    calls = {name: unread(served, "one", attempt_id="a") for name in ("first", "again")}
    calls.pop(fails).cancel()
    until(lambda: served.server.stats()["net_running_requests"] == 1)
    [left] = calls.values()
    assert acked(served, left) == [Code.OK]
    assert served.server.stats()["net_returned_leases"] == 0


def test_message_of_calls_that_all_fail_is_given_back(limited: Any) -> None:
    served = limited()
    answer_size(served)
    for one in [unread(served, "one", attempt_id="a") for _ in range(2)]:
        one.cancel()
    until(lambda: served.server.stats()["net_returned_leases"])
    served.bench.turn()
    found = served.caller().receive()
    assert [one.system_properties.delivery_attempt for one in found] == [1, 1, 1]


def test_repetition_that_fails_takes_no_lease_that_was_sent(limited: Any) -> None:
    served = limited()
    answer_size(served)
    first = list(unread(served, "one", attempt_id="a"))
    unread(served, "one", attempt_id="a").cancel()
    until(lambda: not served.server.stats()["net_running_requests"])
    assert acked(served, first) == [Code.OK]


def test_poll_that_gets_messages_above_the_limit_gives_them_back(limited: Any) -> None:
    served = limited(unsent_bytes_max=answer_size(limited()))
    answer_size(served)
    caller = served.caller()
    request = caller.receive_request("u", long_polling_timeout=seconds(20))
    poll = caller.begin("ReceiveMessage", request.SerializeToString())
    while not served.server.stats()["net_waiting_requests"]:
        threading.Event().wait(0.001)
    first = unread(served)
    served.bench.store.put("u", b"x")
    served.bench.turn()
    assert [one.status.code for one in poll] == [Code.TOO_MANY_REQUESTS]
    assert [one.HasField("message") for one in first] == [True, False]
    found: list[Any] = []
    while not found:
        with suppress(ValueError):  # the answer that was read soon counts no more
            found = caller.receive("u")
    assert [one.system_properties.delivery_attempt for one in found] == [1]


def test_answer_above_the_limit_is_sent_alone(limited: Any) -> None:
    served = limited(unsent_bytes_max=1)
    answer_size(served)
    caller = served.caller()
    assert [len(one.body) for one in caller.receive()] == [len(BODY)]  # of three messages


def test_entries_of_a_call_are_limited(limited: Any) -> None:
    served = limited(entries_max=2)
    caller = served.caller()
    one = messages.Message(
        topic=resource("t"), body=b"x", system_properties=messages.SystemProperties(message_type=1)
    )
    for count, code in ((2, Code.OK), (3, Code.BAD_REQUEST)):
        assert caller.call("SendMessage", messages=[one] * count).status.code == code
    caller.send()
    served.bench.turn()
    found = caller.receive()
    assert len(found) == 2
    entries = [
        messages.AckMessageEntry(receipt_handle=one.system_properties.receipt_handle)
        for one in found
    ]
    assert caller.call("AckMessage", entries=[*entries, entries[0]]).status.code == Code.BAD_REQUEST
    assert caller.call("AckMessage", entries=entries).status.code == Code.OK


def test_size_of_ids_is_limited(limited: Any) -> None:
    served = limited()
    for size, code in ((256, Code.OK), (257, Code.CLIENT_ID_REQUIRED)):
        assert served.caller("x" * size).call("Heartbeat").status.code == code
    for size, code in ((128, Code.MESSAGE_NOT_FOUND), (129, Code.BAD_REQUEST)):
        assert code_of(served.caller(), attempt_id="x" * size) == code


def test_clients_that_were_disconnected_are_limited(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_clients, "ABSENT_S", 3600.0)
    served = limited(clients_max=1)
    push, second = served.caller(), served.caller()

    def connect(caller: RawCaller) -> None:
        """Open a stream, and end it."""
        command = messages.TelemetryCommand(settings=messages.Settings(client_type=2))
        assert [one.status.code for one in caller.telemetry(iter([command]))] == [Code.OK]
        until(lambda: not served.server.stats()["net_connections"])

    push.send()
    served.bench.turn()
    assert len(push.receive(auto_renew=True)) == 1
    connect(push)
    assert served.server.stats()["net_returned_leases"] == 0
    connect(push)  # it is still the only one
    assert served.server.stats()["net_returned_leases"] == 0
    connect(second)
    until(lambda: served.server.stats()["net_returned_leases"])
    served.bench.turn()
    assert len(second.receive()) == 1


def test_answers_that_are_kept_are_limited(limited: Any) -> None:
    served = limited(replays_max=1)
    caller = served.caller()
    for _ in range(2):
        caller.send()
    served.bench.turn()
    first = caller.receive(attempt_id="a", batch_size=1)
    second = caller.receive(attempt_id="b", batch_size=1)
    assert caller.receive(attempt_id="b", batch_size=1) == second
    assert caller.receive(attempt_id="a", batch_size=1) == []
    assert first[0] != second[0]


@pytest.mark.parametrize("missing", [0, 1])
def test_bytes_of_answers_that_are_kept_are_limited(limited: Any, missing: int) -> None:
    other = limited()
    other.bench.store.put("t", b"x", properties={"p": "1" * 500})
    other.bench.turn()
    size = message_bytes(other.bench.store.receive("t", "g")[0])
    served = limited(replay_bytes_max=2 * size - missing)
    for _ in range(2):
        served.bench.store.put("t", b"x", properties={"p": "1" * 500})
    served.bench.turn()
    caller = served.caller()
    first = caller.receive(attempt_id="a", batch_size=1)
    second = caller.receive(attempt_id="b", batch_size=1)
    assert caller.receive(attempt_id="a", batch_size=1) == ([] if missing else first)
    assert caller.receive(attempt_id="b", batch_size=1) == second


def test_leases_above_the_limit_end_at_their_own_time(limited: Any) -> None:
    served = limited(renewed_leases_max=1)
    caller, other = served.caller(), served.caller()
    for _ in range(2):
        caller.send()
    served.bench.turn()
    assert len(caller.receive(auto_renew=True)) == 2
    caller.call("NotifyClientTermination")
    found: list[Any] = []
    while not found:
        served.bench.turn()
        found = other.receive()
    served.bench.turn(899_000)
    assert other.receive("t", "g", invisible_duration=seconds(5000)) != []  # the first one again
    served.bench.turn(1000)
    assert len(other.receive()) == 1


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_limit_is_a_whole_number_from_one_on(value: Any) -> None:
    with pytest.raises(ConfigError, match="polls_max: wanted a whole number"):
        RocketmqLimits(polls_max=value)
