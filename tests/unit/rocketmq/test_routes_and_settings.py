"""QueryRoute, QueryAssignment and Telemetry: the settings that clients need to start."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource
from timerstore.rocketmq.definitions import Code, MessageType, messages
from timerstore.rocketmq.message_views import milliseconds
from timerstore.rocketmq.topic_routes import endpoints


def route(caller: RawCaller, topic: str = "t", dialled: Any = None) -> Any:
    return caller.call("QueryRoute", topic=resource(topic), endpoints=dialled)


def test_route_names_the_address_that_was_dialled(caller: RawCaller) -> None:
    dialled = endpoints("orders.example", 30_001)
    [queue] = route(caller, dialled=dialled).message_queues
    assert queue.broker.endpoints == dialled
    [queue] = caller.call(
        "QueryAssignment", topic=resource("t"), group=resource("g"), endpoints=dialled
    ).assignments
    assert queue.message_queue.id == -1
    assert queue.message_queue.broker.endpoints == dialled


def test_route_names_the_advertised_address(tmp_path: Path) -> None:
    served = RocketmqBench(Bench(tmp_path / "store"), advertise="[2001:db8::1]:8081")
    [queue] = route(served.caller(), dialled=endpoints("127.0.0.1", 5)).message_queues
    assert queue.broker.endpoints == endpoints("2001:db8::1", 8081)
    served.close()


@pytest.mark.parametrize(
    ("language", "version", "is_offered"),
    [
        ("JAVA", "5.0.7", False), ("JAVA", "5.2.0", True), ("JAVA", "6.0.0-SNAPSHOT", True),
        ("PYTHON", "5.1.2", True), ("HTTP", "1.0.8", True), ("GOLANG", "9", False),
        ("JAVA", "", False),
    ],
)  # fmt: skip
def test_priority_is_offered_to_clients_that_know_it(
    served: RocketmqBench, language: str, version: str, is_offered: bool
) -> None:
    caller = served.caller(**{"x-mq-language": language, "x-mq-client-version": version})
    [queue] = route(caller).message_queues
    assert (MessageType.PRIORITY in queue.accept_message_types) == is_offered
    assert MessageType.DELAY in queue.accept_message_types


def test_unknown_topic_is_rejected_without_auto_create(tmp_path: Path) -> None:
    served = RocketmqBench(Bench(tmp_path / "store"), auto_create=False)
    served.bench.store.put("known", b"x")
    caller = served.caller()
    assert route(caller, "known").status.code == Code.OK
    assert route(caller, "unknown").status.code == Code.TOPIC_NOT_FOUND
    assert caller.send("unknown").status.code == Code.TOPIC_NOT_FOUND
    with pytest.raises(ValueError, match=str(int(Code.TOPIC_NOT_FOUND))):
        caller.receive("unknown")
    assert caller.send("known").status.code == Code.OK
    assert served.bench.store.delete_topic("known")
    assert caller.send("known").status.code == Code.TOPIC_NOT_FOUND
    assert "known" not in served.bench.store.topics()
    served.close()


def settings(caller: RawCaller, **fields: Any) -> Any:
    command = messages.TelemetryCommand(settings=messages.Settings(**fields))
    [answer] = caller.telemetry(iter([command]))
    assert answer.status.code == Code.OK
    return answer.settings


def test_producer_gets_its_settings(caller: RawCaller) -> None:
    found = settings(caller, client_type=1, publishing=messages.Publishing(topics=[resource("t")]))
    assert found.publishing.max_body_size == 4 << 20
    assert [one.name for one in found.publishing.topics] == ["t"]
    assert found.backoff_policy.max_attempts == 3
    assert milliseconds(found.backoff_policy.exponential_backoff.initial) == 10
    assert not found.metric.on


def test_consumer_gets_the_policy_of_its_group(tmp_path: Path) -> None:
    policies = tmp_path / "groups.toml"
    policies.write_text("[groups.g]\nmax_attempts = 3\nbackoff_s = [1, 5]\npoll_s = 7\n")
    served = RocketmqBench(Bench(tmp_path / "store"), groups_file=policies)
    subscription = messages.Subscription(group=resource("g"))
    found = settings(served.caller(), client_type=2, subscription=subscription)
    assert found.client_type == 2
    assert found.backoff_policy.max_attempts == 3
    steps = [one.seconds for one in found.backoff_policy.customized_backoff.next]
    assert steps == [1, 5]
    assert found.subscription.long_polling_timeout.seconds == 7
    assert found.subscription.receive_batch_size == 32
    served.close()


def test_settings_return_fields_that_the_server_does_not_know(caller: RawCaller) -> None:
    raw = b"\x3a\x03\x0a\x01x"  # field 7, the user agent
    command = messages.TelemetryCommand(settings=messages.Settings.FromString(raw))
    [answer] = caller.telemetry(iter([command]))
    assert raw in answer.settings.SerializeToString()
