"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue, and dead letters."""

from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, seconds
from timerstore.rocketmq.definitions import Code


def received(served: RocketmqBench, caller: RawCaller) -> str:
    """Return the receipt of a message."""
    caller.send()
    served.bench.turn()
    return str(caller.receive()[0].system_properties.receipt_handle)


def test_second_ack_is_refused(served: RocketmqBench, caller: RawCaller) -> None:
    receipt = received(served, caller)
    assert caller.ack(receipt)[0].status.code == Code.OK
    second = caller.ack(receipt)[0]
    assert (second.status.code, second.status.message) == (Code.INVALID_RECEIPT_HANDLE, "SETTLED")


def test_receipt_of_another_store_is_unknown(
    served: RocketmqBench, caller: RawCaller, tmp_path: Path
) -> None:
    received(served, caller)
    other = RocketmqBench(Bench(tmp_path / "other"))
    for _ in range(2):
        receipt = received(other, other.caller())
    other.close()
    found = caller.ack(receipt)[0].status
    assert (found.code, found.message) == (Code.INVALID_RECEIPT_HANDLE, "UNKNOWN")


def test_acks_of_one_call_have_their_own_status(served: RocketmqBench, caller: RawCaller) -> None:
    receipt = received(served, caller)
    found = caller.ack(receipt, "no receipt")
    assert [one.status.code for one in found] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


def test_changed_lease_has_a_new_receipt(served: RocketmqBench, caller: RawCaller) -> None:
    old = received(served, caller)
    changed = caller.call(
        "ChangeInvisibleDuration", receipt_handle=old, invisible_duration=seconds(100)
    )
    assert changed.status.code == Code.OK
    assert caller.ack(old)[0].status.message == "SETTLED"
    served.bench.turn(99_000)
    assert caller.receive() == []
    assert caller.ack(changed.receipt_handle)[0].status.code == Code.OK


def test_lease_of_zero_returns_the_message_at_once(
    served: RocketmqBench, caller: RawCaller
) -> None:
    receipt = received(served, caller)
    changed = caller.call(
        "ChangeInvisibleDuration", receipt_handle=receipt, invisible_duration=seconds(0)
    )
    assert changed.status.code == Code.OK
    served.bench.turn()
    assert caller.receive()[0].system_properties.delivery_attempt == 2


def test_lease_of_zero_of_a_push_consumer_waits_for_the_back_off(
    served: RocketmqBench, caller: RawCaller
) -> None:
    caller.send()
    served.bench.turn()
    [one] = caller.receive(auto_renew=True)
    receipt = one.system_properties.receipt_handle
    caller.call("ChangeInvisibleDuration", receipt_handle=receipt, invisible_duration=seconds(0))
    served.bench.turn(999)
    assert caller.receive() == []
    served.bench.turn(1)
    assert caller.receive()[0].system_properties.delivery_attempt == 2


@pytest.mark.parametrize("lease_s", [0, 5])
def test_change_of_a_settled_lease_is_refused(
    served: RocketmqBench, caller: RawCaller, lease_s: int
) -> None:
    receipt = received(served, caller)
    caller.ack(receipt)
    changed = caller.call(
        "ChangeInvisibleDuration", receipt_handle=receipt, invisible_duration=seconds(lease_s)
    )
    assert (changed.status.code, changed.status.message) == (
        Code.INVALID_RECEIPT_HANDLE, "SETTLED",
    )  # fmt: skip


def test_forwarded_message_is_a_dead_letter(served: RocketmqBench, caller: RawCaller) -> None:
    receipt = received(served, caller)
    forward = {"receipt_handle": receipt, "delivery_attempt": 1}
    assert caller.call("ForwardMessageToDeadLetterQueue", **forward).status.code == Code.OK
    again = caller.call("ForwardMessageToDeadLetterQueue", **forward)
    assert again.status.code == Code.INVALID_RECEIPT_HANDLE
    served.bench.turn()
    [letter] = served.bench.store.dead_letters("g")
    assert letter.error == "forwarded by its consumer at attempt 1"


def test_last_attempt_of_the_group_makes_a_dead_letter(tmp_path: Path) -> None:
    policies = tmp_path / "groups.toml"
    policies.write_text("[groups.g]\nmax_attempts = 2\n")
    served = RocketmqBench(Bench(tmp_path / "store"), groups_file=policies)
    caller = served.caller()
    caller.send()
    served.bench.turn()
    for attempt in (1, 2):
        [one] = caller.receive()
        assert one.system_properties.delivery_attempt == attempt
        served.bench.turn(30_000)
    assert caller.receive() == []
    assert [one.body for one in caller.receive("%DLQ%g", "watch")] == [b"x"]
    assert len(list(served.bench.store.dead_letters("g"))) == 1
    served.close()
