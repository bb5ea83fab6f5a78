"""Another operation runs between planning and placing a reschedule, a replacement or a lease."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import SECOND, Bench, small
from tests.support.elsewhere import elsewhere
from tests.support.inside import encode_replacement, inside
from tests.support.leasing import take
from tests.support.placing_races import (
    Act,
    assert_all_delivered,
    at_failpoint,
    before_space,
    cancelling,
    full,
    recounted,
)
from timerstore import (
    AckResult,
    FullError,
    LeaseLostError,
    NotPendingError,
)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "limited", small(slot_messages_max=3))
    yield bench
    bench.close()


def _has_room_for(bench: Bench, deliver_ms: int, count: int) -> None:
    """Check that a slot accepts this many more messages, and no more."""
    for k in range(count):
        bench.store.put("t", b"more %d" % k, deliver_ms=deliver_ms)
    before = bench.store.stats()["flow_control_rejected_messages"]
    with pytest.raises(Exception, match="slot_messages_max"):
        bench.store.put("t", b"too many", deliver_ms=deliver_ms)
    assert bench.store.stats()["flow_control_rejected_messages"] == before + 1


@pytest.mark.parametrize("what", ["cancelled", "delivered"])
def test_reschedule_raises_when_message_is_finished_before_placing(
    limited: Bench, what: str
) -> None:
    bench = limited
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5)
    bench.turn()
    acts = {"cancelled": cancelling(bench, first), "delivered": lambda: bench.turn(7 * SECOND)}
    with at_failpoint("reschedule_encoded", acts[what]), pytest.raises(NotPendingError) as caught:
        bench.store.reschedule(first, deliver_ms=there)
    assert caught.value.result == f"ALREADY_{what.upper()}"
    assert recounted(bench) == 0
    _has_room_for(bench, there, 3)
    assert recounted(bench) == 3


def test_reschedule_raises_when_message_is_rescheduled_concurrently(limited: Bench) -> None:
    bench = limited
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5)
    bench.turn()
    with (
        at_failpoint("reschedule_encoded", lambda: bench.store.reschedule(first, deliver_ms=there)),
        pytest.raises(NotPendingError),
    ):
        bench.store.reschedule(first, deliver_ms=there)
    assert recounted(bench) == 1
    _has_room_for(bench, there, 2)
    assert_all_delivered(bench, [b"first", b"more 0", b"more 1"])


@pytest.mark.parametrize("times", [1, 2])
def test_reschedule_is_placed_after_disk_was_full_repeatedly(limited: Bench, times: int) -> None:
    bench = limited
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5)
    bench.turn()
    with before_space(bench, "reschedule", *[full] * times):
        for _ in range(times):
            inside(bench.store).log.native.append_limit = 0
            with pytest.raises(FullError):
                bench.store.reschedule(first, deliver_ms=there)
            assert recounted(bench) == 1
    bench.store.reschedule(first, deliver_ms=there)
    _has_room_for(bench, there, 2)
    assert recounted(bench) == 3


@pytest.mark.parametrize("what", ["cancelled", "delivered", "replaced"])
def test_replacement_is_counted_once_when_message_is_finished_before_placing(
    limited: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    bench, key = limited, {"key": "k", "replace": True}
    there = (bench.clock.now_ms + 60 * SECOND) // SECOND * SECOND + 500
    first = bench.store.put("t", b"first", delay=5, **key)
    bench.turn()
    acts: dict[str, Act] = {
        "cancelled": cancelling(bench, first),
        "delivered": lambda: bench.turn(7 * SECOND),
        "replaced": lambda: bench.store.reschedule(first, deliver_ms=there + 5000),
    }
    encoding = encode_replacement(inside(bench.store).replacing)
    encode, left = encoding.value, [acts[what]]

    def between(*given: Any) -> Any:
        record = encode(*given)
        if left:
            elsewhere(left.pop())  # in another thread, as this one has locked the key
        return record

    monkeypatch.setattr(*encoding, between)
    bench.store.put("t", b"second", deliver_ms=there, **key)
    assert not left
    # The other operation came first, so the second put replaces the message that was left.
    assert recounted(bench) == 1
    _has_room_for(bench, there, 2)
    expected = [b"second", b"more 0", b"more 1"] + [b"first"] * (what == "delivered")
    assert_all_delivered(bench, expected)


@pytest.mark.parametrize("call", ["nack", "extend"])
@pytest.mark.parametrize("what", ["acked", "over"])
def test_lease_call_fails_when_lease_is_finished_before_placing(
    bench: Bench, call: str, what: str
) -> None:
    bench.store.put("t", b"a")
    bench.turn()
    (lease,) = take(bench, 1, lease=5)
    bench.turn()
    acts: dict[str, Act] = {
        "acked": lambda: bench.store.ack(lease),
        "over": lambda: bench.turn(7 * SECOND),
    }
    expected = AckResult.SETTLED if what == "acked" else AckResult.EXPIRED
    with at_failpoint("reschedule_encoded", acts[what]):
        if call == "nack":
            assert bench.store.nack(lease, delay=60) is expected
        else:
            with pytest.raises(LeaseLostError) as caught:
                bench.store.extend(lease, lease=60)
            assert caught.value.result == expected
    assert recounted(bench) == 0
    again = take(bench, 10, lease=5)
    assert [one.attempt for one in again] == ([] if what == "acked" else [2])
    assert recounted(bench) == len(again)


@pytest.mark.parametrize("times", [1, 2])
def test_nack_is_placed_after_disk_was_full_repeatedly(bench: Bench, times: int) -> None:
    bench.store.put("t", b"a")
    bench.turn()
    (lease,) = take(bench, 1, lease=50)
    bench.turn()
    with before_space(bench, "reschedule", *[full] * times):
        for _ in range(times):
            inside(bench.store).log.native.append_limit = 0
            with pytest.raises(FullError):
                bench.store.nack(lease, delay=60)
            assert recounted(bench) == 1
    assert bench.store.nack(lease, delay=60) is AckResult.NACKED
    assert recounted(bench) == 1
    bench.turn(61 * SECOND)
    (again,) = take(bench, 10, lease=5)
    assert again.attempt == 2
