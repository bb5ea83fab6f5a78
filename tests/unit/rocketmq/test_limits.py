"""Limits on everything that a client can make grow."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource, seconds
from timerstore.errors import ConfigError
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


def test_bytes_of_running_requests_are_limited(limited: Any) -> None:
    caller = limited(sending_bytes_max=1000).caller()
    assert caller.send(body=b"x" * 500).status.code == Code.OK
    request = messages.SendMessageRequest(
        messages=[messages.Message(topic=resource("t"), body=b"x" * 2000)]
    )
    assert caller.call("SendMessage", request).status.code == Code.TOO_MANY_REQUESTS


def test_entries_of_a_call_are_limited(limited: Any) -> None:
    served = limited(entries_max=2)
    caller = served.caller()
    for _ in range(3):
        caller.send()
    served.bench.turn()
    assert len(caller.receive()) == 2
    entries = [messages.AckMessageEntry(receipt_handle="x")] * 3
    assert caller.call("AckMessage", entries=entries).status.code == Code.BAD_REQUEST


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
