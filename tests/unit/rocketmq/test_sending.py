"""SendMessage and RecallMessage."""

import gzip
from pathlib import Path

from tests.support.bench import NOW, Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource
from timerstore.rocketmq.definitions import Code, MessageType, messages
from timerstore.rocketmq.message_views import timestamp


def test_message_arrives_with_all_its_fields(served: RocketmqBench, caller: RawCaller) -> None:
    sent = caller.send(
        body=b"body", message_id="m1", tag="a", keys=["k1", "k2"], user_properties={"p": "1"}
    )
    assert (sent.status.code, sent.message_id, sent.recall_handle) == (Code.OK, "m1", "")
    served.bench.turn()
    [one] = caller.receive()
    system = one.system_properties
    assert one.body == b"body"
    assert dict(one.user_properties) == {"p": "1"}
    assert (system.tag, list(system.keys), system.message_id) == ("a", ["k1", "k2"], "m1")
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
    assert system.message_type == MessageType.NORMAL
    assert not system.HasField("delivery_timestamp")
    assert system.born_timestamp.seconds == NOW // 1000


def test_delayed_message_arrives_at_its_due_time(served: RocketmqBench, caller: RawCaller) -> None:
    sent = caller.send(delivery_timestamp=timestamp(NOW + 60_250))
    assert sent.recall_handle
    served.bench.turn(60_249)
    assert caller.receive() == []
    served.bench.turn(1)
    [one] = caller.receive()
    assert one.system_properties.message_type == MessageType.DELAY
    assert one.system_properties.delivery_timestamp == timestamp(NOW + 60_250)


def test_message_due_in_the_past_is_delivered_at_once(
    served: RocketmqBench, caller: RawCaller
) -> None:
    sent = caller.send(delivery_timestamp=timestamp(NOW - 5000))
    assert (sent.status.code, sent.recall_handle) == (Code.OK, "")
    served.bench.turn()
    assert len(caller.receive()) == 1


def test_higher_priority_is_received_first(served: RocketmqBench, caller: RawCaller) -> None:
    for body, priority in ((b"low", 1), (b"high", 9)):
        sent = caller.send(body=body, message_type=MessageType.PRIORITY, priority=priority)
        assert sent.status.code == Code.OK
    served.bench.turn()
    [one] = caller.receive(batch_size=1)
    assert (one.body, one.system_properties.priority) == (b"high", 9)


def test_compressed_body_is_stored_as_the_program_sent_it(
    served: RocketmqBench, caller: RawCaller
) -> None:
    caller.send(body=gzip.compress(b"long" * 100), body_encoding=2)
    served.bench.turn()
    assert caller.receive()[0].body == b"long" * 100


def test_message_that_is_sent_again_is_stored_once(
    served: RocketmqBench, caller: RawCaller
) -> None:
    due = timestamp(NOW + 1000)
    first = caller.send(message_id="m1", delivery_timestamp=due)
    assert caller.send(message_id="m1", delivery_timestamp=due) == first
    served.bench.turn(1000)
    assert len(caller.receive()) == 1


def test_same_id_with_another_body_is_an_error(served: RocketmqBench, caller: RawCaller) -> None:
    caller.send(message_id="m1", body=b"x")
    sent = caller.send(message_id="m1", body=b"y")
    assert sent.status.code == Code.ILLEGAL_MESSAGE_ID
    assert "body" in sent.status.message


def test_entries_of_one_call_have_their_own_status(caller: RawCaller) -> None:
    system = messages.SystemProperties(message_type=1)
    made = [
        messages.Message(topic=resource(topic), body=b"x", system_properties=system)
        for topic in ("t", "not a topic")
    ]
    answer = caller.call("SendMessage", messages=made)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [one.status.code for one in answer.entries] == [Code.OK, Code.ILLEGAL_TOPIC]


def test_namespace_is_a_prefix_of_the_topic(served: RocketmqBench, caller: RawCaller) -> None:
    one = messages.Message(
        topic=messages.Resource(resource_namespace="shop", name="orders"),
        body=b"x",
        system_properties=messages.SystemProperties(message_type=1),
    )
    assert caller.call("SendMessage", messages=[one]).status.code == Code.OK
    assert "shop%orders" in served.bench.store.topics()


def test_recall_says_the_truth(served: RocketmqBench, caller: RawCaller) -> None:
    def recall(handle: str) -> tuple[int, str, str]:
        found = caller.call("RecallMessage", topic=resource("t"), recall_handle=handle)
        return found.status.code, found.status.message, found.message_id

    sent = [caller.send(message_id=f"m{k}", delivery_timestamp=timestamp(NOW + 1000))
            for k in range(2)]  # fmt: skip
    assert recall(sent[0].recall_handle) == (Code.OK, "OK", "m0")
    assert recall(sent[0].recall_handle) == (Code.NOT_FOUND, "ALREADY_CANCELLED", "m0")
    served.bench.turn(1000)
    assert recall(sent[1].recall_handle) == (Code.NOT_FOUND, "ALREADY_DELIVERED", "m1")
    assert [one.system_properties.message_id for one in caller.receive()] == ["m1"]


def test_recall_of_a_message_of_another_store_is_unknown(caller: RawCaller, tmp_path: Path) -> None:
    caller.send(delivery_timestamp=timestamp(NOW + 1000))
    other = RocketmqBench(Bench(tmp_path / "other"))
    due = timestamp(NOW + 1000)
    sent = [other.caller().send(message_id=f"m{k}", delivery_timestamp=due) for k in range(2)]
    other.close()
    handle = sent[1].recall_handle
    found = caller.call("RecallMessage", topic=resource("t"), recall_handle=handle).status
    assert (found.code, found.message) == (Code.NOT_FOUND, "UNKNOWN")


def test_recall_needs_the_topic_of_the_handle(caller: RawCaller) -> None:
    sent = caller.send(delivery_timestamp=timestamp(NOW + 1000))
    found = caller.call("RecallMessage", topic=resource("u"), recall_handle=sent.recall_handle)
    assert found.status.code == Code.ILLEGAL_TOPIC
