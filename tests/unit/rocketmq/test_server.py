"""The start and the end of a server, its health, its counters, and what it rejects."""

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

import timerstore
import timerstore.rocketmq
from tests.support.bench import Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource, seconds
from tests.support.until import until
from timerstore.errors import ClosedError, ConfigError
from timerstore.rocketmq import health, rocketmq_server
from timerstore.rocketmq.definitions import Code, messages
from timerstore.rocketmq.sending import Sending


def parked(served: RocketmqBench, caller: RawCaller) -> Any:
    """Return a poll that waits."""
    request = caller.receive_request(long_polling_timeout=seconds(20))
    poll = caller.begin("ReceiveMessage", request.SerializeToString())
    while not served.server.stats()["net_waiting_requests"]:
        threading.Event().wait(0.001)
    return poll


def test_close_answers_polls_and_ends_streams(served: RocketmqBench, caller: RawCaller) -> None:
    command = messages.TelemetryCommand(settings=messages.Settings(client_type=2))
    ends = threading.Event()

    def requests() -> Any:
        yield command
        ends.wait()

    stream = caller.telemetry(requests())
    next(stream)
    poll = parked(served, caller)
    served.server.close()
    assert [one.status.code for one in poll] == [Code.MESSAGE_NOT_FOUND]
    assert list(stream) == []
    ends.set()
    assert served.server.has_ended
    served.bench.store.put("t", b"the store is open")


def test_close_of_the_store_closes_the_server(tmp_path: Path) -> None:
    served = RocketmqBench(Bench(tmp_path / "store"))
    poll = parked(served, served.caller())
    served.bench.close()
    assert [one.status.code for one in poll] == [Code.MESSAGE_NOT_FOUND]
    assert served.server.wait(0)
    with pytest.raises(ClosedError):
        timerstore.rocketmq.serve(served.bench.store, address="127.0.0.1:0")
    for one in served.callers:
        one.close()


def test_port_in_use_is_an_error(served: RocketmqBench) -> None:
    with pytest.raises(ConfigError, match="Address already in use"):
        timerstore.rocketmq.serve(served.bench.store, address=served.server.address)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"address": "8081"}, "address: wanted HOST:PORT"),
        ({"address": 8081}, "address: wanted HOST:PORT"),
        ({"advertise": "here"}, "advertise: wanted HOST:PORT"),
        ({"tls": "cert.pem"}, "tls: wanted the files"),
        ({"limits": 5}, "limits: wanted RocketmqLimits"),
        ({"keys_file": "/no/such/file"}, "keys_file: cannot read"),
        ({"groups_file": "/no/such/file"}, "groups_file: cannot read"),
    ],
)
def test_invalid_argument_is_an_error(
    served: RocketmqBench, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        timerstore.rocketmq.serve(served.bench.store, **{"address": "127.0.0.1:0", **options})


def test_shards_are_rejected(tmp_path: Path) -> None:
    with (
        timerstore.open_shards(tmp_path / "shards", 2) as store,
        pytest.raises(ConfigError, match="connected one, got ShardedStore"),
    ):
        timerstore.rocketmq.serve(store, address="127.0.0.1:0")  # type: ignore[arg-type]


def http2_frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind]) + bytes(5) + payload


def test_pings_between_calls_are_permitted(served: RocketmqBench) -> None:
    """The client for Java pings, also without calls. A server of gRPC would send it away."""
    host, _, port = served.server.address.partition(":")
    with socket.create_connection((host, int(port)), 20) as one:
        one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, b""))
        frames = one.makefile("rb")
        for _ in range(10):
            one.sendall(http2_frame(6, b"12345678"))
            kind = b""
            while kind != b"\x06\x01":  # the answer
                head = frames.read(9)
                kind = head[3:5]
                assert kind[:1] != b"\x07", "GOAWAY"
                frames.read(int.from_bytes(head[:3], "big"))


def test_health_is_that_of_the_server(served: RocketmqBench, caller: RawCaller) -> None:
    assert caller.call("Check").status == 1
    assert caller.call("Check", service="apache.rocketmq.v2.MessagingService").status == 1
    with pytest.raises(grpc.RpcError) as found:
        caller.call("Check", service="other")
    assert found.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]
    watch = caller.begin("Watch", b"")
    assert next(watch).status == 1
    served.server.close()
    assert next(watch).status == 2


def test_watches_of_the_health_are_limited(
    caller: RawCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_WATCHES_MAX", 1)
    watch = caller.begin("Watch", b"")
    assert next(watch).status == 1
    with pytest.raises(grpc.RpcError) as found:
        list(caller.begin("Watch", b""))
    assert found.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    watch.cancel()


def test_call_that_does_not_end_is_cancelled_at_the_close(
    served: RocketmqBench, caller: RawCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocketmq_server, "_GOODBYE_S", 0.01)

    async def hang(*_: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Sending, "send", hang)
    call = caller.begin("SendMessage", b"")
    until(lambda: served.server.stats()["net_running_requests"])
    served.server.close()
    with pytest.raises(grpc.RpcError):
        list(call)
    assert served.server.stats()["net_running_requests"] == 0


def test_calls_that_are_not_supported_are_unimplemented(caller: RawCaller) -> None:
    for name in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription"):
        call = caller.channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{name}")
        with pytest.raises(grpc.RpcError) as found:
            call(b"", timeout=20)
        assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_bytes_of_calls_are_counted(served: RocketmqBench, caller: RawCaller) -> None:
    def counted() -> tuple[int, int]:
        stats = served.server.stats()
        return stats["net_received_bytes"], stats["net_sent_bytes"]

    heartbeat = messages.HeartbeatRequest(group=resource("g")).SerializeToString()
    size = caller.call("Heartbeat", heartbeat).ByteSize()
    assert counted() == (len(heartbeat), size)
    poll = caller.receive_request()
    size += sum(one.ByteSize() for one in caller.call("ReceiveMessage", poll))
    assert counted() == (len(heartbeat) + poll.ByteSize(), size)
    command = messages.TelemetryCommand(settings=messages.Settings(client_type=1))
    [answer] = caller.telemetry(iter([command]))
    assert counted()[1] == size + answer.ByteSize()


@pytest.mark.parametrize("served", ["open"], indirect=True)  # the counts of its own store
def test_calls_are_counted(served: RocketmqBench, caller: RawCaller) -> None:
    caller.send()
    caller.send(topic="a b")
    caller.receive("u")
    counts = {(one.method, one.code): one.calls for one in served.server.calls()}
    assert counts == {
        ("ReceiveMessage", "MESSAGE_NOT_FOUND"): 1,
        ("SendMessage", "ILLEGAL_TOPIC"): 1,
        ("SendMessage", "OK"): 1,
    }
    stats = served.bench.store.stats()
    assert (stats["net_requests"], stats["net_failed_requests"]) == (3, 1)
    assert stats["net_running_requests"] == stats["net_waiting_requests"] == 0
    assert stats["net_received_bytes"] > 0


@pytest.mark.parametrize("served", ["open"], indirect=True)  # the counts of its own store
def test_prometheus_shows_calls_by_method_and_code(
    served: RocketmqBench, caller: RawCaller
) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    from timerstore.telemetry import prometheus

    registry = prometheus_client.CollectorRegistry()
    prometheus.register(served.bench.store, "orders", on=registry)
    caller.send()
    caller.send(topic="a b")
    with timerstore.rocketmq.serve(served.bench.store, address="127.0.0.1:0") as second:
        other = RawCaller(second.address)
        other.send()
        other.close()
        text = prometheus_client.generate_latest(registry).decode()
    labels = 'store="orders"'
    for code, count in (("OK", 2.0), ("ILLEGAL_TOPIC", 1.0)):
        shown = f'code="{code}",method="SendMessage",shard="",{labels}'
        assert f"timerstore_net_calls_total{{{shown}}} {count}" in text
        assert f"timerstore_net_calls_ms_total{{{shown}}} " in text


def test_forked_child_leaves_the_server_to_its_parent(
    served: RocketmqBench, caller: RawCaller
) -> None:
    assert caller.send().status.code == Code.OK
    host, _, port = served.server.address.rpartition(":")
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)  # until the parent closes it
        os._exit(0)
    try:
        assert caller.send().status.code == Code.OK
        served.server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 5).close()
    finally:
        os.close(ours)
        os.close(theirs)
        os.waitpid(child, 0)


def test_route_of_an_ipv6_address(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    with timerstore.rocketmq.serve(bench.store, address="[::1]:0") as server:
        caller = RawCaller(server.address)
        [queue] = caller.call("QueryRoute", topic=resource("t")).message_queues
        assert queue.broker.endpoints.addresses[0].host == "::1"
        caller.close()
    bench.close()
