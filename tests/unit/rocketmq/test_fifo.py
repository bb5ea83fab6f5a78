"""FIFO messages: message groups that a group of consumers gets in order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource, seconds
from timerstore.rocketmq.definitions import ClientType, Code, MessageType, messages

LEASE_MS = 30_000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RocketmqBench]:
    path = tmp_path / "groups.toml"
    path.write_text("[groups.g]\nfifo = true\nmax_attempts = 3\nbackoff_s = [5]\n")
    one = RocketmqBench(Bench(tmp_path / "store"), groups_file=path)
    yield one
    one.close()


def send(served: RocketmqBench, caller: RawCaller, *bodies: bytes) -> None:
    """Send FIFO messages; the message group is the first byte of a body."""
    for body in bodies:
        sent = caller.send(
            body=body, message_type=MessageType.FIFO, message_group=body[:1].decode()
        )
        assert sent.status.code == Code.OK, sent
    served.bench.turn()


def bodies(found: list[Any]) -> list[bytes]:
    return sorted(one.body for one in found)


def test_fifo_group_gets_one_message_of_a_message_group_at_a_time(
    served: RocketmqBench, caller: RawCaller
) -> None:
    send(served, caller, b"a1", b"a2", b"b1", b"a3")
    found = caller.receive()
    assert bodies(found) == [b"a1", b"b1"]
    assert served.caller().receive() == []
    system = found[0].system_properties
    assert (system.message_type, system.message_group) == (MessageType.FIFO, chr(found[0].body[0]))
    assert not found[0].user_properties
    for body in (b"a2", b"a3"):
        caller.ack(*(one.system_properties.receipt_handle for one in found))
        found = caller.receive()
        assert bodies(found) == [body]


def test_other_groups_get_all(served: RocketmqBench, caller: RawCaller) -> None:
    send(served, caller, b"a1", b"a2", b"a3")
    assert bodies(caller.receive(group="other")) == [b"a1", b"a2", b"a3"]


def test_failed_message_comes_again_before_the_next(
    served: RocketmqBench, caller: RawCaller
) -> None:
    send(served, caller, b"a1", b"a2")
    [one] = caller.receive()
    answer = caller.call(
        "ChangeInvisibleDuration", group=resource("g"), topic=resource("t"),
        receipt_handle=one.system_properties.receipt_handle, invisible_duration=seconds(0),
    )  # fmt: skip
    assert answer.status.code == Code.OK
    served.bench.turn()
    [again] = caller.receive()
    assert (again.body, again.system_properties.delivery_attempt) == (b"a1", 2)
    served.bench.turn(LEASE_MS)
    [last] = caller.receive()
    assert (last.body, last.system_properties.delivery_attempt) == (b"a1", 3)
    assert caller.receive() == []
    served.bench.turn(LEASE_MS)
    assert bodies(caller.receive()) == [b"a2"]


def test_dead_letter_of_a_consumer_frees_its_message_group(
    served: RocketmqBench, caller: RawCaller
) -> None:
    send(served, caller, b"a1", b"a2")
    [one] = caller.receive()
    caller.call(
        "ForwardMessageToDeadLetterQueue", group=resource("g"), topic=resource("t"),
        receipt_handle=one.system_properties.receipt_handle,
    )  # fmt: skip
    assert bodies(caller.receive()) == [b"a2"]
    assert [letter.body for letter in served.bench.store.dead_letters("g")] == [b"a1"]


def test_poll_that_waits_is_answered_when_the_earlier_message_is_acked(
    served: RocketmqBench, caller: RawCaller
) -> None:
    send(served, caller, b"a1", b"a2")
    [one] = caller.receive()
    poll = served.caller()
    request = poll.receive_request(long_polling_timeout=seconds(15))
    stream = poll.begin("ReceiveMessage", request.SerializeToString())
    caller.ack(one.system_properties.receipt_handle)
    assert [each.message.body for each in stream if each.HasField("message")] == [b"a2"]


def test_order_survives_a_restart_of_the_server(served: RocketmqBench, caller: RawCaller) -> None:
    send(served, caller, b"a1", b"a2")
    [one] = caller.receive()
    served.server.close()
    served.bench.reopen()
    served.serve()
    caller = served.caller()
    assert caller.receive() == []
    [entry] = caller.ack(one.system_properties.receipt_handle)
    assert entry.status.code == Code.OK
    assert bodies(caller.receive()) == [b"a2"]


@pytest.mark.parametrize(("group", "is_fifo"), [("g", True), ("other", False)])
def test_settings_say_whether_a_group_is_fifo(caller: RawCaller, group: str, is_fifo: bool) -> None:
    settings = messages.Settings(
        client_type=ClientType.PUSH_CONSUMER,
        subscription=messages.Subscription(group=resource(group)),
    )
    answer = next(caller.telemetry(iter([messages.TelemetryCommand(settings=settings)])))
    assert answer.settings.subscription.fifo is is_fifo


def test_topic_with_priorities_takes_no_fifo_messages(caller: RawCaller) -> None:
    caller.send(message_type=MessageType.PRIORITY, priority=5)
    sent = caller.send(message_type=MessageType.FIFO, message_group="a")
    assert sent.status.code == Code.ILLEGAL_MESSAGE_GROUP
    assert "wanted a topic without priorities" in sent.status.message
