"""Each error of a request has its code, and a text that names the argument."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.bench import NOW, Bench, small
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource, seconds
from timerstore.aio import AsyncTimerStore
from timerstore.errors import (
    BusyError,
    ClosedError,
    ConflictError,
    FlowControlError,
    FullError,
    LeaseLostError,
)
from timerstore.rocketmq.definitions import Code, FilterType, messages
from timerstore.rocketmq.message_views import timestamp

YEARS = 100 * 366 * 86_400_000


def sent(**fields: Any) -> Callable[[RawCaller], Any]:
    return lambda caller: caller.send(**fields).status


def received(topic: str = "t", group: str = "g", **fields: Any) -> Callable[[RawCaller], Any]:
    def call(caller: RawCaller) -> Any:
        request = caller.receive_request(topic, group, **fields)
        return caller.call("ReceiveMessage", request)[0].status

    return call


def expression(kind: int, text: str) -> dict[str, Any]:
    return {"filter_expression": messages.FilterExpression(type=kind, expression=text)}


ROWS: list[tuple[str, Callable[[RawCaller], Any], int, str]] = [
    ("topic", sent(topic="a b"), 40002, "topic: wanted"),
    ("reserved topic", sent(topic="rmq_sys_wheel_timer"), 40002, "topic: rmq_sys"),
    ("topic of a reader", received(topic="a b"), 40002, "topic: wanted"),
    ("group", received(group="a b"), 40003, "group: wanted"),
    ("no group", received(group=""), 40003, "group: wanted"),
    ("tag", sent(tag="a||b"), 40004, "tags: wanted"),
    ("key", sent(keys=["a b"]), 40005, "keys: wanted"),
    ("property", sent(user_properties={"TAGS": "x"}), 40007, "property 'TAGS'"),
    ("message id", sent(message_id="x" * 200), 40009, "message_id: wanted"),
    ("tag filter", received(**expression(FilterType.TAG, "a||")), 40010, "tags: wanted"),
    ("SQL filter", received(**expression(FilterType.SQL, "a >")), 40010, "sql: wanted"),
    ("lease of 0", received(invisible_duration=seconds(0)), 40011, "lease: wanted"),
    ("lease too long", received(invisible_duration=seconds(1e10)), 40011, "lease: wanted"),
    ("due too late", sent(delivery_timestamp=timestamp(NOW + YEARS)), 40012, "deliver_ms: wanted"),
    ("due before 2000", sent(delivery_timestamp=timestamp(5000)), 40012, "deliver_ms: wanted"),
    ("due before 1970", sent(delivery_timestamp=messages.Timestamp(seconds=-5)), 40012,
     "delivery_timestamp: wanted"),
    ("no due time", sent(message_type=3), 40012, "delivery_timestamp: wanted"),
    ("priority", sent(message_type=6, priority=10), 40014, "priority: wanted 0 to 9"),
    ("due time of a normal message", sent(message_type=1, delivery_timestamp=timestamp(NOW)),
     40014, "delivery_timestamp: wanted none"),
    ("group of a normal message", sent(message_group="x"), 40014, "message_group: wanted none"),
    ("negative poll", received(long_polling_timeout=seconds(-1)), 40018, "wait: wanted"),
    ("no batch", received(batch_size=0), 40000, "batch_size: wanted 1"),
    ("attempt id", received(attempt_id="x" * 200), 40000, "attempt_id: wanted"),
    ("no type", sent(message_type=0), 40000, "message_type: wanted NORMAL"),
    ("ordered without group", sent(message_type=2), 40006, "message_group: wanted text"),
    ("message group", sent(message_type=2, message_group="x" * 129), 40006, "message_group:"),
    ("ordered and due", sent(message_type=2, message_group="x", delivery_timestamp=timestamp(NOW)),
     40014, "delivery_timestamp: wanted none"),
    ("body", sent(body=b"x" * (4 << 20) + b"y"), 41301, "body: wanted"),
    ("empty body", sent(body=b""), 41302, "body: wanted one byte"),
    ("no gzip", sent(body=b"no gzip", body_encoding=2), 40000, "body: wanted gzip"),
    ("properties", sent(user_properties={"a": "x" * 40_000}), 43101, "properties: wanted at most"),
    ("receipt", lambda caller: caller.ack("x")[0].status, 40013, "receipt: wanted"),
    ("no receipts", lambda caller: caller.call("AckMessage").status, 40000, "entries: wanted 1"),
    ("no messages", lambda caller: caller.call("SendMessage").status, 40000, "messages: wanted 1"),
    ("recall handle",
     lambda caller: caller.call("RecallMessage", topic=resource("t"), recall_handle="x").status,
     40000, "handle: wanted"),
    ("change of a malformed receipt",
     lambda caller: caller.call("ChangeInvisibleDuration", receipt_handle="x",
                                invisible_duration=seconds(5)).status,
     40013, "receipt: wanted"),
    ("no protobuf", lambda caller: caller.call("Heartbeat", b"\xff\xff").status, 40000,
     "wanted a HeartbeatRequest"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "text"), [row[1:] for row in ROWS],
                         ids=[row[0] for row in ROWS])  # fmt: skip
def test_error_has_its_code(
    caller: RawCaller, call: Callable[[RawCaller], Any], code: int, text: str
) -> None:
    found = call(caller)
    assert (found.code, text in found.message) == (code, True), found


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConflictError("other contents"), Code.ILLEGAL_MESSAGE_ID),
        (FlowControlError("too many"), Code.TOO_MANY_REQUESTS),
        (BusyError("too many"), Code.TOO_MANY_REQUESTS),
        (FullError("the disk is full"), Code.TOO_MANY_REQUESTS),
        (LeaseLostError("lost", result="EXPIRED"), Code.INVALID_RECEIPT_HANDLE),
    ],
    ids=lambda one: type(one).__name__,
)
def test_error_of_the_store_has_its_code(
    caller: RawCaller, monkeypatch: pytest.MonkeyPatch, error: Any, code: int
) -> None:
    async def put(*_: Any, **_options: Any) -> Any:
        raise error

    monkeypatch.setattr(AsyncTimerStore, "put", put)
    found = caller.send().status
    assert (found.code, found.message) == (code, "EXPIRED" if code == 40013 else str(error))


def test_full_slot_is_a_code_that_ends_repetitions(tmp_path: Path) -> None:
    served = RocketmqBench(Bench(tmp_path / "store", small(slot_messages_max=1)))
    caller = served.caller()
    due = timestamp(NOW + 5000)
    assert caller.send(delivery_timestamp=due).status.code == Code.OK
    served.bench.turn()
    found = caller.send(delivery_timestamp=due).status
    assert found.code == Code.TOO_MANY_REQUESTS
    assert "slot_messages_max" in found.message
    served.close()


def test_record_too_large_has_its_code(tmp_path: Path) -> None:
    sizes = small(commit_log_segment_bytes=64 << 10, message_bytes_max=60_000)
    served = RocketmqBench(Bench(tmp_path / "store", sizes))
    found = served.caller().send(body=bytes(60_000), user_properties={"p": "x" * 9000}).status
    assert (found.code, "message: wanted at most" in found.message) == (41300, True)
    served.close()


def test_client_without_an_id_is_rejected(served: RocketmqBench) -> None:
    assert served.caller("").call("Heartbeat").status.code == Code.CLIENT_ID_REQUIRED


def test_bug_is_shown_by_its_id_only(
    served: RocketmqBench,
    caller: RawCaller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(served.server._service._parts.routes, "route", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        found = caller.call("QueryRoute", topic=resource("t")).status
    assert found.code == Code.INTERNAL_SERVER_ERROR
    assert "ZeroDivisionError" not in found.message
    shown = found.message.rpartition(" ")[2]
    assert f"error {shown} in QueryRoute" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_closing_store_is_unavailable(
    served: RocketmqBench, caller: RawCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def route(*_: Any) -> Any:
        raise ClosedError("the store is closing")

    monkeypatch.setattr(served.server._service._parts.routes, "route", route)
    with pytest.raises(grpc.RpcError) as found:
        caller.call("QueryRoute", topic=resource("t"))
    assert found.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
