"""Transactions: send, EndTransaction, and checks by live producers."""

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.bench import DAY
from tests.support.inside import inside
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource, seconds
from tests.support.until import until
from timerstore.rocketmq import transactions
from timerstore.rocketmq.definitions import Code, MessageType, TransactionResolution, messages
from timerstore.rocketmq.transactions import CHECK_GROUP, CHECKS_MAX

COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK
AFTER_S = 30
PATIENCE_S = 20


def send(caller: RawCaller, body: bytes = b"x", **system: Any) -> Any:
    sent = caller.send(body=body, message_type=MessageType.TRANSACTION, **system)
    assert sent.status.code == Code.OK, sent
    return sent


def end(
    caller: RawCaller, transaction_id: str, resolution: int = COMMIT, topic: str = "t"
) -> tuple[int, str]:
    answer = caller.call(
        "EndTransaction",
        topic=resource(topic),
        transaction_id=transaction_id,
        resolution=resolution,
    )
    return answer.status.code, answer.status.message


class LiveProducer:
    """A producer with a Telemetry stream."""

    def __init__(self, served: RocketmqBench, *topics: str) -> None:
        self.caller = served.caller()
        self._commands: queue.Queue[Any] = queue.Queue()
        self.publish(*topics)
        self._answers = self.caller.telemetry(iter(self._commands.get, None))
        assert next(self._answers).HasField("settings")

    def publish(self, *topics: str) -> None:
        publishing = messages.Publishing(topics=[resource(one) for one in topics])
        self._commands.put(
            messages.TelemetryCommand(settings=messages.Settings(publishing=publishing))
        )

    def checked(self) -> Any:
        """Wait for a check, and return it."""
        command = next(self._answers)
        assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
        return command.recover_orphaned_transaction_command

    def leave(self) -> None:
        self._commands.put(None)
        assert list(self._answers) == []


@pytest.fixture
def producer(served: RocketmqBench) -> Iterator[LiveProducer]:
    one = LiveProducer(served, "t")
    yield one
    one.leave()


def until_waiting(served: RocketmqBench) -> None:
    """Wait until the server waits for checks."""
    until(lambda: inside(served.bench.store).long_polls.count, PATIENCE_S)


def until_idle(served: RocketmqBench) -> None:
    """Wait until the server does not wait for checks any more."""
    until(lambda: not inside(served.bench.store).long_polls.count, PATIENCE_S)


# --- commit and rollback ---


def test_transaction_is_received_after_its_commit_and_not_before(
    served: RocketmqBench, caller: RawCaller
) -> None:
    sent = send(caller, message_id="m1", tag="a", keys=["k"], user_properties={"p": "1"})
    assert (sent.message_id, sent.recall_handle) == ("m1", "")
    served.bench.turn()
    assert caller.receive() == []
    assert end(caller, sent.transaction_id) == (Code.OK, "OK")
    served.bench.turn()
    [one] = caller.receive()
    system = one.system_properties
    assert (one.body, system.message_id, system.tag, list(system.keys)) == (b"x", "m1", "a", ["k"])
    assert dict(one.user_properties) == {"p": "1"}
    assert system.message_type == MessageType.NORMAL


def test_transaction_that_was_rolled_back_is_never_received(
    served: RocketmqBench, caller: RawCaller
) -> None:
    sent = send(caller)
    assert end(caller, sent.transaction_id, ROLLBACK) == (Code.OK, "OK")
    served.bench.turn(DAY)
    assert caller.receive() == []
    assert not list(served.bench.store.pending())


def test_repeated_end_gets_the_true_outcome(caller: RawCaller) -> None:
    a, b = send(caller).transaction_id, send(caller).transaction_id
    assert end(caller, a) == end(caller, a) == (Code.OK, "OK")
    assert end(caller, a, ROLLBACK) == (Code.INVALID_TRANSACTION_ID, "COMMITTED")
    assert end(caller, b, ROLLBACK) == (Code.OK, "OK")
    assert end(caller, b) == (Code.INVALID_TRANSACTION_ID, "SETTLED")


def test_transaction_that_is_sent_again_is_stored_once(
    served: RocketmqBench, caller: RawCaller
) -> None:
    first = send(caller, message_id="m1")
    assert send(caller, message_id="m1") == first
    assert end(caller, first.transaction_id) == (Code.OK, "OK")
    served.bench.turn()
    assert len(caller.receive()) == 1


def test_wrong_end_is_named(caller: RawCaller) -> None:
    sent = send(caller).transaction_id
    delayed = caller.send(delivery_timestamp={"seconds": 2_000_000_000}).recall_handle
    for wrong in ("", "nothing", delayed):
        code, text = end(caller, wrong)
        assert code == Code.INVALID_TRANSACTION_ID
        assert text.startswith("transaction_id: ")
    assert end(caller, sent, 0)[0] == Code.BAD_REQUEST
    code, text = end(caller, sent, topic="other")
    assert (code, "'t'" in text, "'other'" in text) == (Code.ILLEGAL_TOPIC, True, True)
    assert end(caller, sent) == (Code.OK, "OK")


def test_other_fields_do_not_go_with_a_transaction(caller: RawCaller) -> None:
    sent = caller.send(message_type=MessageType.TRANSACTION, priority=1)
    assert sent.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    sent = caller.send(orphaned_transaction_recovery_duration=seconds(5))
    assert sent.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    sent = caller.send(
        message_type=MessageType.TRANSACTION, orphaned_transaction_recovery_duration=seconds(-5)
    )
    assert sent.status.code == Code.BAD_REQUEST
    assert sent.status.message.startswith("check_after: ")


# --- checks ---


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
def test_orphaned_transaction_is_checked_by_a_live_producer(
    served: RocketmqBench, caller: RawCaller, producer: LiveProducer, resolution: int
) -> None:
    sent = send(caller, b"body", message_id="m1", tag="a", user_properties={"p": "1"})
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    check = producer.checked()
    system = check.message.system_properties
    assert check.message.topic == resource("t")
    assert (check.message.body, system.message_id, system.tag) == (b"body", "m1", "a")
    assert (system.message_type, system.delivery_attempt) == (MessageType.TRANSACTION, 1)
    assert dict(check.message.user_properties) == {"p": "1"}
    assert end(caller, sent.transaction_id) == (Code.INVALID_TRANSACTION_ID, "EXPIRED")
    assert end(producer.caller, check.transaction_id, resolution) == (Code.OK, "OK")
    served.bench.turn(DAY)
    assert len(caller.receive()) == (resolution == COMMIT)
    assert served.bench.out("%HALF%t", offset=1) == []


def test_check_comes_at_the_time_that_the_message_asks_for(
    served: RocketmqBench, caller: RawCaller, producer: LiveProducer
) -> None:
    send(caller, orphaned_transaction_recovery_duration=seconds(7.5))
    [one] = served.bench.store.pending()
    assert one.due_ms == served.bench.clock.now_ms + 7500
    until_waiting(served)
    served.bench.turn(7500)
    assert producer.checked().message.body == b"x"


def test_check_waits_for_a_producer_and_goes_to_the_next_one(
    served: RocketmqBench, caller: RawCaller
) -> None:
    """The one that sent the message is dead; the next one is asked when it comes."""
    dead = LiveProducer(served, "t")
    send(dead.caller)
    until_waiting(served)
    dead.leave()
    until_idle(served)
    served.bench.turn(DAY)
    other = LiveProducer(served, "other")
    live = LiveProducer(served, "other", "t")
    check = live.checked()
    assert check.message.system_properties.delivery_attempt == 1
    assert end(live.caller, check.transaction_id) == (Code.OK, "OK")
    for one in (other, live):
        one.leave()
    served.bench.turn()
    assert len(caller.receive()) == 1


def test_check_comes_again_to_the_producers_in_turn_and_is_a_dead_letter_at_last(
    served: RocketmqBench, caller: RawCaller
) -> None:
    producers = [LiveProducer(served, "t"), LiveProducer(served, "t")]
    send(caller)
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    for attempt in range(1, CHECKS_MAX + 1):
        check = producers[(attempt - 1) % 2].checked()
        assert check.message.system_properties.delivery_attempt == attempt
        until_waiting(served)
        served.bench.turn(30_000)
    [letter] = served.bench.store.dead_letters(CHECK_GROUP)
    assert (letter.body, letter.topic, letter.attempt) == (b"x", "%HALF%t", CHECKS_MAX)
    assert end(caller, check.transaction_id) == (Code.INVALID_TRANSACTION_ID, "EXPIRED")
    for one in producers:
        one.leave()
    assert caller.receive() == []


def test_check_survives_a_restart_of_the_server(served: RocketmqBench, caller: RawCaller) -> None:
    producer = LiveProducer(served, "t")
    send(caller)
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    check = producer.checked()
    served.server.close()
    served.bench.reopen()
    served.serve()
    caller = served.caller()
    assert end(caller, check.transaction_id) == (Code.OK, "OK")
    assert end(caller, check.transaction_id) == (Code.OK, "OK")
    served.bench.turn()
    assert len(caller.receive()) == 1


def test_producer_that_no_longer_names_a_topic_is_not_asked(served: RocketmqBench) -> None:
    producer = LiveProducer(served, "t")
    send(producer.caller)
    until_waiting(served)
    producer.publish("other")
    until_idle(served)
    producer.publish("t")
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    while (command := next(producer._answers)).HasField("settings"):
        pass
    assert command.recover_orphaned_transaction_command.message.body == b"x"
    producer.leave()


def test_check_that_no_producer_could_get_counts_no_attempt(
    served: RocketmqBench, caller: RawCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream has ended, and the server does not know it yet."""
    dead = LiveProducer(served, "t")
    send(caller)
    until_waiting(served)

    monkeypatch.setattr(transactions.messages, "TelemetryCommand", failing_once())
    served.bench.turn(AFTER_S * 1000)
    until(lambda: served.server.stats()["net_returned_leases"], PATIENCE_S)
    monkeypatch.undo()
    live = LiveProducer(served, "t")
    check = live.checked()
    assert check.message.system_properties.delivery_attempt == 1
    live.leave()
    dead.leave()


def failing_once() -> Any:
    real, failed = messages.TelemetryCommand, []

    def made(**given: Any) -> Any:
        if "recover_orphaned_transaction_command" in given and not failed:
            failed.append(True)
            raise OSError("the stream is gone")
        return real(**given)

    return made


def test_producer_is_asked_about_a_limited_number_of_topics(
    served: RocketmqBench, caplog: pytest.LogCaptureFixture
) -> None:
    caller = served.caller()
    publishing = messages.Publishing(topics=[resource(f"t{k}") for k in range(257)])
    settings = messages.Settings(publishing=publishing)
    answers = list(caller.telemetry(iter([messages.TelemetryCommand(settings=settings)])))
    assert answers[-1].status.code == Code.OK, "its stream stays"
    assert "257 topics; it is asked about half messages of the first 256" in caplog.text
