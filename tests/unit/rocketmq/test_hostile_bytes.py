"""Random and mutated bytes as requests: an ordinary error, and the next call works."""

import asyncio
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

import timerstore
import timerstore.rocketmq
from tests.support.amounts import both
from tests.support.bench import small
from tests.support.rocketmq_bench import RawCaller, resource, seconds
from tests.support.until import until
from timerstore.rocketmq import receiving
from timerstore.rocketmq.definitions import MESSAGING, Code, messages, methods
from timerstore.rocketmq.message_views import timestamp
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits
from timerstore.rocketmq.topic_routes import TopicRoutes, endpoints

_DEADLINE_S = 20.0
_POLL_S = 0.05
"""How long a poll waits, whatever time it asks for."""
_UNARY = [one.name for one in methods(MESSAGING) if not one.is_client_streaming]


def valid_requests() -> dict[str, bytes]:
    """Return a request of each method, with as many fields as possible."""
    system = messages.SystemProperties(
        tag="a", keys=["k"], message_id="m", message_type=3, delivery_timestamp=timestamp(1 << 41),
        priority=1, message_group="g", body_encoding=2,
    )  # fmt: skip
    message = messages.Message(
        topic=resource("t"), body=b"x", user_properties={"p": "1"}, system_properties=system
    )
    names = {"topic": resource("t"), "group": resource("g")}
    address = endpoints("127.0.0.1", 8081)
    receipt = {"receipt_handle": "bDEg", "message_id": "m", **names}
    made = {
        "QueryRoute": {"topic": resource("t"), "endpoints": address},
        "QueryAssignment": {**names, "endpoints": address},
        "Heartbeat": {"group": resource("g"), "client_type": 2},
        "NotifyClientTermination": {"group": resource("g")},
        "SendMessage": {"messages": [message, message]},
        "RecallMessage": {"topic": resource("t"), "recall_handle": "djEg"},
        "EndTransaction": {"topic": resource("t"), "transaction_id": "djEg", "resolution": 1},
        "ReceiveMessage": {
            "group": resource("g"),
            "message_queue": messages.MessageQueue(topic=resource("t")),
            "filter_expression": messages.FilterExpression(type=2, expression="a > 1"),
            "batch_size": 5,
            "auto_renew": True,
            "invisible_duration": seconds(5),
            "long_polling_timeout": seconds(0.01),
            "attempt_id": "a",
        },
        "AckMessage": {
            **names,
            "entries": [messages.AckMessageEntry(message_id="m", receipt_handle="bDEg")] * 2,
        },
        "ChangeInvisibleDuration": {**receipt, "invisible_duration": seconds(5)},
        "ForwardMessageToDeadLetterQueue": {**receipt, "delivery_attempt": 2},
    }
    requests = {one.name: one.request for one in methods(MESSAGING)}
    return {name: requests[name](**fields).SerializeToString() for name, fields in made.items()}


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Return a request with some bytes changed, removed, doubled or added."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at : at + chance.randint(1, 5)]
        elif kind == 2:
            data[at:at] = data[at : at + chance.randint(1, 20)]
        else:
            data[at:at] = chance.randbytes(chance.randint(1, 8))
    return bytes(data) if chance.random() < 0.9 else chance.randbytes(chance.randrange(60))


def code_of(caller: RawCaller, name: str, raw: bytes) -> int:
    """Return the code of an answer; raise grpc.RpcError if none comes."""
    answer = caller.call(name, raw, timeout=_DEADLINE_S)
    return int((answer[0] if isinstance(answer, list) else answer).status.code)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(receiving, "_ANSWER_S", _DEADLINE_S - _POLL_S)
    with (
        timerstore.open(tmp_path / "store", small()) as store,  # its clock is the real one
        timerstore.rocketmq.serve(store, address="127.0.0.1:0") as server,
    ):
        yield server


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", both("hostile requests of a method"))
def test_any_bytes_get_an_answer(server: Any, count: int, caplog: pytest.LogCaptureFixture) -> None:
    caller = RawCaller(server.address)
    chance = random.Random(count)
    valid = valid_requests()
    assert valid.keys() == set(_UNARY)
    with caplog.at_level(logging.ERROR):
        for name in _UNARY * count:
            raw = mutated(valid[name], chance)
            assert code_of(caller, name, raw) not in (0, Code.INTERNAL_SERVER_ERROR), (name, raw)
    assert not caplog.records
    assert caller.send("works").status.code == Code.OK
    assert [one.body for one in caller.receive("works", long_polling_timeout=seconds(5))] == [b"x"]
    until(lambda: not server.stats()["net_running_requests"])
    assert server.stats()["net_waiting_requests"] == 0
    limits, service = RocketmqLimits(), server._service
    until(lambda: service._requests.left_bytes == limits.sending_bytes_max)
    assert service._parts.receiving._unsent.left_bytes == limits.unsent_bytes_max
    caller.close()


def test_any_bytes_of_a_stream_get_an_answer(server: Any) -> None:
    caller = RawCaller(server.address)
    chance = random.Random(5)
    valid = messages.TelemetryCommand(
        settings=messages.Settings(
            client_type=2, subscription=messages.Subscription(group=resource("g"))
        )
    ).SerializeToString()
    path = next(one.path for one in methods(MESSAGING) if one.is_client_streaming)
    make = caller.channel.stream_stream(path, None, messages.TelemetryCommand.FromString)
    for _ in range(60):
        raw = mutated(valid, chance)
        found = list(make(iter([raw]), timeout=_DEADLINE_S, metadata=tuple(caller.headers.items())))
        assert [one.status.code for one in found] == codes_of_stream(raw), raw
    caller.close()


def codes_of_stream(raw: bytes) -> list[int]:
    """Return the codes of the answers to one command of a stream: settings have one."""
    try:
        command = messages.TelemetryCommand.FromString(raw)
    except DecodeError:
        return [Code.BAD_REQUEST]
    return [Code.OK] if command.WhichOneof("command") == "settings" else []


def test_method_that_hangs_gets_no_code(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(TopicRoutes, "route", hang)
    monkeypatch.setitem(globals(), "_DEADLINE_S", 0.2)
    caller = RawCaller(server.address)
    with pytest.raises(grpc.RpcError):
        code_of(caller, "QueryRoute", valid_requests()["QueryRoute"])
    caller.close()
