"""Messages that a client received from this store and resent through a broker are new messages.

The client left properties of this store on them.
"""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import NOW, small
from tests.support.broker import resent as sent_on
from timerstore import CancelResult, MessageError, TimerStore
from timerstore.testing import ManualClock, Stepper

ROLL_S = 20  # the roll window: later messages roll
SOON_MS = NOW + 100_000
LATER_MS = NOW + 150_000
OF_A_BROKER = ("TIMER_", "REAL_", "UNIQ_KEY", "__CRC32#")


def opened(root: Path, now_ms: int, **more: Any) -> tuple[TimerStore, Stepper, ManualClock]:
    clock = ManualClock(now_ms)
    config = small(roll_window_slots=ROLL_S, **more)
    store = timerstore.open(root, config, clock=clock, threads=False)
    stepper = Stepper(store)
    stepper.settle()
    return store, stepper, clock


def came(root: Path, **more: Any) -> dict[str, str]:
    """Return the properties of a delivered message that rolled twice."""
    store, stepper, clock = opened(root, NOW, **more)
    store.put("orders", b"came", delay=3 * ROLL_S, queue_id=0)
    for _ in range(3 * ROLL_S):
        clock.advance(1000)
        stepper.settle()
    [message] = store.pull("orders", 0, 0).messages
    assert store.verify().clean
    store.close()
    assert message.properties["TIMER_ROLL_TIMES"] == "2"
    return dict(message.properties)


def left(properties: dict[str, str], *kept: str) -> dict[str, str]:
    """Return the properties that a client resends. It removes a broker's, except forgotten ones."""
    return {
        name: text
        for name, text in properties.items()
        if name in kept or not name.startswith(OF_A_BROKER)
    }


def bodies(store: TimerStore) -> list[bytes]:
    begin = store.pull("orders", 0, 0).min_offset
    return [one.body for one in store.pull("orders", 0, begin, max_count=99).messages]


def lose_watermark(root: Path) -> None:
    (root / "timerstore" / "watermark").unlink()


def assert_comes_once(root: Path, *, is_lost: bool, before: tuple[bytes, ...] = (b"came",)) -> None:
    """Check that it is delivered once and on time, also after reopening or a rebuild."""
    now_ms = disk_now(root)
    for due_ms in (now_ms, SOON_MS, LATER_MS):
        if is_lost:
            lose_watermark(root)
        store, stepper, clock = opened(root, now_ms)
        assert store.verify().clean
        for each_ms in range(now_ms, due_ms, 1000):
            clock.set(each_ms)
            stepper.settle()
            assert bodies(store) == [*before, *[b"sent on"] * (each_ms >= SOON_MS)]
        now_ms = due_ms
        clock.set(due_ms)
        stepper.settle()
        assert bodies(store) == [*before, *[b"sent on"] * (due_ms >= SOON_MS)]
        assert store.stats()["pending_messages"] == (due_ms < SOON_MS)
        assert store.verify().clean
        store.close()


def disk_now(root: Path) -> int:
    return max(one.store_ms for one in disk.records(root))


def test_put_rejects_a_message_with_an_own_ts_id(tmp_path: Path) -> None:
    """The caller gets an error that names the property, so that the message is not lost."""
    properties = came(tmp_path / "s")
    store, _, _ = opened(tmp_path / "s", NOW)
    with pytest.raises(MessageError, match="TIMER_ROLL_TIMES"):
        store.put("orders", b"x", properties=left(properties, "TIMER_ROLL_TIMES"), delay=5)
    store.close()


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_key_kept", [False, True])
def test_message_resent_with_its_roll_count_is_delivered(
    tmp_path: Path, *, is_key_kept: bool, is_lost: bool
) -> None:
    """It was taken for a rolled copy of the first message, and was not delivered."""
    root = tmp_path / "s"
    properties = came(root)
    key = properties["UNIQ_KEY"] if is_key_kept else "K"
    sent_on.delayed(
        root, key, SOON_MS, store_ms=disk_now(root), **left(properties, "TIMER_ROLL_TIMES")
    )
    assert_comes_once(root, is_lost=is_lost)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("has_count", [False, True])
@pytest.mark.parametrize("is_delivered", [False, True])
def test_resent_message_that_a_broker_rolled_is_delivered(
    tmp_path: Path, *, has_count: bool, is_delivered: bool, is_lost: bool
) -> None:
    root = tmp_path / "s"
    properties, now_ms = came(root), disk_now(root)
    kept = left(properties, *["TIMER_ROLL_TIMES"] * has_count)
    source = sent_on.delayed(root, "K", SOON_MS, store_ms=now_ms, **kept)
    copy = sent_on.rolled(root, source, store_ms=now_ms, times=3 if has_count else 1)
    copy = sent_on.rolled(root, copy, store_ms=now_ms, times=4 if has_count else 2)
    if not is_delivered:
        assert_comes_once(root, is_lost=is_lost)
        return
    sent_on.delivered(root, copy, store_ms=SOON_MS)
    for _ in range(2):
        store, stepper, clock = opened(root, SOON_MS)
        assert store.verify().clean
        clock.set(LATER_MS)
        stepper.settle()
        assert bodies(store) == [b"came", b"sent on"]
        store.close()
        if is_lost:
            lose_watermark(root)


@pytest.mark.parametrize("is_lost", [False, True])
def test_resent_message_is_cancelled_by_its_brokers_handle(
    tmp_path: Path, *, is_lost: bool
) -> None:
    root = tmp_path / "s"
    properties, now_ms = came(root), disk_now(root)
    source = sent_on.delayed(
        root, "K", SOON_MS, store_ms=now_ms, **left(properties, "TIMER_ROLL_TIMES")
    )
    sent_on.rolled(root, source, store_ms=now_ms, times=3)
    store, _, _ = opened(root, now_ms)
    [waiting] = store.pending()
    handle = disk.encode_recall_handle("orders", "broker", waiting.due_ms - 999, "K")
    assert store.cancel(handle) is CancelResult.CANCELLED
    assert store.verify().clean
    store.close()
    if is_lost:
        lose_watermark(root)
    store, stepper, clock = opened(root, now_ms)
    assert store.verify().clean
    clock.set(LATER_MS)
    stepper.settle()
    assert bodies(store) == [b"came"]
    store.close()


# --- of which the first files are gone ------------------------------------------------------------


@pytest.mark.parametrize("has_count", [False, True])
@pytest.mark.parametrize("what", ["delivered", "cancelled", "waits"])
def test_resent_message_is_delivered_when_its_original_is_removed(
    tmp_path: Path, what: str, *, has_count: bool
) -> None:
    """A broker rolled a copy; its source and the first message's records were removed.

    A rebuilt store delivered the copy again.
    """
    root, more = tmp_path / "s", {"commit_log_segment_bytes": 16 * 1024, "message_bytes_max": 4000}
    properties, now_ms = came(root, **more), disk_now(root)
    kept = left(properties, *["TIMER_ROLL_TIMES"] * has_count)
    source = sent_on.delayed(root, "K", SOON_MS, store_ms=now_ms, **kept)
    store, _, _ = opened(root, now_ms, **more)  # it waits by its own place
    while store.stats()["log_end_bytes"] < 2 * 16 * 1024:
        store.put("fill", bytes(3000))
    store.put("other", b"tells the store's id", delay=500)
    store.close()
    sent_on.rolled(root, source, store_ms=now_ms, times=3 if has_count else 1)
    store, stepper, clock = opened(root, now_ms, **more)
    [waiting] = store.pending(topic="orders")
    if what == "delivered":
        clock.set(SOON_MS)
        stepper.settle()
        assert bodies(store) == [b"came", b"sent on"]
    elif what == "cancelled":
        handle = disk.encode_recall_handle("orders", "broker", waiting.due_ms - 999, "K")
        assert store.cancel(handle) is CancelResult.CANCELLED
    now_ms = clock.now_ms
    assert store.verify().clean
    store.close()
    for _ in range(2):
        lose_watermark(root)
        begin, path = disk.segments(root / "commitlog")[0]
        if begin < 2 * 16 * 1024:
            path.unlink()
        store, stepper, clock = opened(root, now_ms, **more)
        assert store.stats()["pending_by_topic"].get("orders", 0) == (what == "waits")
        assert store.verify().clean
        store.close()
    store, stepper, clock = opened(root, LATER_MS, **more)
    clock.set(LATER_MS)
    stepper.settle()
    assert bodies(store).count(b"sent on") == (what != "cancelled")
    store.close()
