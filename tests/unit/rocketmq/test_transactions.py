"""Transactions: send, EndTransaction, and checks by live producers."""

import asyncio
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import DAY, Bench
from tests.support.inside import inside
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, resource, seconds
from tests.support.until import until
from timerstore.aio import AsyncTimerStore
from timerstore.rocketmq import transactions
from timerstore.rocketmq.byte_budget import ByteBudget
from timerstore.rocketmq.client_leases import ClientLeases
from timerstore.rocketmq.definitions import Code, MessageType, TransactionResolution, messages
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits
from timerstore.rocketmq.settling import Settling
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

    def can_answer(self) -> "LiveProducer":
        """Show that it has transactions, as a producer with a checker does."""
        assert end(self.caller, send(self.caller).transaction_id, ROLLBACK)[0] == Code.OK
        return self

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
    producers = [LiveProducer(served, "t").can_answer() for _ in range(2)]
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

    class Gone(transactions.Producer):
        def __init__(self, client_id: str, _: transactions.Send) -> None:
            super().__init__(client_id, self.fail)

        async def fail(self, _: Any) -> None:
            raise OSError("the stream is gone")

    monkeypatch.setattr(transactions, "Producer", Gone)
    dead = LiveProducer(served, "t").can_answer()
    monkeypatch.undo()
    send(caller)
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    until(lambda: served.server.stats()["net_returned_leases"], PATIENCE_S)
    live = LiveProducer(served, "t")
    served.bench.turn()
    check = live.checked()
    assert check.message.system_properties.delivery_attempt == 1
    live.leave()
    dead.leave()


BODY = bytes(300_000)
"""No connection takes it before its client reads it."""


def test_producer_that_reads_nothing_is_passed_over_until_it_reads(
    served: RocketmqBench, caller: RawCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_WRITE_S", 0.05, raising=False)
    unread, live = LiveProducer(served, "t"), LiveProducer(served, "t")
    for _ in range(3):
        send(caller, BODY)
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    checks = [live.checked() for _ in range(3)]
    assert {one.message.system_properties.delivery_attempt for one in checks} == {1}
    assert [end(caller, one.transaction_id)[0] for one in checks] == [Code.OK] * 3
    assert unread.checked().message == checks[0].message
    for _ in range(2):
        send(caller)
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    assert unread.checked().transaction_id != live.checked().transaction_id
    for one in (unread, live):
        one.leave()


def test_producer_that_can_answer_is_asked_before_others(
    served: RocketmqBench, caller: RawCaller
) -> None:
    plain = LiveProducer(served, "t")
    able = LiveProducer(served, "t").can_answer()
    for _ in range(3):
        send(caller)
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    for _ in range(3):
        assert end(able.caller, able.checked().transaction_id) == (Code.OK, "OK")
    for one in (plain, able):
        one.leave()  # without a check that was not read


def test_attempt_counts_if_the_producer_can_answer(
    served: RocketmqBench, caller: RawCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain producer is asked, as it may have a checker, but its silence means nothing."""
    monkeypatch.setattr(transactions, "_UNCOUNTED_S", 0.01, raising=False)
    producer = LiveProducer(served, "t")
    send(caller, message_id="m1")
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    for k in range(CHECKS_MAX + 2):
        assert producer.checked().message.system_properties.delivery_attempt == 1
        # A turn that takes long delivers a check again that is given back during it.
        until(lambda k=k: served.server.stats()["net_returned_leases"] > k, PATIENCE_S)
        served.bench.turn()
    monkeypatch.undo()
    check = producer.checked()
    while end(producer.caller, check.transaction_id)[0] != Code.OK:  # that one was given back
        served.bench.turn()
        check = producer.checked()
    returned = served.server.stats()["net_returned_leases"]
    send(caller, message_id="m2")
    until_waiting(served)
    served.bench.turn(AFTER_S * 1000)
    for attempt in (1, 2, 3):
        assert producer.checked().message.system_properties.delivery_attempt == attempt
        until_waiting(served)
        served.bench.turn(30_000)
    assert served.server.stats()["net_returned_leases"] == returned
    producer.checked()
    producer.leave()


# --- the bytes of checks ---


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[RocketmqBench]:
    """A server that has one answer or check at a time in memory."""
    limits = RocketmqLimits(unsent_bytes_max=1)
    one = RocketmqBench(Bench(tmp_path / "limited"), limits=limits)
    yield one
    one.close()


def receive_code(caller: RawCaller, topic: str) -> int:
    answers = caller.call("ReceiveMessage", caller.receive_request(topic))
    return int(answers[0].status.code)


def test_bytes_of_unread_checks_are_limited(limited: RocketmqBench) -> None:
    producer = LiveProducer(limited, "t")
    caller = limited.caller()
    send(caller, BODY)
    until_waiting(limited)
    limited.bench.turn(AFTER_S * 1000)
    until(lambda: receive_code(caller, "u") == Code.TOO_MANY_REQUESTS, PATIENCE_S)
    producer.checked()
    until(lambda: receive_code(caller, "u") == Code.MESSAGE_NOT_FOUND, PATIENCE_S)
    producer.leave()


def test_check_above_the_limit_waits_until_answers_are_read(
    limited: RocketmqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_PAUSE_S", 0.01)
    producer = LiveProducer(limited, "t").can_answer()
    caller = limited.caller()
    limited.bench.store.put("u", BODY)
    limited.bench.turn()
    unread = caller.begin("ReceiveMessage", caller.receive_request("u").SerializeToString())
    assert next(unread).status.code == Code.OK
    send(caller, BODY)
    until_waiting(limited)
    limited.bench.turn(AFTER_S * 1000)

    def is_returned_twice() -> bool:
        limited.bench.turn()
        return bool(limited.server.stats()["net_returned_leases"] >= 2)

    until(is_returned_twice, PATIENCE_S)
    assert len([one for one in unread if one.HasField("message")]) == 1
    limited.bench.turn()
    assert producer.checked().message.system_properties.delivery_attempt == 1
    producer.leave()


# --- the task that checks ---


@pytest.mark.parametrize("served", ["open"], indirect=True)
@pytest.mark.parametrize("step_count", [0, 1, 2])
def test_cancelled_checks_begin_again_with_the_next_producer(
    served: RocketmqBench, caller: RawCaller, step_count: int
) -> None:
    """Also if the task has not made its first step: then it runs no `finally`."""
    send(caller)
    served.bench.turn(AFTER_S * 1000)

    async def check() -> list[Any]:
        pool, limits = ThreadPoolExecutor(1), RocketmqLimits()
        sent: list[Any] = []
        store = AsyncTimerStore(served.bench.store, pool)
        held = ClientLeases(limits, lambda: 0)
        settling = Settling(store, held, limits, lambda: 0, lambda _: None)
        unsent = ByteBudget("unsent_bytes_max", limits.unsent_bytes_max)
        checked = transactions.Transactions(store, settling, unsent, limits)

        async def take(command: Any) -> None:
            sent.append(command)

        def begin(producer: transactions.Producer) -> None:
            producer.topics = {"t": resource("t")}
            checked._producers.setdefault("t", []).append(producer)
            checked.begin("t")

        with checked.stream("gone", take) as producer:
            begin(producer)
            for _ in range(step_count):
                await asyncio.sleep(0)
        assert sent == []
        with checked.stream("live", take) as producer:
            begin(producer)
            while not sent:
                served.bench.stepper.settle()
                await asyncio.sleep(0.001)
        while checked._checks:
            await asyncio.sleep(0.001)
        pool.shutdown()
        return sent

    [command] = asyncio.run(check())
    shown = command.recover_orphaned_transaction_command.message
    assert shown.system_properties.delivery_attempt == 1


def test_producer_is_asked_about_a_limited_number_of_topics(
    served: RocketmqBench, caplog: pytest.LogCaptureFixture
) -> None:
    caller = served.caller()
    for count in (256, 257):
        assert "it is asked about" not in caplog.text
        publishing = messages.Publishing(topics=[resource(f"t{k}") for k in range(count)])
        settings = messages.Settings(publishing=publishing)
        answers = list(caller.telemetry(iter([messages.TelemetryCommand(settings=settings)])))
        assert answers[-1].status.code == Code.OK, "its stream stays"
    assert "257 topics; it is asked about half messages of the first 256" in caplog.text
