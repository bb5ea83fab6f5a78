"""A bench whose store is served to clients of RocketMQ, and a client of plain gRPC."""

import itertools
from collections.abc import Iterator
from typing import Any

import grpc

import timerstore.rocketmq
from tests.support.bench import Bench
from timerstore.rocketmq.definitions import HEALTH, MESSAGING, messages, methods

_METHODS = {one.name: one for name in (MESSAGING, HEALTH) for one in methods(name)}
_numbers = itertools.count()


def resource(name: str) -> Any:
    return messages.Resource(name=name)


def seconds(value: float) -> Any:
    return messages.Duration(seconds=int(value), nanos=round(value % 1 * 1e9))


class RawCaller:
    """A client that sends what a test wants, also what no client would send."""

    def __init__(self, address: str, client_id: str | None = None, **headers: str) -> None:
        self.client_id = f"client-{next(_numbers)}" if client_id is None else client_id
        # Each client has a connection of its own, as processes have.
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.http2.bdp_probe", 0),  # takes 64 KiB of an answer that no test reads
        ]
        self.channel = grpc.insecure_channel(address, options=options)
        self.headers = {"x-mq-client-id": self.client_id, **headers}

    def call(self, name: str, request: Any = None, *, timeout: float = 20, **fields: Any) -> Any:
        """Make a call; of a stream of answers, return the list."""
        method = _METHODS[name]
        raw = request if isinstance(request, bytes) else None
        if raw is None:
            raw = (request or method.request(**fields)).SerializeToString()
        options = {"timeout": timeout, "metadata": tuple(self.headers.items())}
        if method.is_server_streaming:
            return list(self.begin(name, raw, timeout))
        make = self.channel.unary_unary(method.path, None, method.response.FromString)
        return make(raw, **options)

    def begin(self, name: str, raw: bytes, timeout: float = 20) -> Any:
        """Begin a call with a stream of answers."""
        method = _METHODS[name]
        make = self.channel.unary_stream(method.path, None, method.response.FromString)
        return make(raw, timeout=timeout, metadata=tuple(self.headers.items()))

    def telemetry(self, requests: Iterator[Any]) -> Any:
        method = _METHODS["Telemetry"]
        make = self.channel.stream_stream(
            method.path, lambda one: one.SerializeToString(), method.response.FromString
        )
        return make(requests, timeout=60, metadata=tuple(self.headers.items()))

    def close(self) -> None:
        self.channel.close()

    # --- calls as clients make them ---

    def send(self, topic: str = "t", body: bytes = b"x", **system: Any) -> Any:
        """Send one message; return the entry of the answer."""
        system.setdefault("message_type", 3 if "delivery_timestamp" in system else 1)
        one = messages.Message(
            topic=resource(topic),
            body=body,
            user_properties=system.pop("user_properties", {}),
            system_properties=messages.SystemProperties(**system),
        )
        return self.call("SendMessage", messages=[one]).entries[0]

    def receive_request(self, topic: str = "t", group: str = "g", **fields: Any) -> Any:
        fields.setdefault("batch_size", 32)
        fields.setdefault("long_polling_timeout", seconds(0))
        if not fields.get("auto_renew"):
            fields.setdefault("invisible_duration", seconds(30))
        return messages.ReceiveMessageRequest(
            group=resource(group),
            message_queue=messages.MessageQueue(topic=resource(topic)),
            **fields,
        )

    def receive(self, topic: str = "t", group: str = "g", **fields: Any) -> list[Any]:
        """Return messages; an answer that is an error raises ValueError with its code."""
        answers = self.call("ReceiveMessage", self.receive_request(topic, group, **fields))
        code = answers[0].status.code
        if code not in (20000, 40401):
            raise ValueError(code, answers[0].status.message)
        return [one.message for one in answers if one.HasField("message")]

    def ack(self, *receipts: str) -> list[Any]:
        entries = [messages.AckMessageEntry(receipt_handle=one) for one in receipts]
        return list(self.call("AckMessage", entries=entries).entries)


class RocketmqBench:
    """A bench, its server, and the clients that were made here."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.bench = bench
        self.options = options
        self.callers: list[RawCaller] = []
        self.serve()

    def serve(self) -> None:
        self.server = timerstore.rocketmq.serve(
            self.bench.store, address="127.0.0.1:0", **self.options
        )
        self.server._clock = self.bench.clock  # that of a connected one is the system's

    def caller(self, client_id: str | None = None, **headers: str) -> RawCaller:
        one = RawCaller(self.server.address, client_id, **headers)
        self.callers.append(one)
        return one

    def close(self) -> None:
        for one in self.callers:
            one.close()
        self.server.close()
        self.bench.close()
